import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import GooseConfig
from engine.spec.drafter import DraftLimits
from engine.spec.goose import Goose, _harmonic_split
from tests.unit.toy import Toy, decode, plan

limits = st.builds(
    DraftLimits,
    width=st.integers(1, 10),
    depth=st.integers(0, 12),
    explore_depth=st.integers(0, 12),
    budget=st.integers(0, 80),
)


@settings(max_examples=60, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=40),
    bounds=limits,
    plan_budget=st.integers(1, 100),
    order=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_trees_are_sound_and_never_change_the_output(
    prompt: list[int], bounds: DraftLimits, plan_budget: int, order: int, seed: int
):
    toy = Toy(vocab=30, top_k=10, order=order, seed=seed)
    base = min(60, plan_budget)
    drafter = Goose(plan(bounds.width, 12, plan_budget, base), GooseConfig())
    live, results = decode(drafter, prompt, toy, steps=12, limits=bounds)
    assert live[len(prompt) :] == toy.continuation(prompt, len(live) - len(prompt))
    assert all(len(result.tree) - 1 <= plan_budget for result in results)


@given(share=st.integers(0, 200), nodes=st.integers(0, 100))
def test_the_harmonic_split_is_sparing_and_falls_along_the_spine(share: int, nodes: int):
    counts = list(_harmonic_split(share, nodes))
    assert len(counts) == nodes
    assert sum(counts) <= share
    assert counts == sorted(counts, reverse=True)
    assert all(count >= 1 for count in counts[: min(nodes, share)]) or sum(counts) == share


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=30), st.integers(0, 20))
def test_drafts_do_not_look_ahead(prompt: list[int], cut: int):
    """A tree depends on nothing but what was committed and observed before it."""
    toy = Toy(vocab=20, top_k=10)
    _, long = decode(Goose(plan(), GooseConfig()), prompt, toy, steps=cut + 3)
    _, short = decode(Goose(plan(), GooseConfig()), prompt, toy, steps=cut)
    for a, b in zip(short, long, strict=False):
        assert a.tree.token_ids == b.tree.token_ids
        assert np.array_equal(a.tree.parents, b.tree.parents)
