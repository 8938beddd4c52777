"""How every measurement ends."""

import json
from pathlib import Path
from typing import Any


def write_result(result: dict[str, Any], out: Path | None) -> None:
    """Show a result, and write it to the file that was named, if one was."""
    text = json.dumps(result, indent=1, ensure_ascii=False)
    print(text)
    if out:
        out.write_text(text + "\n", encoding="utf-8")
