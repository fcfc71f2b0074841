"""Self-Draft through the drafter protocol: its branches' shape, its n-grams, its text."""

import random

import pytest

from engine.config import SelfDraftConfig
from engine.spec.drafter import DraftLimits, Needs
from engine.spec.self_draft import SelfDraft
from engine.spec.tree import EXPLORE, TokenTree
from tests.unit.toy_tree import (
    LIMITS,
    generate,
    greedy,
    last_token_model,
    plan,
    step,
    texture_model,
)

CONFIG = SelfDraftConfig()
B, LEVELS = CONFIG.branches, CONFIG.branch_len - 2
PROMPT = random.Random(1).choices(range(40), k=60)


def begun(tokens: list[int], config: SelfDraftConfig = CONFIG, seed: int = 7, **bounds):
    drafter = SelfDraft(plan("self_draft", **bounds), config, seed)
    drafter.begin(tokens)
    return drafter


def grown(tokens: list[int], model, **kwargs) -> SelfDraft:
    drafter = begun(tokens, **kwargs)
    for _ in range(LEVELS):
        step(drafter, tokens, model)
    return drafter


def explored(tree: TokenTree) -> list[int]:
    return [node for node in range(len(tree)) if tree.kinds[node] == EXPLORE]


def chains(tree: TokenTree) -> list[list[int]]:
    """The tokens of each branch, prefix first."""
    found: list[list[int]] = []
    for node in explored(tree):
        if tree.parents[node] == 0:
            found.append([])
        found[-1].append(tree.token_ids[node])
    return found


def test_it_reads_the_top_token_of_each_row() -> None:
    assert begun(PROMPT).needs == Needs(top_k=1)


@pytest.mark.parametrize("model", [last_token_model(), texture_model()], ids=["cycle", "texture"])
def test_texts_are_the_same_as_without_drafting_and_come_faster(model) -> None:
    text, stats = generate(SelfDraft(plan("self_draft"), CONFIG, 7), PROMPT, model, 200)
    assert text == greedy(model, PROMPT, len(text))
    assert stats.tau > 1.2


@pytest.mark.parametrize("branches", [1, 2, 6])
def test_every_warm_up_step_consumes_one_prefix_and_adds_a_level(branches: int) -> None:
    tokens, model = list(PROMPT), texture_model()
    drafter = begun(tokens, SelfDraftConfig(branches=branches))
    for filled in range(LEVELS):
        tree = step(drafter, tokens, model).tree
        assert tree.num_draft_tokens == 0
        prefixes = branches + LEVELS - 1 - filled
        assert len(chains(tree)) == prefixes + (filled > 0)
        if filled:
            assert len(chains(tree)[0]) == filled
        else:
            assert [len(chain) for chain in chains(tree)][:LEVELS] == [1] * LEVELS
    lengths = [len(chain) for chain in chains(drafter.draft(LIMITS))]
    assert lengths[0] == LEVELS
    assert len(lengths) == branches
    assert all(LEVELS + 1 <= length <= LEVELS + 2 for length in lengths[1:])


def test_rows_are_levels_and_prefixes() -> None:
    tokens = list(PROMPT)
    drafter = grown(tokens, texture_model())
    for _ in range(10):
        prefixes = sum(len(branch.prefix) for branch in drafter._branches)
        assert B - 1 <= prefixes <= 2 * (B - 1)
        assert len(explored(step(drafter, tokens, texture_model()).tree)) == 24 + prefixes


def test_each_branch_sees_its_own_chain_only() -> None:
    tokens = list(PROMPT)
    tree = grown(tokens, texture_model()).draft(LIMITS)
    mask = tree.ancestor_mask()
    start = 1 + tree.num_draft_tokens
    for chain in chains(tree):
        for offset in range(len(chain)):
            visible = {0, *range(start, start + offset + 1)}
            assert {int(seen) for seen in mask[start + offset].nonzero()[0]} == visible
            assert tree.depths[start + offset] == 1 + offset
        start += len(chain)


def test_branch_0_becomes_the_models_own_continuation() -> None:
    """A text of one token per step is what the branch expects: it then predicts that text."""
    tokens, model = [3] * 20, lambda tokens: min(49, len(tokens))
    drafter = grown(tokens, model)
    for index in range(10):
        drafter._pool._lists.clear()  # nothing to accept: one token per step
        if index >= LEVELS:
            assert chains(drafter.draft(LIMITS))[0] == greedy(model, tokens, LEVELS)
        step(drafter, tokens, model)


def test_branches_slide_through_their_prefixes() -> None:
    tokens, model = list(PROMPT), texture_model()
    drafter = grown(tokens, model)
    for _ in range(10):
        before = [(list(branch.prefix), list(branch.levels)) for branch in drafter._branches]
        step(drafter, tokens, model)
        for (prefix, levels), branch in zip(before, drafter._branches, strict=True):
            assert branch.prefix == (prefix + levels[:1])[1:] * bool(prefix)
            assert branch.levels[:-1] == levels[1:]


def test_the_cache_holds_the_prompt_the_text_and_every_branch() -> None:
    tokens, model = list(PROMPT), texture_model()
    drafter = begun(tokens)
    assert tuple(PROMPT[11:15]) in drafter._pool.lookup(PROMPT[10])
    for _ in range(LEVELS):
        step(drafter, tokens, model)
    for _ in range(10):
        anchor = len(tokens) - 1
        first, second = drafter._branches[:2]
        own = [*tokens[-2:], *first.levels]
        perturbed = [*second.prefix, *second.levels]
        step(drafter, tokens, model)
        own.append(first.levels[-1])
        perturbed.append(second.levels[-1])
        for text in (own, perturbed, tokens[anchor - 4 :]):
            for start in range(len(text) - 4):
                assert tuple(text[start + 1 : start + 5]) in drafter._pool.lookup(text[start])
    grams = [drafter._pool.lookup(key) for key in range(40)]
    assert all(len(found) == len(set(found)) <= 10 for found in grams)
    assert all(len(gram) == 4 for found in grams for gram in found)


def test_candidates_wait_for_the_branches() -> None:
    tokens = [1, 2, 3, 4, 5, 1]
    drafter = begun(tokens)
    assert drafter.draft(LIMITS).num_draft_tokens == 0
    for _ in range(LEVELS):
        step(drafter, tokens, lambda tokens: len(tokens) % 5 + 1)
    assert drafter.draft(LIMITS).num_draft_tokens > 0


def test_a_cache_that_knows_the_future_gives_a_whole_ngram_and_the_bonus() -> None:
    tokens, model = list(PROMPT), texture_model()
    drafter = grown(tokens, model)
    drafter._pool.insert(tokens[-1], tuple(greedy(model, tokens, 4)))
    assert len(step(drafter, tokens, model).new_token_ids) == 5


def test_ngrams_are_no_longer_than_branches() -> None:
    drafter = begun(PROMPT, SelfDraftConfig(branch_len=4, ngram=9))
    assert tuple(PROMPT[1:4]) in drafter._pool.lookup(PROMPT[0])


@pytest.mark.parametrize("budget", [4, 8, 12, 30, 64, 68, 128])
def test_every_budget_is_kept_and_still_drafts(budget: int) -> None:
    tokens = [token_id % 8 for token_id in PROMPT]
    drafter = begun(tokens, budget=budget)
    limits = DraftLimits(10, 6, 100, budget)
    steps = [step(drafter, tokens, last_token_model(8), limits) for _ in range(40)]
    assert sum(len(result.path) for result in steps) > 0 or budget < 8


def test_branches_that_do_not_fit_are_left_out_and_kept() -> None:
    tokens = list(PROMPT)
    drafter = grown(tokens, texture_model())
    size = len(explored(drafter.draft(LIMITS)))
    before = list(map(str, drafter._branches))
    for tight in (
        DraftLimits(4, 6, 64, size - 1),
        DraftLimits(4, 6, LEVELS, 128),
        DraftLimits(4, 0, 64, 128),
    ):
        assert not explored(step(drafter, tokens, texture_model(), tight).tree)
        assert list(map(str, drafter._branches)) == before
    assert explored(step(drafter, tokens, texture_model(), DraftLimits(4, 6, 64, size)).tree)


def test_trees_depend_on_the_seed_only() -> None:
    first, second, other = (begun(PROMPT, seed=seed).draft(LIMITS) for seed in (7, 7, 8))
    assert first == second != other


def test_candidates_may_use_the_room_of_branches_that_do_not_fit() -> None:
    tokens = list(PROMPT)
    drafter = grown(tokens, texture_model())
    drafter._pool.insert(tokens[-1], (1, 2, 3, 4))
    tree = drafter.draft(DraftLimits(4, 6, 64, 4))
    assert tree.token_ids == [tokens[-1], 1, 2, 3, 4]
