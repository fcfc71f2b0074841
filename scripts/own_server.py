"""A server of one's own: started for one experiment, watched, and ended with it."""

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMAND = (sys.executable, str(ROOT / "scripts" / "mortal_serve.py"))
START_SECONDS = 600.0  # loading and probing a model on a slow machine


class OwnServer:
    """A running server process."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        self.url = url
        self.pid = process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def exit_code(self, seconds: float) -> int | None:
        """Its exit code; None if it still runs after so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None


@contextlib.contextmanager
def own_server(command: Sequence[str], settings: dict[str, object]) -> Iterator[OwnServer]:
    """`command` followed by `serve`, on any free port, with these settings, until the block ends.
    Raises RuntimeError with what it said if it does not come up."""
    arguments = [f"--set={key}={value}" for key, value in settings.items()]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, "serve", "--port", "0", *arguments],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            text=True,
        )
        try:
            yield OwnServer(process, _url(process, log.fileno()))
        finally:
            process.kill()
            process.wait()


def _url(process: subprocess.Popen[str], log: int) -> str:
    """What the ready line says, once it has come."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        text = Path(f"/proc/self/fd/{log}").read_text()
        if found := re.search(r"https?://[\w.:]+", text):
            return found[0]
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not come up:\n{text}")
        time.sleep(0.1)
