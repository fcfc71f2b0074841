"""The step loop's contract: ends, limits, aborts, company, accounting."""

import math
import random
from collections import Counter

import pytest

from engine.spec import registry
from engine.spec.tree import TokenTree
from engine.types import FinishReason
from tests.engine.test_lossless import Scripted
from tests.engine.tiny import (
    EOS,
    MAX_LEN,
    VOCAB,
    Outcome,
    collect,
    make_core,
    plan,
    prompts,
    request,
    run,
)

METHODS = ("off", "goose", "ptd", "auto")


@pytest.fixture(scope="module")
def core():
    return make_core()


def oracle(texts: list[list[int]], depth: int = 99):
    """Drafts the text that plain decoding gives."""

    def build(token_ids, limits) -> TokenTree:
        text = next(t for t in texts if t[: len(token_ids)] == token_ids)
        ahead = text[len(token_ids) :][: min(depth, limits.depth)]
        return TokenTree.chain([token_ids[-1], *ahead])

    return Scripted(build)


@pytest.mark.parametrize("method", METHODS)
def test_max_tokens_is_exact(core, method: str) -> None:
    prompt = prompts(1, seed=1)[0]
    for max_tokens in range(1, 13):
        end = run(core, [request(prompt, method, max_tokens=max_tokens, ignore_eos=True)])[0]
        assert len(end.token_ids) == max_tokens
        assert end.reason is FinishReason.LENGTH
        assert end.end.stats.tokens == max_tokens


def test_cuts_inside_an_accepted_path(core, monkeypatch) -> None:
    """EOS, a stop id and max_tokens cut exactly; nothing behind is kept or counted."""
    prompt = prompts(1, seed=2)[0]
    plain = run(core, [request(prompt, max_tokens=30, ignore_eos=True)])[0].token_ids
    text = prompt + plain
    monkeypatch.setitem(registry.FACTORIES, "goose", lambda *_: oracle([text + [8] * 40]))
    for place in range(1, 9):
        stop = plain[place - 1]
        first = plain.index(stop) + 1
        got = run(
            core, [request(prompt, "goose", max_tokens=30, ignore_eos=True, stop_token_ids=(stop,))]
        )[0]
        assert got.token_ids == plain[:first]
        assert (got.reason, got.end.stop_reason) == (FinishReason.STOP, stop)
        stats = got.end.stats
        assert stats.accepted_tokens + stats.steps == stats.tokens == first
        capped = run(core, [request(prompt, "goose", max_tokens=place, ignore_eos=True)])[0]
        assert capped.token_ids == plain[:place]
        assert capped.end.stats.accepted_tokens + capped.end.stats.steps == place


def test_stop_wins_on_the_last_allowed_token(core) -> None:
    prompt = prompts(1, seed=2)[0]
    plain = run(core, [request(prompt, max_tokens=9, ignore_eos=True)])[0].token_ids
    first = plain.index(plain[-1]) + 1
    for max_tokens, reason in ((first, FinishReason.STOP), (first - 1, FinishReason.LENGTH)):
        if max_tokens:
            got = run(
                core,
                [
                    request(
                        prompt,
                        max_tokens=max_tokens,
                        ignore_eos=True,
                        stop_token_ids=(plain[-1],),
                    )
                ],
            )[0]
            assert got.reason is reason


@pytest.mark.parametrize("method", METHODS)
def test_eos_first(core, method: str) -> None:
    biased = {"logit_bias": ((EOS, 100.0),), "temperature": 0.0}
    got = run(core, [request([9, 10], method, **biased)])[0]
    assert got.token_ids == [EOS]
    assert (got.reason, got.end.stop_reason) == (FinishReason.STOP, None)
    free = run(core, [request([9, 10], method, ignore_eos=True, max_tokens=5, **biased)])[0]
    assert free.token_ids == [EOS] * 5


@pytest.mark.parametrize("method", METHODS)
def test_context_end(core, method: str) -> None:
    """Never past max_model_len, also with a tree that would reach further."""
    for left in (1, 2, 3, 8):
        prompt = (prompts(1, seed=6)[0] * MAX_LEN)[: MAX_LEN - left]
        got = run(core, [request(prompt, method, max_tokens=100, ignore_eos=True)])[0]
        assert len(got.token_ids) == left
        assert got.reason is FinishReason.LENGTH


def test_oracle_and_hopeless_drafts(core, monkeypatch) -> None:
    prompt = prompts(1, seed=3)[0]
    plain = run(core, [request(prompt, max_tokens=25, ignore_eos=True)])[0].token_ids
    for depth in (1, 2, 4):
        monkeypatch.setitem(
            registry.FACTORIES, "goose", lambda *_, d=depth: oracle([prompt + plain], d)
        )
        got = run(core, [request(prompt, "goose", max_tokens=25, ignore_eos=True)])[0]
        assert got.token_ids == plain
        assert got.end.stats.steps == math.ceil(25 / (depth + 1))
    wrong = Scripted(lambda t, limits: TokenTree.chain([t[-1], *[8] * min(1, limits.depth)]))
    monkeypatch.setitem(registry.FACTORIES, "goose", lambda *_: wrong)
    got = run(core, [request(prompt, "goose", max_tokens=25, logit_bias=((8, -100.0),))])[0]
    assert got.end.stats.tau == 1.0
    assert got.end.stats.accepted_tokens == 0


@pytest.mark.parametrize("method", METHODS)
def test_counters(core, method: str) -> None:
    for outcome in run(core, [request(p, method, max_tokens=40) for p in prompts(6, seed=8)]):
        stats = outcome.end.stats
        assert stats.tokens == len(outcome.token_ids)
        assert stats.tokens == stats.accepted_tokens + stats.steps
        assert sum(stats.accepted_per_depth) == stats.accepted_tokens
        assert list(stats.accepted_per_depth) == sorted(stats.accepted_per_depth, reverse=True)
        assert stats.accepted_tokens <= stats.draft_tokens
        identity = stats.hit_rate * stats.accept_length + 1 - stats.hit_rate
        assert abs(stats.tau - identity) < 1e-9
        if method == "off":
            assert stats.draft_tokens == stats.explored_tokens == stats.drafts == 0


def test_step_counters_add_up_to_the_requests(core) -> None:
    outcomes: dict[str, Outcome] = {}
    total: Counter[str] = Counter()
    for p in prompts(6, seed=8):
        core.add(request(p, "goose"))
    while core.has_work:
        outputs = core.step()
        collect(outcomes, outputs)
        for method, stats in outputs.spec:
            assert method == "goose"
            total["tokens"] += stats.tokens
            total["accepted"] += stats.accepted_tokens
        total["prompt"] += outputs.num_prompt_tokens
    assert total["tokens"] == sum(len(o.token_ids) for o in outcomes.values())
    assert total["accepted"] == sum(o.end.stats.accepted_tokens for o in outcomes.values())


def test_aborted_and_interleaved(core) -> None:
    """Joining, leaving and aborting neighbours never change anybody's text."""
    some = prompts(12, seed=13)
    expected = [run(core, [request(p)])[0].token_ids for p in some]
    rng = random.Random(4)
    outcomes: dict[str, Outcome] = {}
    waiting = [request(p, METHODS[i % 3]) for i, p in enumerate(some)]
    extra = [request(p, "ptd", max_tokens=100) for p in prompts(8, seed=14)]
    order, aborted = list(waiting), set()
    while order or extra or core.has_work:
        if order and rng.random() < 0.4:
            core.add(order.pop(0))
        if extra and rng.random() < 0.4:
            core.add(extra[0])
            aborted.add(extra.pop(0).request_id)
        if rng.random() < 0.3 and aborted:
            core.abort(rng.choice(sorted(aborted)))
        collect(outcomes, core.step())
    for item, tokens in zip(waiting, expected, strict=True):
        assert outcomes[item.request_id].token_ids == tokens
    assert all(outcomes[i].reason is not None for i in aborted)
    assert core.num_running == core.num_waiting == 0
    core.abort("unknown")
    assert not core.has_work


def test_chunked_prefill_gives_the_same_text() -> None:
    some = [p * 4 for p in prompts(5, seed=17)]
    texts = []
    for chunk in (1, 7, 500):
        core = make_core(prefill_chunk=chunk)
        texts += [
            [o.token_ids for o in run(core, [request(p, method) for p in some])]
            for method in METHODS
        ]
    assert all(text == texts[0] for text in texts)


def test_prefix_reuse_gives_the_same_text() -> None:
    rng = random.Random(2)
    stem = [rng.randrange(8, VOCAB) for _ in range(60)]
    some = [stem[: rng.randint(5, 60)] + p for p in prompts(10, seed=3, longest=9)]
    without = make_core(prefix_reuse=False)
    with_reuse = make_core()
    cached = 0
    for method in METHODS:
        for group in (some[:5], some[5:]):
            plain = run(without, [request(p, method) for p in group])
            again = run(with_reuse, [request(p, method) for p in group])
            assert [o.token_ids for o in again] == [o.token_ids for o in plain]
            assert all(o.end.num_cached_tokens == 0 for o in plain)
            cached += sum(o.end.num_cached_tokens for o in again)
    assert cached > 300


def test_a_faulty_drafter_ends_its_request_alone(core, monkeypatch) -> None:
    def broken(token_ids, limits):
        if len(token_ids) > 12:
            raise KeyError("broken on purpose")
        return TokenTree.anchored(token_ids[-1])

    monkeypatch.setitem(registry.FACTORIES, "ptd", lambda *_: Scripted(broken))
    prompt = [9, 10, 11, 12]
    expected = run(core, [request(prompt)])[0].token_ids
    bad, good = run(core, [request(prompt, "ptd"), request(prompt, "goose")])
    assert bad.reason is FinishReason.ERROR
    assert "broken on purpose" in bad.end.error
    assert bad.token_ids == expected[: len(bad.token_ids)]
    assert good.token_ids == expected


def test_zero_tokens_scores_the_prompt(core) -> None:
    prompt = prompts(1, seed=23, longest=30)[0] * 2
    got = run(core, [request(prompt, "goose", max_tokens=0, prompt_logprobs=2)])[0]
    assert (got.token_ids, got.reason) == ([], FinishReason.LENGTH)
    entries = got.end.prompt_logprobs
    assert entries[0] is None
    assert [e.token_id for e in entries[1:]] == prompt[1:]


@pytest.mark.parametrize("method", METHODS)
def test_logprobs_are_the_targets_own(core, method: str) -> None:
    prompt = prompts(1, seed=29)[0] * 3
    rules = {"temperature": 0.8, "logit_bias": ((9, -100.0),), "logprobs": 3}
    plain = run(core, [request(prompt, **rules)])[0]
    got = run(core, [request(prompt, method, **rules)])[0]
    assert [e.token_id for e in got.logprobs] == got.token_ids == plain.token_ids
    for a, b in zip(got.logprobs, plain.logprobs, strict=True):
        assert abs(a.logprob - b.logprob) < 1e-4
        assert len(a.top) == 3
        assert a.logprob <= a.top[0][1] + 1e-6


@pytest.mark.parametrize("method", ["goose", "ptd"])
def test_bounds_hold(core, monkeypatch, method: str) -> None:
    """No tree of a bounded request is wider, deeper or larger than its plan."""
    seen = []

    class Spy:
        def __init__(self, drafter) -> None:
            self.drafter, self.needs = drafter, drafter.needs

        def __getattr__(self, name):
            return getattr(self.drafter, name)

        def draft(self, limits):
            tree = self.drafter.draft(limits)
            seen.append((limits, tree))
            return tree

    build = registry.FACTORIES[method]
    monkeypatch.setitem(registry.FACTORIES, method, lambda *a: Spy(build(*a)))
    bounded = plan(method, width=2, depth=3, budget=9)
    run(core, [request(p * 3, bounded, max_tokens=40) for p in prompts(6, seed=31)])
    assert len(seen) > 20
    grown = 1 if method == "ptd" else 0  # what the method grows; PTD verifies what its pool holds
    for limits, tree in seen:
        assert len(tree) - 1 <= limits.budget <= 9
        nodes = range(1, len(tree))
        children = Counter(tree.parents[n] for n in nodes if tree.kinds[n] == grown)
        assert max(children.values(), default=0) <= 3  # two, and the spine
        assert max(tree.depths[n] for n in range(len(tree)) if not tree.kinds[n]) <= limits.depth
        assert limits.depth <= 3
