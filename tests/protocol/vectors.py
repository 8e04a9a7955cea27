"""Reading the vectors that freeze the protocol."""

import json
from pathlib import Path
from typing import Any

HOME = Path(__file__).parent.parent.parent / "protocol" / "vectors"


def load(name: str) -> Any:
    """The content of one file."""
    return json.loads((HOME / f"{name}.json").read_text(encoding="utf-8"))
