"""scripts/soak.py: quiet about a sound server, loud about one that leaks or fails."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.server.conftest import serving
from tests.server.fakes import FakeEngine, cycle
from tests.server.monitoring import ROOT


class Hoarder(FakeEngine):
    """An engine that never lets go of what a client has left."""

    def abort(self, request_id: str) -> None:
        pass


def soak(engine: FakeEngine, folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the JSON of a run against `engine`."""
    with serving(engine) as live:
        done = subprocess.run(
            [
                *(sys.executable, "scripts/soak.py", live.url, "--json", str(folder / "out.json")),
                *("--clients", "8", "--max-tokens", "30", "--patience", "0.3"),
                *("--pid", str(os.getpid()), *arguments),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert not done.stderr, done.stderr
    result: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return done.returncode, result


def test_a_sound_server_passes(tmp_path: Path) -> None:
    engine = FakeEngine(cycle("abc "), max_model_len=4096, step_seconds=0.002)
    code, result = soak(engine, tmp_path, "--seconds", "3")
    assert (code, result["faults"], result["server_errors_5xx"]) == (0, {}, 0)
    assert set(result["kinds"]) == {"whole", "stream", "abort", "bad"}
    assert result["statuses"]["400"] == result["kinds"]["bad"]
    assert result["completion_tokens"] > 0
    assert 1 < result["rest_last_mb"] < result["rss_last_mb"]
    assert engine.aborted


def test_disconnects_leave_nothing(tmp_path: Path) -> None:
    engine = FakeEngine(cycle("abc "), max_model_len=4096, step_seconds=0.002)
    code, result = soak(engine, tmp_path, "--disconnects", "60")
    assert (code, result["leaked_sequences"]) == (0, 0)
    assert result["kinds"]["disconnect"] >= 60
    assert engine.requests
    assert engine.is_idle


def test_a_leak_is_found(tmp_path: Path) -> None:
    engine = Hoarder(lambda _, __: ord("a"), max_model_len=10**9, step_seconds=0.02)
    code, result = soak(
        engine, tmp_path, "--disconnects", "20", "--max-tokens", "100", "--settle", "0.5"
    )
    assert code == 1
    assert result["leaked_sequences"] > 0


def test_failures_are_found(tmp_path: Path) -> None:
    engine = FakeEngine(cycle("abc "), max_model_len=4096, step_seconds=0.002)
    engine.fail_next = "at once"
    code, result = soak(engine, tmp_path, "--seconds", "1")
    assert code == 1
    assert result["faults"]
