"""JSON files of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from looseleaf.models.errors import CorruptModelFile, ModelNotFound


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in `path`. Raises `ModelNotFound` or `CorruptModelFile`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelNotFound(f"There is no file {path}.") from None
    except (ValueError, RecursionError, OSError) as error:
        raise CorruptModelFile(f"{path} is not readable JSON: {error}.") from error
    if not isinstance(content, dict):
        raise CorruptModelFile(f"{path} holds a {type(content).__name__}; an object is expected.")
    return content
