"""The law of a draw, exactly: every rule against a slow and obvious reference."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling import Sampler, sample, token_logprob, uniform
from engine.types import SamplingParams


def params(**changes) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 8, "seed": 3} | changes)


def reference_law(logits: list[float], p: SamplingParams) -> dict[int, float]:
    """Token -> probability after temperature, top_k, top_p and min_p, by the book."""
    top = max(logits)
    weights = {i: math.exp((x - top) / p.temperature) for i, x in enumerate(logits)}
    total = sum(weights.values())
    ranked = sorted(((w / total, -i) for i, w in weights.items()), reverse=True)
    law = [(-i, w) for w, i in ranked]
    if p.top_k:
        law = law[: p.top_k]
        total = sum(w for _, w in law)
        law = [(i, w / total) for i, w in law]
    kept, mass = [], 0.0
    for i, w in law:
        if kept and mass >= p.top_p:
            break
        kept.append((i, w))
        mass += w
    best = kept[0][1]
    kept = [(i, w) for i, w in kept if w >= p.min_p * best]
    total = sum(w for _, w in kept)
    return {i: w / total for i, w in kept}


RULES = [
    {},
    {"temperature": 0.3},
    {"top_k": 3},
    {"top_p": 0.6},
    {"min_p": 0.3},
    {"temperature": 1.7, "top_k": 5, "top_p": 0.8, "min_p": 0.05},
]


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("vocab", [9, 700])
def test_law(rules: dict, vocab: int) -> None:
    """Sweeping u over a fine grid gives each token its probability, within the grid."""
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(vocab, generator=generator) * 2.5
    p = params(**rules)
    law = reference_law(logits.tolist(), p)
    grid = 4000
    counts: dict[int, int] = {}
    for step in range(grid):
        token_id = sample(logits, p, (step + 0.5) / grid)
        counts[token_id] = counts.get(token_id, 0) + 1
    assert set(counts) <= set(law)
    for token_id, probability in law.items():
        assert abs(counts.get(token_id, 0) / grid - probability) <= 2 / grid


def test_flat_law_reaches_the_tail() -> None:
    logits = torch.zeros(5000)
    drawn = {sample(logits, params(), (i + 0.5) / 5000) for i in range(5000)}
    assert len(drawn) > 4990
    assert sample(logits, params(), 1 - 2**-53) in range(5000)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6))
def test_uniform_is_pure_and_in_range(seed: int, position: int) -> None:
    u = uniform(seed, position)
    assert 0.0 <= u < 1.0
    assert u == uniform(seed, position)


def test_uniform_is_uniform_and_keyed_by_both() -> None:
    for draw in (lambda i: uniform(1, i), lambda i: uniform(i, 1)):
        values = [draw(i) for i in range(20000)]
        bins = [0] * 20
        for value in values:
            bins[int(value * 20)] += 1
        chi_square = sum((b - 1000) ** 2 / 1000 for b in bins)
        assert chi_square < 50  # 19 degrees of freedom, p about 1e-4
        pairs = sum(a < b for a, b in pairwise(values))
        assert abs(pairs - 10000) < 300


def test_first_token_law_over_seeds() -> None:
    logits = torch.tensor([1.0, 0.5, 0.0, -1.0])
    law = reference_law(logits.tolist(), params())
    counts = [0] * 4
    for seed in range(20000):
        sampler = Sampler(params(seed=seed), (0,), frozenset(), 4)
        counts[sampler.draw(logits, 1)] += 1
    chi_square = sum((counts[i] - 20000 * law[i]) ** 2 / (20000 * law[i]) for i in law)
    assert chi_square < 21.1  # 3 degrees of freedom, p about 1e-4


def test_penalties_follow_the_text() -> None:
    logits = torch.tensor([2.0, 1.0, -1.0, 0.0])
    sampler = Sampler(
        params(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=2.0),
        (2,),
        frozenset(),
        4,
    )
    sampler.observe(0)
    sampler.observe(0)
    assert sampler._apply_rules(logits).tolist() == [2.0 / 2 - 0.5 - 0.5, 1.0, -2.0, 0.0]
    assert logits.tolist() == [2.0, 1.0, -1.0, 0.0]


def test_ends_are_banned_until_min_tokens() -> None:
    sampler = Sampler(params(temperature=0.0, min_tokens=2), (0,), frozenset({1}), 3)
    logits = torch.tensor([0.0, 5.0, 1.0])
    drawn = []
    for position in range(3):
        drawn.append(sampler.draw(logits, position))
        sampler.observe(drawn[-1])
    assert drawn == [2, 2, 1]


@settings(max_examples=40)
@given(st.floats(1e-3, 2.0), st.integers(0, 2**32))
def test_extreme_logits_draw_a_token(temperature: float, seed: int) -> None:
    logits = torch.full((400,), -torch.inf)
    logits[[3, 77]] = torch.tensor([1e4, 1e4 - 1])
    p = params(temperature=temperature, seed=seed, top_p=0.999)
    assert sample(logits, p, uniform(seed, 0)) in (3, 77)


def test_token_logprob() -> None:
    logits = torch.tensor([0.0, 2.0, 1.0])
    entry = token_logprob(logits, 0, 2)
    expected = torch.log_softmax(logits, 0)
    assert entry.logprob == pytest.approx(float(expected[0]))
    assert [i for i, _ in entry.top] == [1, 2]
    assert token_logprob(logits, 0, 0).top == ()
