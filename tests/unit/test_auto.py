"""The `auto` drafter: scores everything, learns from the past only, and never loses by design."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from engine.config import AutoConfig
from engine.spec.auto import Auto
from engine.spec.drafter import DraftLimits, Rows, StepResult
from engine.spec.planner import Planner
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

    def __init__(self, **changes) -> None:
        super().__init__(VOCAB, 10, order=10_000, **changes)


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
        shared.plan([(one, ROOMY)])
        tree = one.draft(ROOMY)
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
    ids = np.array([random.sample(range(VOCAB), 10) for _ in rows.token_ids], np.int64)
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
@pytest.mark.parametrize("believed", ["true", "assumed"])
def test_it_does_not_lose_against_plain_decoding(slope, lie, believed) -> None:
    """Whatever its sources claim, whether the cost table starts right or wrong."""
    shared = planner(slope if believed == "true" else 0.02)

    def seconds(rows: int) -> float:
        return 1.0 + slope * (rows - 1)

    history = simulate(shared, Chaos(), 500, seconds, lie)[100:]
    tokens = sum(step[0] for step in history)
    assert tokens / sum(step[1] for step in history) >= 0.98


@pytest.mark.parametrize("slope", SLOPES)
def test_it_wins_where_there_is_something_to_win(slope: float) -> None:
    shared = planner(slope)
    history = simulate(shared, Toy(VOCAB, 10, order=2), 300, lambda n: 1.0 + slope * (n - 1))
    late = history[150:]
    speed = sum(step[0] for step in late) / sum(step[1] for step in late)
    assert speed > (3.0 if slope < 0.1 else 1.5 if slope < 0.5 else 0.98)


def test_a_repetitive_text_gets_long_drafts_and_a_random_one_none() -> None:
    shared = planner(0.035)
    history = simulate(shared, Toy(VOCAB, 10, order=1), 120, lambda n: 1.0 + 0.035 * (n - 1))
    late = history[40:]
    assert sum(step[0] for step in late) / len(late) > 3
    assert sum(step[2] for step in late) / len(late) > 8
    shared = planner(0.09, explore=False)
    history = simulate(shared, Chaos(), 96, lambda n: 1.0 + 0.09 * (n - 1), random_rows)
    assert sum(step[2] for step in history[64:]) == 0


def test_the_watchdog_ends_what_the_budget_got_wrong() -> None:
    """Costs that the table refuses to learn, four tokens' worth below the truth."""
    shared = planner(cost_slope=0.0)
    guard = Planner(AutoConfig(), shared.cost)
    guard.cost.is_fixed = False
    guard.cost.observe = lambda rows, seconds: None  # type: ignore[method-assign]
    toy = Toy(VOCAB, 10, order=2)
    believed = guard.cost(1)
    history = simulate(guard, toy, 3000, lambda n: believed * (1.0 if n == 1 else 40.0))
    assert sum(step[2] for step in history[:64]) > 0
    assert sum(step[2] == 0 for step in history[-1000:]) > 500


def test_a_flat_cost_fills_the_budget() -> None:
    for budget in (7, 59):
        shared = planner(cost_slope=0.0)
        one = drafter(shared, budget=budget)
        _, results = decode(one, [3, 4, 5, 6, 3, 4], Chaos(), 40)
        sizes = [len(result.tree) - 1 for result in results]
        assert max(sizes) == budget
        assert sum(size == budget for size in sizes[10:]) > 20


def test_predicted_and_realised_tokens_agree() -> None:
    """A target that follows its second token's rule half of the time."""
    rng = random.Random(7)
    shared = planner(0.01, explore=False)
    clear = Toy(VOCAB, 10, order=1)

    class Noisy(Toy):
        def rows(self, texts: Sequence[Sequence[int]]) -> Rows:
            rows = clear.rows(texts)
            for row in rows.token_ids:
                if rng.random() < 0.4:
                    place = rng.randrange(1, 5)
                    row[0], row[place] = row[place], row[0]
            return rows

    one = drafter(shared)
    live = [3, 4, 5]
    one.begin(live)
    predicted = realised = 0.0
    for turn in range(3000):
        shared.plan([(one, ROOMY)])
        tree = one.draft(ROOMY)
        texts = [live + [tree.token_ids[i] for i in tree.path(node)] for node in range(len(tree))]
        rows = Noisy(VOCAB, 10).rows(texts)
        path, tokens = greedy_walk(tree, rows.token_ids[:, 0].tolist())
        live.extend(tokens)
        one.observe(StepResult(tree, rows, path, tokens))
        if turn >= 500:
            predicted += shared.predicted_tokens
            realised += len(tokens)
    assert predicted / realised == pytest.approx(1.0, abs=0.05)


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
    for slope in (1e6, 0.0):
        shared = planner(slope, explore=False)
        ledger = Ledger(shared)
        one = drafter(shared)
        live = list(prompt)
        one.begin(live)
        one.observe_prompt(0, toy.rows([prompt[: i + 1] for i in range(4)]))
        shared.plan([(one, ROOMY)])
        tree = one.draft(ROOMY)
        assert (len(tree) == 1) == (slope > 0)
        rows = toy.rows(
            [live + [tree.token_ids[i] for i in tree.path(node)] for node in range(len(tree))]
        )
        live.append(int(rows.token_ids[0, 0]))
        one.observe(StepResult(tree, rows, [], live[-1:]))
        told.append(sorted(ledger.told))
    assert told[0] == told[1] != []


def test_only_committed_positions_are_scored() -> None:
    """As many hits as there are positions whose token was named; none from rejected branches."""
    toy = Toy(VOCAB, 10, order=2)
    shared = planner(0.01)
    ledger = Ledger(shared)
    one = drafter(shared)
    live, results = decode(one, [3, 4, 5, 6, 3, 4], toy, 60)
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


def test_limits_are_kept_to_the_last_token() -> None:
    one = drafter(planner(cost_slope=0.0), width=3, depth=4, budget=20)
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
        one = drafter(planner(cost_slope=slope))
        _, results = decode(one, [3, 4, 5, 6, 3, 4], toy, 30)
        assert any(result.tree.num_explored_tokens for result in results) is is_bought


def test_answers_are_shared_within_a_scope_only_when_asked() -> None:
    toy = Chaos()
    gained = {}
    for scope in (None, "team"):
        shared = planner(0.01, cache_scope=scope, explore=False)
        first = drafter(shared)
        live, _ = decode(first, [3, 4, 5], toy, 40)
        first.finish()
        second = drafter(shared)
        again, results = decode(second, [3, 4, 5], toy, 10)
        assert again == live[: len(again)]
        gained[scope] = sum(len(result.new_token_ids) for result in results)
    assert gained["team"] > 2 * gained[None]
