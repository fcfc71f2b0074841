"""scripts/ordeals.py: each ordeal sees what a server does, and says so in one line of JSON.

How long anything takes is not judged here: that is for a quiet machine.
"""

import argparse
import json
import shlex
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from server.settings import ServerSettings
from tests.server.conftest import serving
from tests.server.fakes import FakeEngine, cycle
from tests.server.monitoring import ROOT

SERVE = shlex.join([sys.executable, "-m", "tests.server.stub_serve"])


@pytest.fixture
def ordeals(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import ordeals

    return ordeals


def options(**values: object) -> argparse.Namespace:
    return argparse.Namespace(**{"streams": 2, "seconds": 0.4, "tokens": 3, "batch": 2} | values)


def test_death_as_a_process() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "scripts/ordeals.py", "death", "--serve", SERVE),
            *("--streams", "3", "--tokens", "1000"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not done.stderr, done.stderr
    result = json.loads(done.stdout)
    assert (result["ordeal"], result["streams"], result["told"]) == ("death", 3, 3)
    assert (result["errors"], result["exit_code"]) == (["engine_dead"], 1)
    assert done.returncode == int(not result["passed"])


@pytest.mark.parametrize("most", [0, 100])
def test_overload(ordeals: ModuleType, most: int) -> None:
    engine = FakeEngine(cycle("a"), max_batch=2, step_seconds=0.05)
    with serving(engine, ServerSettings(max_queued_requests=most)) as live:
        result = ordeals.overload(SimpleNamespace(url=live.url), options(tokens=12))
    assert result["served"] > 0
    assert result["other"] == 0
    assert bool(result["refused"]) == (most == 0)
    assert result["refused"] or not result["passed"]


def test_health(ordeals: ModuleType) -> None:
    engine = FakeEngine(cycle("a"), max_model_len=4096, step_seconds=0.01)
    with serving(engine) as live:
        result = ordeals.health(SimpleNamespace(url=live.url), options(megabytes=0.1))
    assert set(result["long_prompts"]) == {400}
    assert result["failed_probes"] == 0
    for phase in ("idle", "streams", "long prompts"):
        for path in ("/health", "/ready"):
            assert result["phases"][f"{phase} {path}"]["probes"] > 0
