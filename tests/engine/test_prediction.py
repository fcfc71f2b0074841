"""A prediction changes how fast a text comes, never the text."""

import random

import pytest

from engine.types import EngineRequest
from tests.engine.tiny import VOCAB, Outcome, make_core, prompts, request, run

SAMPLING = ({}, {"temperature": 0.9, "seed": 4, "top_p": 0.9, "repetition_penalty": 1.2})
LENGTH = 48


def predicted(prompt: list[int], prediction: list[int], sampling: dict) -> EngineRequest:
    plain = request(prompt, "auto", max_tokens=LENGTH, ignore_eos=True, **sampling)
    return EngineRequest(
        plain.request_id,
        plain.prompt_token_ids,
        plain.sampling,
        plain.speculation,
        0.0,
        tuple(prediction),
    )


def counts(outcome: Outcome) -> tuple[int, int]:
    stats = outcome.end.stats
    assert stats is not None
    return stats.accepted_prediction_tokens, stats.rejected_prediction_tokens


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
@pytest.mark.parametrize("kind", ["right", "edited", "garbage", "empty space", "longer"])
def test_text_does_not_depend_on_the_prediction(sampling: dict, kind: str) -> None:
    core = make_core()
    some = prompts(5, seed=13)
    wishes = {"max_tokens": LENGTH, "ignore_eos": True, **sampling}
    texts = [o.token_ids for o in run(core, [request(p, "off", **wishes) for p in some])]
    rng = random.Random(kind)
    predictions = {
        "right": texts,
        "edited": [[*t[:10], 9, 9, *t[13:]] for t in texts],
        "garbage": [[rng.randrange(VOCAB) for _ in range(60)] for _ in texts],
        "empty space": [[11] for _ in texts],
        "longer": [t + t for t in texts],
    }[kind]
    pairs = zip(some, predictions, strict=True)
    outcomes = run(core, [predicted(p, expected, sampling) for p, expected in pairs])
    assert [o.token_ids for o in outcomes] == texts
    assert [sum(counts(o)) for o in outcomes] == [len(p) for p in predictions]
    if kind == "right":
        assert [counts(o) for o in outcomes] == [(LENGTH, 0)] * 5
        assert all(o.end.stats.steps < LENGTH / 3 for o in outcomes)


def test_one_that_never_runs_rejects_its_prediction() -> None:
    core = make_core()
    item = predicted([9, 10], [1, 2, 3], {})
    core.add(item)
    core.abort(item.request_id)
    (end,) = core.drain_ended()
    assert end.stats is not None
    assert (end.stats.accepted_prediction_tokens, end.stats.rejected_prediction_tokens) == (0, 3)


def test_methods_that_would_ignore_it_refuse_it() -> None:
    core = make_core()
    item = request([9, 10], "goose")
    with pytest.raises(ValueError, match="does not read predictions"):
        core.add(
            EngineRequest("x", item.prompt_token_ids, item.sampling, item.speculation, 0.0, (1,))
        )
    assert not core.has_work
