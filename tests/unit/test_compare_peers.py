"""The comparison with other engines, a step's profile, scaling: their sums, not their speeds."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.spec.registry import FACTORIES
from tests.engine.tiny import make_core
from tests.unit.test_bench import tiny_bench

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module", autouse=True)
def _on_path():
    sys.path.insert(0, str(SCRIPTS))
    yield
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def script():
    return importlib.import_module("compare_peers")


@pytest.fixture(scope="module")
def peers():
    return importlib.import_module("peers")


@pytest.fixture(scope="module")
def servers():
    return importlib.import_module("compare_servers")


@pytest.fixture(scope="module")
def split():
    return importlib.import_module("step_split")


class Scripted:
    """Answers each prompt's ids backwards, `speed` tokens a second."""

    def __init__(self, answer, log: list, name: str, setting: str = "", speed: float = 1.0):
        self.name, self.setting = name, setting
        self._answer, self._log, self._speed = answer, log, speed

    def run(self, prompt: str, token_ids: list[int], max_tokens: int):
        self._log.append((self.name, self.setting, prompt, max_tokens))
        tokens = tuple(token_ids[::-1][:max_tokens])
        if self.setting == "10" and prompt == "defg":
            tokens = (0, *tokens[1:])
        forwards = 1 if self.setting else len(tokens)
        return self._answer(tokens, len(tokens) / self._speed, 0.25, forwards)


def test_engines_take_turns_and_the_best_setting_is_reported(script, peers, tmp_path) -> None:
    log: list = []
    arms = [
        ("treeline off", "", 2.0),
        ("treeline auto", "", 4.0),
        ("transformers", "", 1.0),
        ("transformers prompt lookup", "3", 1.5),
        ("transformers prompt lookup", "10", 3.0),
    ]
    found = [Scripted(peers.Answer, log, *arm) for arm in arms]
    answers = script.compare(found, ["abc", "defg"], lambda text: list(text.encode()), 3)
    assert [(name, setting) for name, setting, *_ in log] == [arm[:2] for arm in arms] * 3
    assert [entry[2:] for entry in log[::5]] == [("abc", 8), ("abc", 3), ("defg", 3)]
    missing = dict.fromkeys(script.NAMES[4:], "not installed")
    rows = {row["name"]: row for row in script.summarise(answers, missing)}
    assert list(rows) == list(script.NAMES)
    best = rows["transformers prompt lookup"]
    assert (best["setting"], best["tokens_per_second"], best["tau"]) == ("10", 3.0, 3.0)
    assert (best["identical"], best["prompts"], best["tokens"]) == (1, 2, 6)
    assert rows["treeline off"]["tau"] == 1.0
    assert rows["treeline auto"]["identical"] == 2
    assert rows["transformers"]["ttft_ms"] == 250.0
    assert rows["llama.cpp"] == {
        "name": "llama.cpp",
        "tokens_per_second": None,
        "ttft_ms": None,
        "tau": None,
        "missing": "not installed",
    }
    lines = script.table(rows.values()).splitlines()
    assert len(lines) == 8
    assert "| llama.cpp | - | - | - | - | not installed |" in lines
    script.plot(list(rows.values()), tmp_path / "peers.png")
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")


def test_llama_cpp_is_missing_where_it_is_missing(peers, monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(ImportError):
        peers.LlamaCpp.load(tmp_path / "x.gguf", 256, 1, False)


def test_no_prompts_are_one_line(script, tmp_path, capsys) -> None:
    assert script.main(["--data", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("no .jsonl files here")


def test_nested_marks_become_disjoint_parts(split) -> None:
    marks = {
        "draft": 1.0,
        "packed forward": 20.0,
        "forward": 18.0,
        "linear": 9.0,
        "attention": 4.0,
        "norm": 2.0,
        "top-k": 0.5,
    }
    parts = split.split_step(marks, 24.0)
    assert tuple(parts) == split.PARTS
    assert (parts["pack"], parts["other"], parts["rest"]) == (2.0, 3.0, 2.5)
    assert sum(parts.values()) == pytest.approx(24.0)


@pytest.mark.parametrize("rows", [1, 9])
def test_real_steps_are_split(split, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setitem(
        FACTORIES, "goose", lambda shared, plan, _seed: split.FilledGoose(plan, shared.config.goose)
    )
    core = make_core(max_batch=1, prefix_reuse=False)
    sizes = []
    run = core._runner.run
    monkeypatch.setattr(
        core._runner, "run", lambda parts: sizes.append(parts[0].num_rows) or run(parts)
    )
    found = split.profile_rows(core, [9, 10, 11, 9, 10], rows, 2)
    assert set(sizes) == {5 + rows - 1, rows}
    assert found.rows == rows
    assert sum(found.parts.values()) == pytest.approx(found.step_ms)
    for part in ("pack", "linear", "attention", "norm", "top-k", "walk"):
        assert found.parts[part] > 0.0, part
    assert (found.parts["learn"] > 0.0) == (rows > 1)
    assert not core.has_work


def test_servers_take_turns_alone_and_together(servers, peers) -> None:
    log: list = []

    class Server:
        def __init__(self, name: str, setting: str, seconds: float, steps: int, shift: int = 0):
            self.name, self.setting = name, setting
            self._seconds, self._steps, self._shift = seconds, steps, shift

        def run(self, prompts, clients, max_tokens):
            log.append((self.name, self.setting, clients, len(prompts), max_tokens))
            ids = tuple(range(self._shift, self._shift + max_tokens))
            answer = peers.Answer(ids, self._seconds, 0.5, self._steps)
            return [answer] * len(prompts), self._seconds * len(prompts) / clients

    found = [
        Server("treeline off http", "", 2.0, 6),
        Server("treeline auto http", "", 1.0, 3),
        Server("llama.cpp server", "slow", 4.0, 0),
        Server("llama.cpp server", "fast", 2.0, 0, shift=1),
    ]
    loads = servers.compare_servers(found, list("abcde"), 6)
    assert [entry[2:] for entry in log[:4]] == [(1, 1, 8)] * 4
    assert [entry[:3] for entry in log[4:12]] == [
        (peer.name, peer.setting, clients) for clients in (1, 4) for peer in found
    ]
    assert [entry[3] for entry in log[4:]] == [4] * 8 + [1] * 8
    rows = {row["name"]: row for row in servers.summarise_servers(loads, {})}
    auto = rows["treeline auto http"]
    assert (auto["tokens_per_second"], auto["tau"], auto["ttft_ms"]) == (6.0, 2.0, 500.0)
    assert (auto["identical"], auto["prompts"], auto["clients"]) == (5, 5, 1)
    llama = rows["llama.cpp server, 4 clients"]
    assert (llama["setting"], llama["tokens_per_second"], llama["tau"]) == ("fast", 12.0, None)
    assert llama["identical"] == 0
    missing = servers.summarise_servers(loads, {"llama.cpp server": "not here"})
    assert [row.get("missing") for row in missing] == [None] * 4 + ["not here"] * 2


def test_what_llama_cpps_server_lacks_is_named(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    peer_servers = importlib.import_module("peer_servers")
    with (
        pytest.raises(ImportError, match="pip install starlette-context"),
        peer_servers.llama_server(tmp_path / "x.gguf", 256, 1, 0),
    ):
        pytest.fail("it must not start")


def test_scaling_on_a_tiny_model(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys) -> None:
    scaling = importlib.import_module("scaling")
    (tmp_path / "a.jsonl").write_text('{"prompt": "abab"}\n{"prompt": "xyz"}\n')
    (tmp_path / "b.jsonl").write_text('{"turns": ["qrqr"]}\n')
    assert scaling.pick_prompts(tmp_path, 5) == ["abab", "qrqr", "xyz", "abab", "qrqr"]
    bench = tiny_bench(batch=2, max_tokens=9)
    info = SimpleNamespace(is_exact=True)
    monkeypatch.setattr(scaling, "open_bench", lambda options: (bench, info, {"model": "tiny"}))
    options = ["--data", str(tmp_path), "--streams", "1,2", "--runs", "2"]
    options += ["--least", "3", "--max-tokens", "8"]
    json_file, png = tmp_path / "s.json", tmp_path / "s.png"
    assert scaling.main([*options, "--json", str(json_file), "--plot", str(png)]) == 0
    assert "2 of 2 prompts identical" in capsys.readouterr().out
    rows = json.loads(json_file.read_text())["rows"]
    assert [(row["streams"], row["method"]) for row in rows] == [
        *((1, "off"), (1, "auto"), (2, "off"), (2, "auto"))
    ]
    assert [row["tokens"] for row in rows] == [19, 19, 31, 31]  # of 3 and 4 answers
    assert [row["tau"] for row in rows if row["method"] == "off"] == [1.0, 1.0]
    assert all(0 < row["host_ms_per_step"] < row["step_ms"] for row in rows)
    assert png.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(scaling, "differing", lambda *_: 1)
    assert scaling.main(options) == 1
