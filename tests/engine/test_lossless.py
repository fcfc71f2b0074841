"""The sacred property: a method changes how many tokens a step yields, never which."""

import random

import pytest

from engine.spec.tree import EXPLORE, TokenTree
from tests.engine.tiny import FAMILIES, VOCAB, make_core, prompts, request, run

METHODS = ("goose", "ptd", "auto")
SAMPLING = [
    {"temperature": 0.7, "seed": 5},
    {"temperature": 1.5, "seed": -3, "top_p": 0.8},
    {"temperature": 1.0, "top_k": 12, "seed": 2**63 - 1},
    {"temperature": 0.3, "min_p": 0.1},
    {"temperature": 1.0, "presence_penalty": 1.5, "frequency_penalty": -1.0},
    {"temperature": 0.0, "repetition_penalty": 1.4},
    {"temperature": 0.0, "frequency_penalty": 2.0},
    {"temperature": 0.9, "logit_bias": ((9, 8.0), (11, -100.0)), "top_k": 40, "top_p": 0.95},
    {"temperature": 0.8, "min_tokens": 6, "logit_bias": ((7, 5.0),)},
    {"temperature": 0.0, "stop_token_ids": tuple(range(100, 130)), "ignore_eos": True},
]


def assert_same(family: str, requests_of) -> None:
    """Every method, alone and in a batch, gives what plain decoding gives alone."""
    core = make_core(family)
    plain = [run(core, [item])[0] for item in requests_of("off")]
    for method in METHODS:
        for outcomes in (
            [run(core, [item])[0] for item in requests_of(method)],
            run(core, requests_of(method)),
        ):
            for expected, outcome in zip(plain, outcomes, strict=True):
                assert outcome.token_ids == expected.token_ids
                assert outcome.reason == expected.reason
                assert outcome.end.stop_reason == expected.end.stop_reason


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy(family: str) -> None:
    assert_same(family, lambda method: [request(p, method) for p in prompts(8)])


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_sampled(sampling: dict) -> None:
    assert_same(
        "Llama", lambda method: [request(p, method, **sampling) for p in prompts(5, seed=3)]
    )


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_sampled_in_every_family(family: str) -> None:
    sampling = {"temperature": 0.9, "seed": 17, "max_tokens": 60, "ignore_eos": True}
    assert_same(family, lambda method: [request(p, method, **sampling) for p in prompts(3, 5)])


def test_two_hundred_prompts_greedy() -> None:
    core = make_core()
    many = prompts(200, seed=9, longest=24)
    plain = run(core, [request(p, "off", max_tokens=16) for p in many])
    for method in METHODS:
        fast = run(core, [request(p, method, max_tokens=16) for p in many])
        assert [o.token_ids for o in fast] == [o.token_ids for o in plain]


def test_mixed_methods_in_one_batch() -> None:
    core = make_core()
    some = prompts(9, seed=4)
    plain = [run(core, [request(p, "off")])[0].token_ids for p in some]
    mixed = [request(p, ("off", "goose", "ptd")[i % 3]) for i, p in enumerate(some)]
    assert [o.token_ids for o in run(core, mixed)] == plain


class Scripted:
    """A drafter that drafts what it is told, learns nothing, and reads every output."""

    def __init__(self, build) -> None:
        from engine.spec.drafter import Needs

        self.needs = Needs(top_k=3, prompt_rows=True)
        self._build = build

    def begin(self, token_ids) -> None:
        self._token_ids = token_ids

    def observe_prompt(self, start, rows) -> None:
        pass

    def draft(self, limits) -> TokenTree:
        return self._build(self._token_ids, limits)

    def observe(self, result) -> None:
        assert len(result.rows.token_ids) == len(result.tree)


def garbage(rng: random.Random):
    def build(token_ids, limits) -> TokenTree:
        tree = TokenTree.anchored(token_ids[-1])
        for _ in range(rng.randint(0, 40)):
            parent = rng.randrange(len(tree))
            explores = tree.kinds[parent] == EXPLORE or rng.random() < 0.3
            limit = limits.explore_depth if explores else limits.depth
            if tree.depths[parent] < limit:
                tree.add(parent, rng.randrange(VOCAB), EXPLORE if explores else 0)
        return tree

    return build


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "top_p": 0.9}], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_output_does_not_depend_on_what_is_drafted(monkeypatch, family, sampling) -> None:
    """Garbage trees, and an oracle that sometimes errs, on side branches and in any depth."""
    core = make_core(family)
    some = prompts(4, seed=21, longest=60)
    plain = [run(core, [request(p, **sampling)])[0].token_ids for p in some]
    rng = random.Random(2)
    texts = [p + t for p, t in zip(some, plain, strict=True)]

    def near_oracle(token_ids, limits) -> TokenTree:
        text = next(t for t in texts if t[: len(token_ids)] == token_ids)
        tree = garbage(rng)(token_ids, limits)
        node = 0
        for token_id in text[len(token_ids) :]:
            if tree.depths[node] >= limits.depth or rng.random() < 0.2:
                break
            for _ in range(rng.randint(0, 2)):
                tree.add(node, rng.randrange(VOCAB))
            node = tree.add(node, token_id)
        return tree

    from engine.spec import registry

    for build in (garbage(rng), near_oracle):
        monkeypatch.setitem(registry.FACTORIES, "goose", lambda *_, b=build: Scripted(b))
        outcomes = run(core, [request(p, "goose", **sampling) for p in some])
        assert [o.token_ids for o in outcomes] == plain
    accepted = sum(o.end.stats.accepted_tokens for o in outcomes)
    assert accepted > 10, "the oracle was never followed, so nothing was shown"
