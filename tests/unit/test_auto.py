"""The `auto` drafter: scores everything, learns from the past only, and never loses by design."""

import random
from collections.abc import Callable, Sequence
from zlib import crc32

import numpy as np
import pytest

from engine.config import AutoConfig
from engine.spec.adjacency_source import AdjacencySource
from engine.spec.auto import Auto
from engine.spec.drafter import DraftLimits, Rows, StepResult
from engine.spec.planner import PLAIN_EVERY, Planner
from engine.spec.step_cost import StepCost
from engine.spec.tree import TokenTree
from tests.unit.toy import ROOMY, Toy, assert_tree_is_sound, decode, greedy_walk, plan

VOCAB = 60
SLOPES = (0.001, 0.004, 0.035, 0.09, 0.2, 1.0)


def planner(slope: float | None = 0.02, **changes) -> Planner:
    cost = StepCost.sloped(slope or 0.0, step=1.0)
    return Planner(AutoConfig(**changes), cost)


def drafter(shared: Planner, **bounds) -> Auto:
    made = Auto(plan(**bounds), shared.config, frozenset({1}))
    made.join(shared)
    return made


class Chaos(Toy):
    """Answers that follow no rule: a row depends on the whole text."""

    def __init__(self) -> None:
        super().__init__(VOCAB, 10)

    def row(self, text: Sequence[int]) -> tuple[list[int], list[float]]:
        ids = random.Random(crc32(bytes(text))).sample(range(VOCAB), 10)
        return ids, [3.0 - 0.5 * rank for rank in range(10)]


def planned(shared: Planner, ones: Sequence[Auto]) -> list[TokenTree]:
    """The trees of one step, as the engine draws them up."""
    shared.plan([(one, lambda: ROOMY) for one in ones])
    return [one.take() or TokenTree.anchored(one._tokens[-1]) for one in ones]


def simulate(
    shared: Planner,
    toy: Toy,
    steps: int,
    seconds: Callable[[int], float],
    lie: Callable[[Rows], Rows] = lambda rows: rows,
) -> list[tuple[int, float, int]]:
    """Tokens, seconds and nodes of each step of one request. `lie` forges what a drafter sees."""
    live = [random.Random(1).randrange(2, VOCAB) for _ in range(20)]
    one = drafter(shared)
    one.begin(live)
    history = []
    for _ in range(steps):
        (tree,) = planned(shared, [one])
        assert_tree_is_sound(tree, ROOMY)
        texts = [live + [tree.token_ids[i] for i in tree.path(node)] for node in range(len(tree))]
        rows = toy.rows(texts)
        path, tokens = greedy_walk(tree, rows.token_ids[:, 0].tolist())
        live.extend(tokens)
        one.observe(StepResult(tree, lie(rows), path, tokens))
        shared.observe(len(tokens), len(tree), seconds(len(tree)), 0.0)
        history.append((len(tokens), seconds(len(tree)), len(tree) - 1))
    return history


def random_rows(rows: Rows) -> Rows:
    rng = random.Random(crc32(rows.logits.tobytes()))
    ids = np.array([rng.sample(range(VOCAB), 10) for _ in rows.token_ids], np.int64)
    return Rows(ids, rows.logits)


def second_best_rows(rows: Rows) -> Rows:
    """The truth, in a wrong place: whoever believes the first is always wrong."""
    return Rows(np.roll(rows.token_ids, 1, axis=1), rows.logits)


def ending_rows(rows: Rows) -> Rows:
    """Always an end of sequence first."""
    ids = rows.token_ids.copy()
    ids[ids == 1] = 0
    ids[:, 0] = 1
    return Rows(ids, rows.logits)


@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("lie", [random_rows, second_best_rows, ending_rows])
def test_it_does_not_lose_against_plain_decoding(slope, lie) -> None:
    """Whatever its sources claim, once it has had time to find out."""
    shared = planner(slope)

    def seconds(rows: int) -> float:
        return 1.0 + slope * (rows - 1)

    history = simulate(shared, Chaos(), 480, seconds, lie)[160:]
    tokens = sum(step[0] for step in history)
    assert tokens / sum(step[1] for step in history) >= 0.98


@pytest.mark.parametrize("slope", SLOPES)
def test_it_wins_where_there_is_something_to_win(slope: float) -> None:
    shared = planner(slope)
    history = simulate(shared, Toy(VOCAB, 10, order=2), 120, lambda n: 1.0 + slope * (n - 1))
    late = history[60:]
    speed = sum(step[0] for step in late) / sum(step[1] for step in late)
    assert speed > (3.0 if slope < 0.1 else 1.5 if slope < 0.5 else 0.98)


def test_a_repetitive_text_gets_long_drafts_and_a_random_one_none() -> None:
    shared = planner(0.035)
    history = simulate(shared, Toy(VOCAB, 10, order=1), 120, lambda n: 1.0 + 0.035 * (n - 1))
    late = history[40:]
    assert sum(step[0] for step in late) / len(late) > 3
    assert sum(step[2] for step in late) / len(late) > 8
    shared = planner(0.09, explore=False)
    history = simulate(shared, Chaos(), 256, lambda n: 1.0 + 0.09 * (n - 1), random_rows)
    assert sum(step[2] for step in history[160:]) <= 8  # of 96 steps; 60 would fit into each


def test_the_watchdog_ends_what_the_budget_got_wrong(monkeypatch) -> None:
    """A table that takes drafts for free and learns nothing, where they cost a hundredfold."""
    monkeypatch.setattr(StepCost, "observe", lambda self, rows, seconds: None)
    shared = Planner(AutoConfig(explore=False), StepCost.sloped(0.0, step=1.0))
    history = simulate(shared, Chaos(), 1000, lambda n: 1.0 if n == 1 else 100.0, random_rows)
    assert sum(step[2] > 0 for step in history[:64]) > 32
    assert sum(step[2] == 0 for step in history[-400:]) > 200


def test_a_flat_cost_fills_the_budget() -> None:
    for budget in (7, 59):
        shared = planner(cost_slope=0.0)
        one = drafter(shared, budget=budget)
        _, results = decode(one, [3, 4, 5, 6, 3, 4], Chaos(), 40)
        sizes = [len(result.tree) - 1 for result in results]
        assert max(sizes) == budget
        assert sum(size == budget for size in sizes[10:]) > 20


class Ledger:
    """What a calibrator was told."""

    def __init__(self, shared: Planner) -> None:
        self.told: list[tuple[int, bool]] = []
        observe = shared.calibrator.observe

        def record(key: int, is_hit: bool) -> None:
            self.told.append((key, is_hit))
            observe(key, is_hit)

        shared.calibrator.observe = record  # type: ignore[method-assign]


def test_every_candidate_is_scored_whether_drafted_or_not() -> None:
    """Plain steps and drafted ones tell the calibrator the same of the same positions."""
    toy = Toy(VOCAB, 10, order=1)
    prompt = [3, 4, 5, 3, 4]
    told = []
    for slope in (0.85, 0.0):
        shared = planner(slope, explore=False, watchdog=False)
        ledger = Ledger(shared)
        one = drafter(shared)
        live = list(prompt)
        one.begin(live)
        one.observe_prompt(0, toy.rows([prompt[: i + 1] for i in range(4)]))
        (tree,) = planned(shared, [one])
        assert (len(tree) == 1) == (slope > 0)
        rows = toy.rows(
            [live + [tree.token_ids[i] for i in tree.path(node)] for node in range(len(tree))]
        )
        live.append(int(rows.token_ids[0, 0]))
        one.observe(StepResult(tree, rows, [], live[-1:]))
        told.append(sorted(ledger.told))
    assert told[0] == told[1] != []


def test_nothing_is_looked_for_where_rows_are_as_dear_as_requests(monkeypatch) -> None:
    """A machine that four requests fill: alone a request drafts, in company none even looks."""
    cost = StepCost({rows: float(max(4, rows)) for rows in (1, 2, 4, 8, 16, 128)})
    shared = Planner(AutoConfig(explore=False, watchdog=False), cost)
    grown: list[int] = []
    grow = Auto.grow
    monkeypatch.setattr(Auto, "grow", lambda one, limits: grown.append(0) or grow(one, limits))
    many = [drafter(shared) for _ in range(4)]
    for one in many:
        one.begin([3, 4, 5, 3, 4])
    planned(shared, many[:1])
    assert len(grown) == 1
    assert all(len(tree) == 1 for tree in planned(shared, many))
    assert len(grown) == 1


def test_who_finds_nothing_looks_less_and_less_often() -> None:
    """Of its own accord, beside a request that finds something in every plan."""
    shared = Planner(AutoConfig(explore=False), StepCost.sloped(0.03))
    lucky, other = drafter(shared), drafter(shared)
    text = [3, 4, 5, 6] * 4
    lucky.begin(list(text))
    other.begin(list(range(10, 26)))
    shared.calibrator.observe = lambda key, is_hit: None  # type: ignore[method-assign]
    looked: dict[Auto, list[int]] = {lucky: [], other: []}
    for step in range(60):
        trees = planned(shared, [lucky, other])
        for one, tree in zip(looked, trees, strict=True):
            if one._grown is not None:
                looked[one].append(step)
                one._grown = None
                assert (len(tree) > 1) == (one is lucky)
        rows = sum(map(len, trees))
        shared.observe(rows, rows, shared.cost(rows), 0.0)  # as if all had been accepted
    assert len(looked[lucky]) >= 58  # all but plain steps
    assert looked[other][:7] == [1, 2, 4, 7, 11, 16, 22]


def test_only_committed_positions_are_scored() -> None:
    """As many hits as there are positions whose token was named; none from rejected branches."""
    toy = Toy(VOCAB, 10, order=2)
    shared = planner(0.01, watchdog=False)
    ledger = Ledger(shared)
    one = drafter(shared)
    _, results = decode(one, [3, 4, 5, 6, 3, 4], toy, 60)
    committed = sum(len(result.new_token_ids) for result in results)
    hits = sum(is_hit for _, is_hit in ledger.told)
    accepted = sum(len(result.path) for result in results)
    assert accepted <= hits <= committed


def test_drafts_depend_on_the_past_alone() -> None:
    """Same inputs, same trees; a longer future changes none of the trees before it."""

    def trees(steps: int) -> list[TokenTree]:
        results = decode(drafter(planner(0.01)), [3, 4, 5, 6, 3], Toy(VOCAB, 10), steps)[1]
        return [result.tree for result in results]

    short, long = trees(20), trees(40)
    assert [t.token_ids for t in short] == [t.token_ids for t in long[:20]]
    assert [t.parents for t in short] == [t.parents for t in long[:20]]


@pytest.mark.parametrize("explore", [False, True])
def test_limits_are_kept_to_the_last_token(explore: bool) -> None:
    one = drafter(planner(cost_slope=0.0, explore=explore), width=3, depth=4, budget=20)
    live = [3, 4, 5, 6, 3, 4]
    one.begin(live)
    toy = Toy(VOCAB, 10)
    for depth in (9, 2, 1, 0, 9, 3):
        limits = DraftLimits(width=9, depth=depth, explore_depth=depth, budget=11)
        tree = one.draft(limits)
        assert_tree_is_sound(tree, DraftLimits(3, min(depth, 4), depth, 11))
        texts = [live + [tree.token_ids[i] for i in tree.path(node)] for node in range(len(tree))]
        rows = toy.rows(texts)
        path, tokens = greedy_walk(tree, rows.token_ids[:, 0].tolist())
        live.extend(tokens)
        one.observe(StepResult(tree, rows, path, tokens))


def test_exploration_stops_where_rows_are_dear_and_runs_where_they_are_free() -> None:
    toy = Toy(VOCAB, 10, order=3)
    for slope, is_bought in ((0.0, True), (1.0, False)):
        one = drafter(planner(cost_slope=slope, explore=True))
        _, results = decode(one, [3, 4, 5, 6, 3, 4], toy, 30)
        assert any(result.tree.num_explored_tokens for result in results) is is_bought


def test_answers_are_shared_within_a_scope_only_when_asked() -> None:
    toy = Chaos()
    gained = {}
    for scope in (None, "team"):
        shared = planner(0.01, cache_scope=scope, explore=False, watchdog=False)
        first = drafter(shared)
        live, _ = decode(first, [3, 4, 5], toy, 40)
        first.finish()
        second = drafter(shared)
        again, results = decode(second, [3, 4, 5], toy, 6)
        both = min(len(again), len(live))
        assert again[:both] == live[:both]
        gained[scope] = sum(len(result.new_token_ids) for result in results)
    assert gained["team"] > 2 * gained[None]


def test_of_many_requests_two_are_scored_in_turn() -> None:
    shared = planner(0.02, watchdog=False)
    ones = [drafter(shared) for _ in range(5)]
    for one in ones:
        one.begin([2, 3, 4])
    seen: list[list[bool]] = []
    for _ in range(5):
        planned(shared, ones)
        seen.append([one.is_scored for one in ones])
    assert [sum(step) for step in seen] == [2] * 5
    assert [sum(turns) for turns in zip(*seen, strict=True)] == [2] * 5
    planned(shared, ones[:2])
    assert all(one.is_scored for one in ones[:2])


def test_a_plain_step_comes_first_and_now_and_then() -> None:
    """The watchdog compares with what plain steps take here, so there must be some."""
    shared = planner(0.001)
    one = drafter(shared)
    live = [2, 3, 4, 2, 3, 4, 2, 3]
    one.begin(live)
    sizes = []
    for _ in range(2 * PLAIN_EVERY):
        (tree,) = planned(shared, [one])
        sizes.append(len(tree))
        shared.observe(len(tree), len(tree), 1.0, 0.0)  # as if all of it had been accepted
    assert sizes[0] == 1
    assert [i for i, size in enumerate(sizes) if size == 1] == [
        0,
        PLAIN_EVERY - 1,
        2 * PLAIN_EVERY - 1,
    ]


def test_guesses_that_could_not_pay_are_not_named() -> None:
    source = AdjacencySource(3, 9)
    logits = np.array([[5.0, 4.0, 1.0]], np.float32)
    source.observe([(1, 2, 3)], Rows(np.array([[7, 8, 9]]), logits))
    for least, count in ((0.0, 3), (0.05, 2), (0.5, 1), (1.0, 1)):
        source.start((1, 2, 3), least)
        assert len(source.propose(source.anchor())[1]) == count


def test_a_plain_step_reads_no_rows() -> None:
    """Where nothing is looked for nothing is learned, so nothing need be read."""
    cost = StepCost({rows: float(max(4, rows)) for rows in (1, 2, 4, 8, 16, 128)})
    shared = Planner(AutoConfig(explore=False, watchdog=False), cost)
    many = [drafter(shared) for _ in range(4)]
    for one in many:
        one.begin([3, 4, 5, 3, 4])
    planned(shared, many)
    assert all(one.needs.top_k == 0 for one in many)
    planned(shared, many[:1])
    assert many[0].needs.top_k == shared.config.width
