"""The bench: what it reads, what it makes of trials, and replay against the real engine."""

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.bench.arm import Arm, arms
from engine.bench.bench import Bench
from engine.bench.measure import measure
from engine.bench.plots import plot, plot_replay
from engine.bench.prompts import read_prompts, read_suites
from engine.bench.recorder import record
from engine.bench.reliability import Reliability
from engine.bench.replay import replay
from engine.bench.replayer import NOT_REPLAYED, Replayer, restricted
from engine.bench.row import Row, summarise
from engine.bench.table import replay_table, table
from engine.bench.trace import TOP_K, Recording
from engine.bench.trial import Trial, median_trial
from engine.config import (
    METHODS,
    EngineConfig,
    ModelConfig,
    ModelSource,
    RestConfig,
    SpeculationConfig,
)
from engine.errors import ConfigError
from engine.spec.calibrator import Calibrator
from engine.spec.tree import EXPLORE, TokenTree
from engine.types import SamplingParams, SpecStats, StepOutputs
from server.cli import main
from tests.engine.tiny import EOS, make_core

SPECULATION = SpeculationConfig()
PROMPTS = {
    "echo": ["the cat sat on the mat, the cat sat on the hat", "abcabcabcabcabc"],
    "other": ["one two three one two three one two"],
}


class ByteTokenizer:
    """Characters as tokens of the tiny model."""

    has_chat_template = False

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [8 + byte for byte in text.encode()]


def tiny_bench(batch: int = 1, max_tokens: int = 24) -> Bench:
    core = make_core(max_batch=batch, prefix_reuse=False)
    config = EngineConfig(ModelConfig("tiny", ModelSource(path=Path("tiny"))))
    params = SamplingParams(max_tokens, seed=0, temperature=0.0, ignore_eos=True)
    return Bench(config, core, ByteTokenizer(), params, frozenset({EOS}))


@pytest.fixture(scope="module")
def recording() -> Recording:
    plain = Arm("off", SPECULATION.resolve("off"))
    traces = record(tiny_bench(max_tokens=40), plain, PROMPTS)
    return Recording(tuple(traces), frozenset({EOS}), {"model": "tiny"})


def options(**given) -> Namespace:
    config = Namespace(speculation=SPECULATION)
    return Namespace(
        **{"config": config, "suites": None, "limit": None, "max_tokens": None, "slope": [0.05]}
        | given
    )


# Prompts


def test_prompts_of_jsonl_are_first_turns_or_prompts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"turns": ["one", "x"], "prompt": "no"}\n\n{"prompt": "two"}\n{"prompt": "3"}')
    assert read_prompts(path, 2) == ["one", "two"]
    assert read_prompts(path, 9) == ["one", "two", "3"]


def test_prompts_of_text_are_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("first \n\n {not json}\nthird\u2028still third\n")
    assert read_prompts(path, 9) == ["first", "{not json}", "third\u2028still third"]


@pytest.mark.parametrize("line", ["{", "[1]", "{}", '{"turns": 3}', "7"])
def test_a_row_without_a_prompt_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "x"}\n' + line)
    with pytest.raises(ConfigError, match=r"a\.jsonl:2: no prompt here"):
        read_prompts(path, 9)


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n \n")
    with pytest.raises(ConfigError, match="no prompts here"):
        read_prompts(tmp_path / "a.txt", 9)
    with pytest.raises(ConfigError, match="No such file"):
        read_prompts(tmp_path / "b.txt", 9)


def test_suites_come_from_the_folder_and_from_own_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "x"}')
    (tmp_path / "own.txt").write_text("y\nz\n")
    given = Namespace(data=tmp_path, suites=["a"], prompts=[tmp_path / "own.txt"], limit=1)
    assert read_suites(given) == {"a": ["x"], "own": ["y"]}
    given.prompts = [tmp_path / "a.jsonl"]
    with pytest.raises(ConfigError, match="there is a suite a already"):
        read_suites(given)


@pytest.mark.parametrize("name", ["code", "maths", "chat", "editing", "summarising"])
def test_shipped_prompts_are_valid(name: str) -> None:
    path = Path(__file__).parents[2] / "scripts" / "prompts" / f"{name}.jsonl"
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert 8 <= len(rows) <= 10
    assert len({row["id"] for row in rows}) == len({row["turns"][0] for row in rows}) == len(rows)
    for row in rows:
        assert set(row) == {"id", "task", "category", "turns"}
        assert row["task"] == name
        assert 40 < len(row["turns"][0]) < 3000
    assert read_prompts(path, 99) == [row["turns"][0] for row in rows]


# Arms and rows


def test_a_sweep_is_every_combination_under_its_bounds() -> None:
    found = arms(SPECULATION, ["goose", "off", "ptd"], {"width": [1, 2], "budget": [8]})
    labels = [arm.label for arm in found]
    assert labels == ["off", "goose w1 b8", "goose w2 b8", "ptd w1 b8", "ptd w2 b8"]
    assert (found[2].plan.width, found[2].plan.budget, found[2].plan.base_budget) == (2, 8, 8)
    assert [arm.label for arm in arms(SPECULATION, ["goose"], {})] == ["off", "goose"]


def test_a_sweep_beyond_the_yaml_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--sweep: speculation\.budget must be between 1 and"):
        arms(SPECULATION, ["goose"], {"budget": [100_000]})


def trial(seconds: float, tokens: tuple[int, ...] = (1, 2, 3), steps: int = 3, **more) -> Trial:
    stats = SpecStats(
        steps=steps, drafts=1, draft_tokens=8, explored_tokens=4, hit_tokens=2, tokens=len(tokens)
    )
    return Trial((tokens,), stats, seconds, seconds / 2, steps, **more)


def test_the_median_is_a_trial_that_happened() -> None:
    fast, middle, slow = trial(1.0), trial(2.0), trial(9.0)
    assert median_trial([slow, fast, middle]) is middle
    assert median_trial([slow, middle]) is middle
    assert median_trial([slow]) is slow


def test_a_row_sums_groups_and_compares_every_run() -> None:
    arm = Arm("goose w2", SPECULATION.resolve("goose", width=2))
    plain = [[trial(4.0)], [trial(2.0)]]
    again = trial(1.0, (1, 2, 4), steps=2)
    priced = trial(1.0, steps=2, predicted_tokens=4.5, realised_tokens=3)
    groups = [[priced, again, again], [trial(1.0, steps=2)]]
    row = summarise("code", arm, groups, plain)
    assert (row.suite, row.method, row.width) == ("code", "goose w2", 2)
    assert (row.prompts, row.tokens, row.steps, row.tau) == (2, 6, 4, 1.5)
    assert (row.hit_rate, row.accept_length) == (0.5, 2.0)
    assert (row.draft_nodes, row.verify_nodes) == (2.0, 4.0)
    assert (row.tokens_per_second, row.speedup) == (3.0, 3.0)
    assert (row.host_ms_per_step, row.forward_ms_per_step) == (250.0, 250.0)
    assert row.identical == 1  # of the first prompt, one run of three differs
    assert "goose w2" in table([row])
    assert row.predicted is None
    assert summarise("code", arm, [[priced]], plain[:1]).predicted == 1.5


def test_measuring_interleaves_and_compares() -> None:
    compared = arms(SPECULATION, ["goose", "auto"], {"width": [2]})
    rows = measure(tiny_bench(batch=2), compared, PROMPTS, batch=2, num_runs=2)
    assert [(row.suite, row.method) for row in rows] == [
        (suite, arm.label) for suite in PROMPTS for arm in compared
    ]
    for row in rows:
        assert row.identical == row.prompts == len(PROMPTS[row.suite])
        assert row.tokens == 24 * row.prompts
        assert row.tau == row.tokens / row.steps >= 1.0
    assert rows[0].tau == rows[0].speedup == 1.0
    assert rows[1].tau > 1.0


def test_streams_bound_how_many_run_and_change_no_token() -> None:
    bench = tiny_bench(batch=4, max_tokens=8)
    arm = Arm("off", bench._config.speculation.resolve("off"))
    prompts = ["abab", "xyz", "hello", "qr", "aaaa"]
    together = bench.run(arm, prompts, bench.fresh(arm))
    running: list[int] = []
    step = bench.core.step

    def watched() -> StepOutputs:
        running.append(bench.core.num_running + bench.core.num_waiting)
        return step()

    bench.core.step = watched  # type: ignore[method-assign]
    apart = bench.run(arm, prompts, bench.fresh(arm), streams=2)
    assert apart.token_ids == together.token_ids
    assert max(running) == 2


def test_plots_are_written(tmp_path: Path) -> None:
    compared = arms(SPECULATION, ["goose"], {"width": [1, 3]})
    rows = [summarise("a", arm, [[trial(1.0)]], [[trial(1.0)]]) for arm in compared]
    paths = plot(rows, tmp_path / "new")
    names = ["speedup", "tau", "throughput", "step_time", "sweep_width"]
    assert [path.stem for path in paths] == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


# Recorded text


def test_a_trace_holds_the_text_and_its_rows(recording: Recording) -> None:
    for trace in recording.traces:
        first = len(trace.prompt_token_ids) - 1
        assert len(trace.token_ids) == trace.max_tokens == 40
        assert trace.rows.token_ids.shape == (first + 40, TOP_K)
        assert tuple(trace.rows.token_ids[first:, 0]) == trace.token_ids
        shares = np.exp(trace.rows.logits)
        assert np.all(np.diff(shares, axis=1) <= 0)
        assert np.all(shares.sum(axis=1) < 1.0001)


def test_a_recording_survives_the_disk(recording: Recording, tmp_path: Path) -> None:
    recording.save(tmp_path / "r.npz")
    loaded = Recording.load(tmp_path / "r.npz")
    assert (loaded.fingerprint, loaded.eos_token_ids) == ({"model": "tiny"}, {EOS})
    for before, after in zip(recording.traces, loaded.traces, strict=True):
        assert before.suite == after.suite
        assert before.prompt_token_ids == after.prompt_token_ids
        assert before.token_ids == after.token_ids
        assert np.array_equal(before.rows.token_ids, after.rows.token_ids)
        assert np.array_equal(before.rows.logits, after.rows.logits)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"hello", None])
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "r.npz"
    if content is None:
        np.savez(path, a=np.arange(3))
    else:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"r\.npz: not a recording"):
        Recording.load(path)


def test_only_known_nodes_are_left_and_keep_their_places() -> None:
    tree = TokenTree.anchored(5)
    first, second = tree.add(0, 10), tree.add(0, 11)
    tree.add(first, 12)
    tree.add(second, 13)
    last = tree.add(second, 14)
    tree.add(last, 15)
    known, depths = restricted(tree, [second, last])
    assert known.token_ids == [5, 11, 11, 11, 11, 14]
    assert known.parents == [-1, 0, 0, 0, 0, second]
    assert known.kinds == [0, EXPLORE, 0, EXPLORE, EXPLORE, 0]
    assert depths == [0, 1, 1, 1, 1, 2]
    alone, depths = restricted(tree, [])
    assert (alone.token_ids, depths) == ([5], [0])


@pytest.mark.parametrize("method", ["off", "prompt_lookup", "suffix"])
def test_replay_of_a_method_that_reads_no_rows_is_the_engine(
    recording: Recording, method: str
) -> None:
    arm = Arm(method, SPECULATION.resolve(method))
    bench = tiny_bench(max_tokens=40)
    replayer = Replayer(arm, SPECULATION, 0.1, recording)
    prompts = [prompt for suite in PROMPTS.values() for prompt in suite]
    total = SpecStats()
    for prompt, trace in zip(prompts, recording.traces, strict=True):
        real = bench.run(arm, [prompt], bench.fresh(arm))
        assert real.token_ids[0] == trace.token_ids
        replayed = replayer.replay(trace).stats
        for name in ("steps", "drafts", "draft_tokens", "accepted_tokens", "hit_tokens", "tokens"):
            assert getattr(replayed, name) == getattr(real.stats, name), name
        total += replayed
    assert (total.accepted_tokens > 0) == (method != "off")


def test_replay_prices_steps(recording: Recording) -> None:
    compared = arms(SPECULATION, ["goose", "auto"], {})
    rows = replay(recording, compared, options(slope=[0.0, 0.5]))
    assert [(row.suite, row.slope) for row in rows[::3]] == [
        (suite, slope) for suite in ("echo", "other", "all") for slope in (0.0, 0.5)
    ]
    for row in rows:
        cost = row.steps * (1 + row.slope * row.verify_nodes)
        assert row.speedup == pytest.approx(row.tokens / cost)
        assert row.tokens == 40 * row.prompts
        assert (row.predicted is not None) == (row.method == "auto")
    every = {(row.method, row.slope): row for row in rows if row.suite == "all"}
    assert every["off", 0.5].tau == every["off", 0.5].speedup == 1.0
    assert every["goose", 0.0].tau == every["goose", 0.5].tau > 1.0
    assert every["auto", 0.0].tau > 1.0
    assert every["auto", 0.5].verify_nodes < every["auto", 0.0].verify_nodes
    assert every["auto", 0.5].speedup > every["goose", 0.5].speedup
    assert "auto" in replay_table(rows)


def test_reliability_bins_what_was_said_before_the_truth(tmp_path: Path) -> None:
    reliability = Reliability()
    calibrator = Calibrator([[0.0] * 4 + [0.5, 0.95]], weight=1.0)
    reliability.watch(calibrator)
    for key, is_hit in ((4, True), (5, True), (5, False)):
        calibrator.observe(key, is_hit)
    assert calibrator.probability(4) > 0.5
    assert sum(reliability.trials) == 3
    first, *_, last = reliability.points()
    assert first == (0.5, 1.0, 1)
    assert last[0] >= 0.95
    reliability.add(1.0, True)
    assert reliability.trials[-1] == 3


def test_a_replay_is_drawn(recording: Recording, tmp_path: Path) -> None:
    reliability = Reliability()
    rows = replay(recording, arms(SPECULATION, ["auto"], {}), options(slope=[0, 1]), reliability)
    paths = plot_replay(rows, reliability, tmp_path)
    assert [path.stem for path in paths] == ["replay", "calibration"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert [p.stem for p in plot_replay(rows, Reliability(), tmp_path)] == ["replay"]


def test_replay_takes_a_part(recording: Recording) -> None:
    compared = arms(SPECULATION, ["goose"], {})
    rows = replay(recording, compared, options(suites=["echo"], limit=1, max_tokens=8))
    assert [(row.suite, row.prompts, row.tokens) for row in rows] == [("echo", 1, 8)] * 2
    with pytest.raises(ConfigError, match="--suites: no was not recorded; there are echo, other"):
        replay(recording, compared, options(suites=["no"]))


@pytest.mark.parametrize("method", METHODS)
def test_what_cannot_be_replayed_says_so(recording: Recording, method: str) -> None:
    stored = replace(SPECULATION, rest=RestConfig(datastore=Path("store.safetensors")))
    compared = arms(stored, [method], {})
    if method not in NOT_REPLAYED:
        assert len(replay(recording, compared, options())) == 3 * len(compared)
        return
    with pytest.raises(ConfigError, match=f"{method} cannot be replayed: "):
        replay(recording, compared, options())


# The command line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--replay", "x.npz"], "--replay and --slope go together"),
        (["--replay", "x.npz", "--slope", ".1"], "x.npz: No such file or directory"),
        (["--replay", "x", "--slope", "1", "--raw"], "--raw does not go with --replay"),
        (["--record", "x.npz", "--runs", "2"], "--runs does not go with --record"),
        (["--data", "."], "the following arguments are required: --suites; "),
        (["--prompts", "no.txt"], "no.txt: No such file or directory"),
        (["--prompts", "a", "--sweep", "width=2", "width=3"], "--sweep: an axis is named twice"),
        (["--prompts", "a", "--sweep", "budget=9999"], "--sweep: speculation.budget must be "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_go_together_is_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"treeline: {line}")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--sweep", "height=1"],
        ["--sweep", "width=0"],
        ["--sweep", "width"],
        ["--slope", "-1"],
        ["--slope", "x"],
        ["--sampled", "0,1"],
        ["--sampled", "0.8"],
        ["--batch", "0"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_read_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", *arguments])
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"treeline: argument {arguments[0]}: ")


def test_rows_name_all_that_the_result_promises() -> None:
    promised = (
        "suite method prompts tokens steps tau hit_rate accept_length draft_nodes verify_nodes "
        "tokens_per_second speedup host_ms_per_step identical"
    )
    names = list(Row.__dataclass_fields__)
    assert " ".join(names).startswith(promised)
