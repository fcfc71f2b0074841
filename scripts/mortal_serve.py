#!/usr/bin/env python3
"""`treeline` with an engine that can be killed: after a SIGUSR1 its next step raises.

For scripts/ordeals.py. Arguments are those of `treeline`.
"""

import signal
import sys
import threading

from engine.core import EngineCore
from engine.types import StepOutputs
from server.cli import main

dies = threading.Event()
step = EngineCore.step


def mortal_step(core: EngineCore) -> StepOutputs:
    """A step, unless the engine was told to die."""
    if dies.is_set():
        raise RuntimeError("killed by SIGUSR1")
    return step(core)


if __name__ == "__main__":
    EngineCore.step = mortal_step  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, lambda *_: dies.set())
    sys.exit(main())
