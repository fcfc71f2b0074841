"""The same request again, and conversations that grow: what speculation must not disturb."""

import random

import pytest

from tests.engine.tiny import VOCAB, make_core, prompts, request, run

METHODS = ("off", "goose", "ptd", "auto")


@pytest.mark.parametrize("method", METHODS)
def test_ten_times_the_same(method: str) -> None:
    """The text never varies. Counters say whether acceptance does: it may where a method learns
    from other requests, which only `auto` does here, and nowhere else."""
    core = make_core(prefix_reuse=False)
    prompt = prompts(1, seed=8)[0]
    outcomes = [run(core, [request(prompt, method, max_tokens=12)])[0] for _ in range(10)]
    assert all(o.token_ids == outcomes[0].token_ids for o in outcomes)
    for stats in (o.end.stats for o in outcomes):
        assert stats.steps + stats.accepted_tokens == stats.tokens == len(outcomes[0].token_ids)
        if method != "auto":
            assert stats == outcomes[0].end.stats


def test_speculation_leaves_reused_prefixes_alone() -> None:
    """Ten turns, each with all that came before: the same tokens are kept with every method, and
    they are all but the last one, which was never an input."""
    cached: dict[str, list[int]] = {}
    for method in METHODS:
        core, rng = make_core(), random.Random(5)
        text, cached[method] = [rng.randrange(8, VOCAB) for _ in range(30)], []
        hits = expected = 0
        for _ in range(10):
            core.add(item := request(text, method, max_tokens=8, ignore_eos=True))
            answer = []
            while core.has_work:
                step = core.step()
                hits += step.num_prefix_hits
                for output in step.outputs:
                    assert output.request_id == item.request_id
                    answer.extend(output.new_token_ids)
                    num_cached = output.num_cached_tokens
            cached[method].append(num_cached)
            assert num_cached == expected
            expected = len(text) + len(answer) - 1
            text = text + answer + [rng.randrange(8, VOCAB) for _ in range(5)]
        assert hits == sum(cached[method])
    assert all(counts == cached["off"] for counts in cached.values())
