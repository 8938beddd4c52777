"""Display names of result rows.

Labels in results/*.json are checksummed data and identify run folders, so they never change. "HSML" is the learner of
the paper; variants beyond the paper have names of their own:

HSML-A   HSML with attention embedding and affine gate
HSML-F   the image variant of HSML-A whose clusters are found before training
"""

DISPLAY_NAMES = (
    # (text in a stored label, text in documents and figures), applied in this order
    ("HSML, 5-shot, ours", "HSML-A, 5-shot"),
    ("HSML, 10-shot, ours", "HSML-A, 10-shot"),
    ("HSML (ours)", "HSML-A"),
    ("HSML (clusters first)", "HSML-F"),
    ("HSML, clusters found first", "HSML-F"),
    ("HSML, attention", "HSML-A"),
    ("HSML, g times", "HSML-A, g times"),
    ("HSML's gate, told the dataset", "HSML-A's gate, given the dataset"),
    ("hsml-best", "hsml-a"),
    ("falling step", "cosine decay"),
    ("outer step from .003, falling", "β from .003 with cosine decay"),
    ("outer step .003", "β = .003"),
    ("gate on shares too", "gate on assignments too"),
    ("tasks in flight", "tasks at a time"),
)


def display_name(label: str) -> str:
    """Convert a stored label to the name that documents, tables and figures show.

    Args:
        label: Label of a row of a result.

    Returns:
        The display name.
    """
    for stored, shown in DISPLAY_NAMES:
        label = label.replace(stored, shown)
    return label
