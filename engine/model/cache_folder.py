"""Where things are kept that are slow to make and the same at every start."""

import os
from pathlib import Path

from engine.errors import ModelError


def cache_folder() -> Path:
    """The user's folder for them, which need not exist yet. Raises ModelError."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "treeline"
    except RuntimeError as error:  # a user without a home
        raise ModelError("No home folder can hold the model cache: set XDG_CACHE_HOME.") from error
