"""Where things are kept that are slow to make and the same at every start."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import ModelError


def cache_folder() -> Path:
    """The user's folder for them, which need not exist yet. Raises ModelError."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "treeline"
    except RuntimeError as error:  # a user without a home
        raise ModelError("No home folder can hold the model cache: set XDG_CACHE_HOME.") from error


def cache_file(kind: str, facts: Mapping[str, Any], suffix: str) -> Path:
    """The file of that kind for what `facts` say, which must be all that it depends on."""
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / kind / f"{name}{suffix}"
