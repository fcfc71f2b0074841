"""Memory: a pass that finds too little is made smaller, and what drafters keep stays bounded."""

import dataclasses
import itertools
import random
from collections.abc import Sequence

import pytest
import torch

from engine.config import METHODS, RestConfig, SpeculationConfig
from engine.spec.datastore import build_datastore
from engine.spec.planner import Planner
from engine.spec.registry import Shared, build_drafter
from engine.spec.step_cost import StepCost
from engine.types import FinishReason
from tests.engine.test_client import start
from tests.engine.tiny import VOCAB, Outcome, collect, make_core, prompts, request, run
from tests.unit.toy import Toy, decode

CPU = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")
ERRORS = (torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB"), CPU, MemoryError())


class Narrow:
    """Lets a core's passes run up to so many rows; above, memory is short in one way or another."""

    def __init__(self, core, most: int, errors: Sequence[Exception] = ERRORS) -> None:
        self.most, self.errors = most, itertools.cycle(errors)
        self.sizes: list[int] = []
        self._run = core._runner.run
        core._runner.run = self

    def __call__(self, parts):
        rows = sum(part.num_rows for part in parts)
        if rows > self.most:
            raise next(self.errors)
        self.sizes.append(rows)
        return self._run(parts)


def test_trees_go_first_and_no_token_changes() -> None:
    """With room for the anchors alone every method gives what plain decoding gives."""
    methods = [m for m in METHODS if m != "rest"] * 2  # that one needs a datastore
    some = prompts(len(methods), seed=5, longest=8)
    core = make_core(max_batch=len(methods), prefill_chunk=512)
    sampling = [{}] * 10 + [{"temperature": 0.9, "seed": 3}] * 10
    plain = run(core, [request(p, **s) for p, s in zip(some, sampling, strict=True)])
    narrow = Narrow(core, len(methods))
    outcomes = run(
        core, [request(p, m, **s) for p, m, s in zip(some, methods, sampling, strict=True)]
    )
    assert [o.token_ids for o in outcomes] == [o.token_ids for o in plain]
    assert max(narrow.sizes) <= len(methods)
    assert sum(o.end.stats.draft_tokens for o in outcomes) == 0


def test_prompts_come_in_shorter_chunks() -> None:
    prompt = random.Random(6).choices(range(8, VOCAB), k=150)
    plain = run(make_core(prefill_chunk=64), [request(prompt)])[0]
    core = make_core(prefill_chunk=64)
    narrow = Narrow(core, 17)
    item, faults = request(prompt, "goose"), 0
    core.add(item)
    outcomes: dict[str, Outcome] = {}
    while core.has_work:
        step = core.step()
        faults += step.num_memory_faults
        collect(outcomes, step)
    assert outcomes[item.request_id].token_ids == plain.token_ids
    assert faults == 3  # 64 rows, 32, and later a tree
    assert narrow.sizes[:10] == [16] * 9 + [6]


def test_the_youngest_gives_way_at_last() -> None:
    core = make_core()
    some = prompts(4, seed=7, longest=8)
    plain = [run(core, [request(p)])[0].token_ids for p in some]
    Narrow(core, 3)
    outcomes = run(core, [request(p, "auto") for p in some])
    assert [o.token_ids for o in outcomes[:3]] == plain[:3]
    assert [o.reason for o in outcomes].count(FinishReason.OVERLOAD) == 1
    assert outcomes[3].reason is FinishReason.OVERLOAD
    assert run(core, [request(some[3])])[0].token_ids == plain[3]


def test_trees_and_long_chunks_come_back(monkeypatch) -> None:
    core = make_core()
    prompt = [9, 10, 11] * 20
    narrow = Narrow(core, 4)
    assert run(core, [request(prompt, "prompt_lookup")])[0].end.stats.draft_tokens == 0
    narrow.most = 1000
    monkeypatch.setattr("engine.pass_runner.RECOVERY_STEPS", 3)
    run(core, [request(prompt, "prompt_lookup", max_tokens=40, ignore_eos=True)])
    outcome = run(core, [request(prompt[::-1], "prompt_lookup", ignore_eos=True)])[0]
    assert outcome.end.stats.draft_tokens > 0
    assert max(narrow.sizes) >= 32


def test_other_errors_are_not_swallowed() -> None:
    core = make_core()
    Narrow(core, 0, [RuntimeError("CUDA error: an illegal memory access was encountered")])
    core.add(request([9] * 4))
    with pytest.raises(RuntimeError, match="illegal"):
        core.step()


def test_a_request_that_finds_no_room_ends_alone(monkeypatch) -> None:
    """While it is taken on, too: nothing of it is left behind."""
    core = make_core()
    engine, listener, _ = start(core)
    build = core.add

    def add(source) -> None:
        if source.sampling.logit_bias:
            monkeypatch.setattr("engine.core.Sampler", _no_memory)
        try:
            build(source)
        finally:
            monkeypatch.undo()

    core.add = add
    big, small = request([9] * 4, logit_bias=((1, 1.0),)), request([9] * 4)
    engine.add(big)
    engine.add(small)
    listener.wait(lambda: listener.ended(small.request_id))
    (said,) = listener.outputs[big.request_id]
    assert said.finish_reason is FinishReason.OVERLOAD
    engine.shutdown(timeout=5.0)
    core.check_invariants()


def _no_memory(*_: object, **__: object) -> None:
    raise MemoryError


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Shared:
    """What requests share, with every bound of every method small."""

    def encode(text: str) -> list[int]:
        return list(text.encode())

    folder = tmp_path_factory.mktemp("store")
    (folder / "text").write_text("some text or other")
    build_datastore([folder / "text"], encode, folder / "store")
    config = SpeculationConfig()
    changes: dict[str, dict[str, object]] = {
        "goose": {"max_bigrams": 50},
        "ptd": {"pool_keys": 20, "pool_nodes_per_key": 10},
        "ptd_plus": {"pool_keys": 20, "pool_nodes_per_key": 10},
        "lookahead": {"pool_keys": 20, "pool_from_text": True},
        "self_draft": {"pool_keys": 20},
        "token_recycling": {"shared": True},
        "suffix": {"shared": True, "max_shared_tokens": 300},
        "auto": {"max_rows": 50, "order": 4, "cache_scope": "all", "cache_tokens": 300},
    }
    for method, changed in changes.items():
        part = dataclasses.replace(getattr(config, method), **changed)
        config = dataclasses.replace(config, **{method: part})
    config = dataclasses.replace(config, rest=RestConfig(datastore=folder / "store"))
    planner = Planner(config.auto, StepCost.sloped(0.0))
    return Shared(config, frozenset(), planner, encode)


@pytest.mark.parametrize("method", METHODS[1:])
def test_what_drafters_keep_is_bounded(small: Shared, method: str) -> None:
    """By configuration and the context's length, after any number of prompts that differ."""
    steps, length, vocab = 8, 30, 200
    toy, rng = Toy(vocab, top_k=10, order=1), random.Random(8)
    kept: list[int] = []
    for number in range(12):
        drafter = build_drafter(small, small.config.resolve(method), number)
        assert drafter is not None
        live, _ = decode(drafter, rng.choices(range(vocab), k=length), toy, steps)
        context = len(live)
        most = {
            "goose": 3 * context + 2 * 50,
            "ptd": 20 * 10,
            "ptd_plus": 20 * 10,
            "prompt_lookup": 3 * context,
            "token_recycling": 0,  # shared
            "suffix": context,
            "lookahead": 20 * 15 + 15 * 4,
            "self_draft": 20 * 10 + 20,
            "rest": 0,
            "auto": 2 * 4 * context + 4 * 50 + 60 * 8192,
        }[method]
        assert drafter.state_size() <= most
        if method not in ("rest", "token_recycling"):
            assert drafter.state_size() >= min(most, 10)
        if method == "auto":
            drafter.finish()
        kept.append(small.state_sizes().get(method, 0))
    shared = {"token_recycling": 2 * vocab, "suffix": 300, "auto": 300 * 2 * 4 + 4 * 50}
    assert max(kept) <= shared.get(method, 0)
    assert bool(kept[-1]) == (method in shared)


def test_sizes_are_those_of_running_requests() -> None:
    core = make_core()
    engine, listener, _ = start(core)
    items = [request(p, m) for p in prompts(3) for m in ("off", "goose", "auto")]
    for item in items:
        engine.add(item)
    listener.wait(lambda: all(listener.ended(i.request_id) for i in items))
    assert engine.status().drafter_entries == ()
    engine.shutdown(timeout=5.0)
    item = request([9] * 20, "goose", ignore_eos=True)
    core.add(item)
    core.step()
    assert core.state_sizes() == {"goose": core._requests[item.request_id].drafter.state_size()}
    assert core.state_sizes()["goose"] > 0
