"""What the numbers depend on besides the code's speed. A number without it cannot be repeated."""

import platform
import subprocess
import time
from importlib.metadata import version
from typing import Any

import torch

from engine.config import EngineConfig


def fingerprint(config: EngineConfig, dtype: str) -> dict[str, Any]:
    """The software, the model and the machine. `dtype`: what the model runs in."""
    return {
        "treeline": version("treeline"),
        "commit": _output_of("git", "rev-parse", "--short", "HEAD"),
        "model": config.model.name,
        "dtype": dtype,
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "machine": _machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "python": platform.python_version(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _machine() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    for line in _output_of("cat", "/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _output_of(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
