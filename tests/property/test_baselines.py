from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import PromptLookupConfig, SuffixConfig, TokenRecyclingConfig
from engine.spec.drafter import Drafter, DraftLimits
from engine.spec.prompt_lookup import PromptLookup
from engine.spec.suffix import Suffix
from engine.spec.suffix_tree import SuffixTree
from engine.spec.token_recycling import TokenRecycling
from tests.unit.toy import Toy, decode, plan

DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "prompt lookup": lambda: PromptLookup(plan(), PromptLookupConfig(num_tokens=3)),
    "token recycling": lambda: TokenRecycling(plan(), TokenRecyclingConfig()),
    "suffix path": lambda: Suffix(plan(), SuffixConfig()),
    "suffix tree": lambda: Suffix(plan(), SuffixConfig(as_tree=True, factor=3.0)),
    "suffix shared": lambda: Suffix(plan(), SuffixConfig(as_tree=True), SuffixTree(64, 20)),
}


@pytest.mark.parametrize("name", DRAFTERS)
@settings(max_examples=30, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=30),
    limits=st.builds(
        DraftLimits,
        width=st.integers(1, 10),
        depth=st.integers(0, 12),
        explore_depth=st.just(0),
        budget=st.integers(0, 90),
    ),
    order=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_trees_are_sound_repeatable_and_never_change_the_output(
    name: str, prompt: list[int], limits: DraftLimits, order: int, seed: int
):
    toy = Toy(vocab=12, top_k=8, order=order, seed=seed)
    live, results = decode(DRAFTERS[name](), prompt, toy, steps=10, limits=limits)
    assert live[len(prompt) :] == toy.continuation(prompt, len(live) - len(prompt))
    again, repeated = decode(DRAFTERS[name](), prompt, toy, steps=10, limits=limits)
    assert [r.tree.token_ids for r in results] == [r.tree.token_ids for r in repeated]
    assert live == again
