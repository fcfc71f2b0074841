"""PTD through the drafter protocol, on toy models."""

import itertools
import random
from dataclasses import replace

import pytest

from engine.config import PtdConfig
from engine.spec.drafter import DraftLimits, Needs, StepResult
from engine.spec.ptd import Ptd
from engine.spec.tree import EXPLORE, TokenTree
from tests.unit.toy_tree import (
    LIMITS,
    generate,
    greedy,
    last_token_model,
    plan,
    rows_of,
    step,
    texture_model,
)

PAPER = PtdConfig()
EXTENSIONS = {
    "pool_every_step": True,
    "pool_from_text": True,
    "rekey_verified": True,
    "longest_key": 2,
    "refresh": True,
    "realign": True,
    "rare_seeds": True,
}
VARIANTS = [
    PAPER,
    *(replace(PAPER, **{name: value}) for name, value in EXTENSIONS.items()),
    replace(PAPER, **EXTENSIONS),
]
NAMES = ["paper", *EXTENSIONS, "all"]
PROMPT = random.Random(1).choices(range(40), k=60)


def ptd(config: PtdConfig = PAPER, seed: int = 7, eos: frozenset[int] = frozenset(), **bounds):
    return Ptd(plan(**bounds), config, seed, eos)


def begun(tokens: list[int], config: PtdConfig = PAPER, **kwargs) -> Ptd:
    drafter = ptd(config, **kwargs)
    drafter.begin(tokens)
    return drafter


def verified(tree: TokenTree) -> set[tuple[int, ...]]:
    """The candidates' paths, as tokens."""
    return {
        tuple(tree.token_ids[index] for index in tree.path(node))
        for node in range(1, len(tree))
        if tree.kinds[node] != EXPLORE
    }


def tell(drafter: Ptd, tokens: list[int], tree: TokenTree, top: list[int], new: list[int]) -> None:
    """Commit `new` and let the drafter see `top`, one answer per row of `tree`."""
    tokens.extend(new)
    path, node = [], 0
    for token_id in new[:-1]:
        node = tree.child_of[node, token_id]
        path.append(node)
    drafter.observe(StepResult(tree, rows_of(top), path, new))


def test_it_reads_the_top_token_of_each_row() -> None:
    assert ptd().needs == Needs(top_k=1)


@pytest.mark.parametrize("config", VARIANTS, ids=NAMES)
@pytest.mark.parametrize("model", [last_token_model(), texture_model()], ids=["cycle", "texture"])
def test_texts_are_the_same_as_without_drafting_and_come_faster(config: PtdConfig, model) -> None:
    prompt = [token_id % 40 for token_id in PROMPT]
    text, stats = generate(ptd(config), prompt, model, 300)
    assert text == greedy(model, prompt, len(text))
    assert stats.tau > 1.3
    assert stats.tau == pytest.approx(
        stats.hit_rate * stats.accept_length + 1 - stats.hit_rate, abs=1e-9
    )
    assert stats.tokens == stats.steps + stats.accepted_tokens == len(text)


def test_the_first_tree_is_two_short_chains_of_prompt_tokens() -> None:
    sizes = set()
    for seed in range(40):
        tree = begun(PROMPT, seed=seed).draft(LIMITS)
        assert tree.num_draft_tokens == 0
        assert set(tree.token_ids) <= set(PROMPT)
        spine = tree.token_ids[1:3]
        assert tree.parents[1:3] == [0, 1]
        assert len(set(spine)) == 2
        assert all(parent in (1, 2) for parent in tree.parents[3:])
        sizes.add(len(tree) - 1)
    assert sizes == {2, 3, 4}


@pytest.mark.parametrize("prompt", [[5], [5, 5, 5], [1], [1, 5, 1]])
def test_prompts_with_few_distinct_tokens_work(prompt: list[int]) -> None:
    model = last_token_model()
    drafter = ptd(eos=frozenset({1}))
    text, _ = generate(drafter, prompt, model, 40)
    assert text == greedy(model, prompt, len(text))


def test_trees_depend_on_the_seed_and_on_no_global_generator() -> None:
    def trees(seed: int) -> list[list[int]]:
        tokens, model = list(PROMPT), texture_model()
        drafter = begun(tokens, seed=seed)
        return [step(drafter, tokens, model).tree.token_ids for _ in range(20)]

    random.seed(1)
    first, state = trees(7), random.getstate()
    assert random.getstate() == state
    random.seed(2)
    assert trees(7) == first
    assert trees(8)[0] != first[0]


def test_beginning_again_forgets_everything() -> None:
    tokens, model = list(PROMPT), last_token_model()
    drafter = begun(tokens)
    first = drafter.draft(LIMITS)
    for _ in range(30):
        step(drafter, tokens, model)
    drafter.begin(list(PROMPT))
    assert drafter.draft(LIMITS) == first


def test_the_pool_waits_for_the_trees_full_depth_unless_told_not_to() -> None:
    def first_hit(config: PtdConfig) -> int:
        tokens = list(PROMPT)
        drafter = begun(tokens, config)
        for index in itertools.count():
            if step(drafter, tokens, lambda _: 3).tree.num_draft_tokens:
                return index
        raise AssertionError

    assert first_hit(replace(PAPER, pool_every_step=True)) < 4 < first_hit(PAPER)


def test_paths_of_a_last_token_model_are_its_trajectories() -> None:
    model = last_token_model(vocab=200)
    tokens = list(PROMPT)
    drafter = begun(tokens)
    for index in range(40):
        tree = step(drafter, tokens, model).tree
        if index < 12:
            continue
        for node in range(1, len(tree)):
            parent = tree.parents[node]
            on_spine = tree.kinds[node] == EXPLORE and (
                parent == 0 or tree.depths[node] == node - tree.num_draft_tokens
            )
            if not on_spine:
                assert tree.token_ids[node] == model([tree.token_ids[parent]])


def test_candidates_are_continuations_of_the_last_token_only() -> None:
    model = last_token_model()
    tokens = list(PROMPT)
    drafter = begun(tokens)
    first = drafter.draft(LIMITS)
    seeds = {
        (first.token_ids[parent], token_id)
        for parent, token_id in zip(first.parents, first.token_ids, strict=True)
    }
    hits = 0
    for _ in range(60):
        result = step(drafter, tokens, model)
        for path in verified(result.tree):
            hits += 1
            full = [result.tree.token_ids[0], *path]
            pairs = itertools.pairwise(full)
            assert all(model([a]) == b or (a, b) in seeds for a, b in pairs)
    assert hits > 50


@pytest.mark.parametrize("length", range(1, 9))
def test_a_pool_that_knows_the_future_gives_its_depth_and_one_more(length: int) -> None:
    model, tokens = texture_model(), list(PROMPT)
    drafter = begun(tokens)
    drafter._pool.insert(tokens[-1], greedy(model, tokens, length))
    drafter._pool.insert(tokens[-1], [39, 39, 39])
    result = step(drafter, tokens, model)
    assert len(result.new_token_ids) == min(length, LIMITS.depth) + 1


def test_a_pool_that_is_wrong_costs_nothing_but_rows() -> None:
    tokens = list(PROMPT)
    drafter = begun(tokens)
    for wrong in range(4, 20):
        drafter._pool.insert(tokens[-1], [wrong, 1, 2])
    assert step(drafter, tokens, lambda _: 3).new_token_ids == [3]


def test_a_drafted_tree_is_a_snapshot() -> None:
    tokens = list(PROMPT)
    drafter = begun(tokens)
    drafter._pool.insert(tokens[-1], [1, 2])
    tree = drafter.draft(LIMITS)
    before = list(tree.token_ids)
    drafter._pool.insert(tokens[-1], [8, 9])
    assert tree.token_ids == before


def test_the_best_candidates_are_the_newest_and_the_shallowest() -> None:
    tokens = list(PROMPT)
    drafter = begun(tokens)
    for path in ([1, 2, 3], [4, 5], [6, 7]):
        drafter._pool.insert(tokens[-1], path)
    expected = [{(6,)}, {(4,), (6, 7)}, {(1,), (4, 5)}, {(1, 2)}, {(1, 2, 3)}]
    every = set().union(*expected)
    for room in range(8):
        config = replace(PAPER, max_candidates=max(1, room))
        drafter._config = config
        found = verified(drafter.draft(LIMITS))
        assert len(found) == min(len(every), max(1, room))
        complete = 0
        for group in expected:
            complete += len(group)
            if complete <= len(found):
                assert group <= found
        assert all(path[:-1] in found for path in found if len(path) > 1)


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 8, 13, 24, 40, 128])
@pytest.mark.parametrize("width", [1, 4, 10])
def test_every_budget_is_kept_and_still_drafts(budget: int, width: int) -> None:
    model, tokens = last_token_model(vocab=8), [token_id % 8 for token_id in PROMPT]
    drafter = begun(tokens, width=width, depth=32, budget=budget)
    limits = DraftLimits(width, 32, 100, budget)
    accepted = sum(len(step(drafter, tokens, model, limits).path) for _ in range(60))
    assert accepted > 0 or budget == 1


def test_a_tight_budget_leaves_half_to_the_draft_tree() -> None:
    tokens = list(PROMPT)
    drafter = begun(tokens)
    for _ in range(12):
        step(drafter, tokens, texture_model())
    for wrong in range(50):
        drafter._pool.insert(tokens[-1], [wrong])
    tree = drafter.draft(replace(LIMITS, budget=20))
    assert (tree.num_draft_tokens, tree.num_explored_tokens) == (10, 10)


def test_rows_that_were_not_computed_leave_their_nodes_as_they_are() -> None:
    model, tokens = texture_model(), list(PROMPT)
    drafter = begun(tokens)
    for _ in range(12):
        step(drafter, tokens, model)
    before = list(drafter._draft_tree)
    tree = drafter.draft(replace(LIMITS, explore_depth=0))
    assert tree.num_explored_tokens == 0
    tell(drafter, tokens, tree, [3] * len(tree), [3])
    assert list(drafter._draft_tree) == before


def test_nothing_is_drafted_for_the_last_token() -> None:
    tokens = list(PROMPT)
    drafter = begun(tokens)
    drafter._pool.insert(tokens[-1], [1])
    tree = drafter.draft(replace(LIMITS, depth=0))
    assert len(tree) == 1
    tell(drafter, tokens, tree, [3], [3])
    assert len(drafter.draft(LIMITS)) > 1


def test_drafting_twice_in_a_row_changes_nothing() -> None:
    model, tokens = texture_model(), list(PROMPT)
    drafter = begun(tokens)
    for _ in range(20):
        step(drafter, tokens, model)
        assert drafter.draft(LIMITS) == drafter.draft(LIMITS)


def test_no_tree_holds_an_end_of_sequence() -> None:
    model, tokens = texture_model(vocab=12), [token_id % 12 for token_id in PROMPT]
    drafter = begun(tokens, eos=frozenset({2, 5}))
    was_empty = False
    for _ in range(60):
        tree = step(drafter, tokens, model).tree
        explored = tree.token_ids[1 + tree.num_draft_tokens :]
        was_empty |= not explored
        assert not {2, 5} & set(explored)
    assert was_empty, "the text leads through ends often enough to empty the tree"
    assert any(step(drafter, tokens, lambda _: 3).tree.num_explored_tokens for _ in range(3))


def test_each_verified_node_gets_its_answer_but_not_the_root() -> None:
    for rekey in (False, True):
        tokens = [*PROMPT, 30]
        drafter = begun(tokens, replace(PAPER, rekey_verified=rekey))
        drafter._pool.insert(30, [1, 2])
        tree = drafter.draft(LIMITS)
        answers = [31, 32, 33, *[0] * tree.num_explored_tokens]
        tell(drafter, tokens, tree, answers, [31])
        below = {1: {2: {33: {}}, 32: {}}}
        assert drafter._pool.lookup(30) == (below | {31: {}} if rekey else below)
        assert drafter._pool.lookup(1) == (below[1] if rekey else {})
        assert drafter._pool.lookup(2) == ({33: {}} if rekey else {})


def test_a_confirmed_candidate_becomes_the_newest_with_refresh() -> None:
    for refresh in (False, True):
        tokens = [*PROMPT, 30]
        drafter = begun(tokens, replace(PAPER, rekey_verified=True, refresh=refresh))
        for first in (1, 2, 3):
            drafter._pool.insert(30, [first])
        tree = drafter.draft(LIMITS)
        tell(drafter, tokens, tree, [1, *[0] * (len(tree) - 1)], [1, 0])
        assert list(drafter._pool.lookup(30)) == ([2, 3, 1] if refresh else [1, 2, 3])


def test_text_feeds_the_pool_from_the_prompt_on() -> None:
    config = replace(PAPER, pool_from_text=True, text_continuation=2)
    tokens = [1, 2, 3, 4, 1]
    drafter = begun(tokens, config)
    tree = drafter.draft(LIMITS)
    assert verified(tree) == {(2,), (2, 3)}
    tell(drafter, tokens, tree, [9, *[0] * (len(tree) - 1)], [9])
    assert set(drafter._pool.lookup(1)) == {2, 9}
    assert drafter._pool.lookup(4) == {1: {9: {}}}


def test_a_long_prompt_feeds_no_more_than_the_pool_holds() -> None:
    config = replace(PAPER, pool_from_text=True, pool_keys=20)
    tokens = list(range(1000))
    drafter = begun(tokens, config)
    assert len(drafter._pool) == 20
    assert drafter._pool.lookup(998) == {999: {}}


def test_two_tokens_are_looked_up_before_one() -> None:
    config = replace(PAPER, pool_from_text=True, longest_key=2, text_continuation=1)
    text = [1, 5, 2, 3, 5, 4, 6, 1, 5]
    assert verified(begun(list(text), config).draft(LIMITS)) == {(2,)}
    assert verified(begun([*text, 8, 5], config).draft(LIMITS)) == {(2,), (4,), (8,)}


def test_rare_seeds_are_the_prompts_rarest_tokens_and_what_follows_them() -> None:
    prompt = [1, 2, 1, 2, 8, 1, 9, 2, 1]
    tree = begun(prompt, replace(PAPER, rare_seeds=True), eos=frozenset({2})).draft(LIMITS)
    chains = {
        tuple(tree.token_ids[index] for index in tree.path(node))[-2:]
        for node in range(1, len(tree))
    }
    assert {(8, 1), (9, 1)} <= chains
    assert set(tree.token_ids[1:3]) == {8, 9}


def test_realigned_spines_never_repeat_what_was_just_committed() -> None:
    tokens = list(PROMPT)
    drafter = begun(tokens, replace(PAPER, realign=True, rare_seeds=True), width=2)
    tree = drafter.draft(LIMITS)
    spine = tree.token_ids[1]
    tell(drafter, tokens, tree, [spine, *[5] * (len(tree) - 1)], [spine])
    assert spine not in drafter._draft_tree.spine
