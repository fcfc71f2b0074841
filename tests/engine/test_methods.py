"""Every method of the registry, end to end on a tiny model: the same tokens as plain decoding."""

import dataclasses

import pytest

from engine.config import METHODS, RestConfig, SpeculationConfig
from engine.errors import RequestError
from engine.spec.datastore import build_datastore
from engine.spec.planner import Planner
from engine.spec.registry import FACTORIES, Shared
from engine.spec.step_cost import StepCost
from tests.engine.tiny import make_core, prompts, request, run

SAMPLING = (
    {},
    {"temperature": 0.9, "top_p": 0.9, "seed": 4, "frequency_penalty": 0.5},
    {"ignore_eos": True, "max_tokens": 70},
)


class ByteTokenizer:
    """As much of a tokenizer as a datastore needs: one id per byte."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [8 + byte for byte in text.encode()]


def test_the_registry_knows_exactly_the_methods() -> None:
    assert set(FACTORIES) == set(METHODS)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("datastore")
    corpus = folder / "corpus.txt"
    corpus.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    tokenizer = ByteTokenizer()
    store = folder / "store.safetensors"
    build_datastore([corpus], tokenizer.encode, store)
    speculation = SpeculationConfig(rest=RestConfig(datastore=store))
    speculation = dataclasses.replace(
        speculation,
        token_recycling=dataclasses.replace(speculation.token_recycling, shared=True),
        suffix=dataclasses.replace(speculation.suffix, shared=True, as_tree=True),
        auto=dataclasses.replace(
            speculation.auto, cost_slope=0.0, cache_scope="tests", explore=True
        ),
    )
    return make_core(speculation=speculation, tokenizer=tokenizer), speculation


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
@pytest.mark.parametrize("method", METHODS[1:])
def test_same_tokens(served, method: str, sampling: dict) -> None:
    core, speculation = served
    plan = speculation.resolve(method)
    some = [p * 2 for p in prompts(6, seed=51)] + [[8 + b for b in b"the quick brown"]]
    plain = [run(core, [request(p, **sampling)])[0].token_ids for p in some]
    fast = run(core, [request(p, plan, **sampling) for p in some])
    assert [o.token_ids for o in fast] == plain
    drafted = sum(o.end.stats.draft_tokens for o in fast)
    assert drafted > 0, "nothing was drafted, so nothing was shown"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bounds", [(1, 1, 1), (2, 3, 5), (10, 32, 16)])
def test_bounds_are_hard(served, method: str, bounds) -> None:
    core, speculation = served
    width, depth, budget = bounds
    plan = speculation.resolve(method, width=width, depth=depth, budget=budget)
    outcomes = run(core, [request(p * 2, plan, max_tokens=40) for p in prompts(4, seed=61)])
    for outcome in outcomes:
        stats = outcome.end.stats
        assert stats.draft_tokens + stats.explored_tokens <= budget * stats.steps
        assert len(stats.accepted_per_depth) <= depth


def test_rest_without_a_datastore_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="datastore") as caught:
        SpeculationConfig().resolve("rest")
    assert caught.value.param == "speculation.method"


def test_shared_state_is_made_once() -> None:
    config = SpeculationConfig()
    shared = Shared(config, frozenset(), Planner(config.auto, StepCost.sloped(0.1)))
    assert shared.matrix is None
    assert shared.suffix_tree is None
    config = dataclasses.replace(
        config, token_recycling=dataclasses.replace(config.token_recycling, shared=True)
    )
    shared = Shared(config, frozenset(), Planner(config.auto, StepCost.sloped(0.1)))
    assert shared.matrix is shared.matrix is not None
