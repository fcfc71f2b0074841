"""The comparison with other engines, and the profile of a step: their sums, not their speeds."""

import importlib
import sys
from pathlib import Path

import pytest

from engine.spec.registry import FACTORIES
from tests.engine.tiny import make_core

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
