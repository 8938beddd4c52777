"""How every measurement ends."""

import json
from pathlib import Path
from typing import Any


def write_result(result: dict[str, Any], out: Path | None) -> None:
    """Show a result, and write it, with a checksum, to the file that was named, if one was."""
    from metagrove import files  # here, so that it does not count in a measured process's memory

    print(json.dumps(result, indent=1, ensure_ascii=False))
    if out:
        files.write_json(out, {"format": files.FORMAT, **result})
