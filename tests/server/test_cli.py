"""The `treeline` command as a process: one line per mistake, exit codes, no traceback."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from engine import __version__
from engine.config import METHODS
from server.config_loader import DEFAULT_CONFIG, load_settings

ROOT = Path(__file__).parents[2]


def treeline(
    *arguments: str, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    inherited = {name: text for name, text in os.environ.items() if "TREELINE_" not in name}
    return subprocess.run(
        [sys.executable, "-m", "server.cli", *arguments],
        cwd=cwd,
        env={**inherited, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def complaint(code: int, *arguments: str, cwd: Path = ROOT, **environment: str) -> str:
    """The one line on stderr of a command that must fail with `code`."""
    done = treeline(*arguments, cwd=cwd, **environment)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    (line,) = done.stderr.splitlines()
    return line.removeprefix("treeline: ")


def test_version() -> None:
    done = treeline("--version")
    assert (done.returncode, done.stdout) == (0, f"treeline {__version__}\n")
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "the following arguments are required: COMMAND; see treeline --help"),
        (["serve", "--prot", "1"], "unrecognized arguments: --prot 1; did you mean --port?"),
        (["serve", "--zzz"], "unrecognized arguments: --zzz; see treeline --help"),
        (["serve", "--set", "x"], "--set: expected KEY=VALUE, got x"),
        (
            ["serve", "--port", "x"],
            '--port: server.port: must be an integer from 0 to 65535, got "x"',
        ),
        (
            ["config", "show", "--method", "gose"],
            f'--method: speculation.method: must be one of {", ".join(METHODS)}, got "gose"',
        ),
        (
            ["serve", "--set", "engine.max_bach=2"],
            "--set: engine.max_bach: unknown key; did you mean max_batch?",
        ),
        (["serve", "--config", "no/such.yaml"], "no/such.yaml: no such file; "),
        (
            ["bench", "--data", ".", "--suites", "a", "--methods", "of"],
            f"argument --methods: of: known methods are {', '.join(METHODS)}; ",
        ),
        (
            ["bench", "--data", ".", "--suites", "a", "--limit", "0"],
            "argument --limit: must be a positive integer, got 0; see treeline bench --help",
        ),
        (["bench"], "the following arguments are required: --data, --suites; "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line_is_one_line(arguments: list[str], line: str) -> None:
    assert complaint(2, *arguments).startswith(line)


def test_a_wrong_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("model:\n  nmae: x\n")
    line = complaint(2, "serve", "--config", "c.yaml", cwd=tmp_path)
    assert line == "c.yaml:2: model.nmae: unknown key; did you mean name?"


def test_a_wrong_environment_is_one_line() -> None:
    line = complaint(2, "config", "show", TREELINE_SERVER_PRT="1")
    assert line.startswith("TREELINE_SERVER_PRT: unknown environment variable; did you mean ")


def test_a_taken_port_is_one_line_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = complaint(1, "serve", "--port", str(port))
    assert line.startswith(f"cannot listen on 127.0.0.1:{port}: address already in use; ")


def test_an_unknown_host_is_one_line() -> None:
    assert complaint(1, "serve", "--host", "no such host").startswith(
        "cannot listen on no such host:8000: "
    )


def test_missing_weights_are_one_line(tmp_path: Path) -> None:
    text = "model:\n  name: x\n  source:\n    {}\nserver: {{port: 0}}\n"
    for source in ("package: no-such-package", "path: /no/such/folder", "hub: no/such-model"):
        (tmp_path / "c.yaml").write_text(text.format(source))
        done = treeline("serve", "--config", "c.yaml", cwd=tmp_path)
        loading, line = done.stderr.splitlines()
        assert done.returncode == 1
        assert loading == "treeline: loading x"
        assert line.startswith("treeline: ")
        assert source.partition(": ")[2] in line


def test_config_show_names_what_set_each_key(tmp_path: Path) -> None:
    done = treeline("config", "show", "--port", "9", cwd=tmp_path, TREELINE_ENGINE_MAX_BATCH="3")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [re.split(r"\s+# ", line.strip()) for line in done.stdout.splitlines()]
    assert ["port: 9", "--port"] in lines
    assert ["max_batch: 3", "TREELINE_ENGINE_MAX_BATCH"] in lines
    (name,) = [line for line in lines if line[0] == "name: SmolLM2-135M-Instruct"]
    assert re.fullmatch(rf".*{DEFAULT_CONFIG}\.yaml:\d+", name[1])
    (tmp_path / "again.yaml").write_text(done.stdout)
    again = load_settings(str(tmp_path / "again.yaml"))
    assert (again.server.port, again.engine.max_batch) == (9, 3)


def test_scripts_without_python_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    for name in ("setup", "serve", "test"):
        (tmp_path / "scripts" / name).write_bytes((ROOT / "scripts" / name).read_bytes())
        (tmp_path / "scripts" / name).chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    for name in ("serve", "test"):
        done = subprocess.run(
            [tmp_path / "scripts" / name],
            env={"PATH": os.environ["PATH"], "PYTHON": "/no/such/python"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith("scripts/setup: needs Python 3.11 or newer with its venv module")


def test_the_config_may_come_from_the_environment() -> None:
    done = treeline("config", "show", TREELINE_CONFIG="qwen3-8b")
    assert "name: Qwen3-8B" in done.stdout
