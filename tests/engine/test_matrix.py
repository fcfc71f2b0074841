"""The matrix of losslessness: each sampling field with each method, greedy and seeded, in float32.

A cell is one batch that holds all methods at once; plain decoding runs before it, by itself.
"""

import dataclasses
import random
from dataclasses import dataclass
from typing import Any

import pytest

from engine.config import METHODS, RestConfig, SpeculationConfig
from engine.core import EngineCore
from engine.spec.datastore import build_datastore
from engine.text.tokenizer import Tokenizer
from engine.types import EngineRequest, FinishReason, SpeculationPlan, TextRules
from tests.engine.test_structured import SCHEMA
from tests.engine.tiny import EOS, VOCAB, Outcome, make_core, prompts, request, run
from tests.unit.tokenizer_kinds import tokenizer_of

PROMPTS = [prompt[-8:] * 3 for prompt in prompts(2, seed=71)]
DRAWS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.9, "seed": 23},
}
CODEC = Tokenizer(tokenizer_of("byte_level"))
LETTERS = "QXZJK"  # a text of these alone repeats itself, so that drafts of every method are right
NARROW = tuple((i, -100.0) for i in range(VOCAB) if i not in CODEC.encode(LETTERS, False))
FIELDS: dict[str, dict[str, Any]] = {
    "none": {"max_tokens": 40, "ignore_eos": True},
    "top_p": {"top_p": 0.7},
    "top_k": {"top_k": 9},
    "min_p": {"min_p": 0.2},
    "presence_penalty": {"presence_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": 1.2},
    "negative penalties": {"frequency_penalty": -1.0, "presence_penalty": -0.5},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "logit_bias": {"logit_bias": NARROW, "max_tokens": 40},
    "min_tokens": {"min_tokens": 15, "logit_bias": ((EOS, 9.0),)},
    "stop": {"stop": ()},  # found in the plain text
    "stop, special tokens shown": {"stop": (), "text": TextRules(skips_special=False)},
    "stop_token_ids": {"stop_token_ids": tuple(range(0, VOCAB, 5))},
    "ignore_eos": {"ignore_eos": True, "logit_bias": ((EOS, 4.0),)},
    "logprobs": {"logprobs": 3},
    "prompt_logprobs": {"prompt_logprobs": 2, "logprobs": 0},
    "grammar": {"grammar": "", "max_tokens": 45},  # compiled for the core's tokenizer
    "max_tokens 1": {"max_tokens": 1},
    "all": {
        **{"top_p": 0.9, "top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1},
        **{"presence_penalty": 0.2, "frequency_penalty": -0.2, "logit_bias": NARROW[::3]},
        **{"min_tokens": 5, "stop_token_ids": (24, 36), "logprobs": 1, "stop": ()},
    },
}
# Cells in which drafts of these are surely right: copied texts, and what the model itself explored.
FRUITFUL = {
    ("logit_bias", "greedy"): {"auto", "goose", "prompt_lookup", "suffix", "rest"},
    ("none", "greedy"): {"ptd", "ptd_plus", "token_recycling", "lookahead", "self_draft"},
}


@dataclass(frozen=True)
class Served:
    """A core with everything that a method or a field may need."""

    core: EngineCore
    speculation: SpeculationConfig

    def requests(self, method: str, wishes: dict[str, Any]) -> list[EngineRequest]:
        """The cell's prompts, and the first one again as a second choice of it (`n`)."""
        plan: SpeculationPlan = self.speculation.resolve(method, width=3, depth=6, budget=20)
        made = [request(prompt, plan, **wishes) for prompt in PROMPTS]
        second = {**wishes, "seed": wishes.get("seed", 1) + 1}
        return [*made, request(PROMPTS[0], plan, **second)]

    def completed(self, wishes: dict[str, Any]) -> dict[str, Any]:
        """The wishes with what depends on the tokenizer or on the plain text."""
        if "grammar" in wishes:
            compiler = CODEC.grammars(VOCAB, (EOS,))
            wishes = {**wishes, "grammar": compiler.json_schema(SCHEMA)}
        if "stop" in wishes:
            free = run(self.core, self.requests("off", wishes))
            texts = [CODEC.decode(outcome.token_ids) for outcome in free]
            wishes = {**wishes, "stop": tuple(dict.fromkeys(text[7:9] for text in texts[:2]))}
        return wishes


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """One core for all cells."""
    folder = tmp_path_factory.mktemp("matrix")
    corpus, store = folder / "corpus.txt", folder / "store.safetensors"
    corpus.write_text("".join(random.Random(3).choices(LETTERS, k=600)), "utf-8")
    build_datastore([corpus], lambda text: CODEC.encode(text, False), store)
    base = SpeculationConfig()
    speculation = dataclasses.replace(
        base,
        rest=RestConfig(datastore=store),
        auto=dataclasses.replace(base.auto, cost_slope=0.0),
    )
    core = make_core(speculation=speculation, tokenizer=CODEC, max_batch=3 * len(METHODS))
    return Served(core, speculation)


def facts(outcome: Outcome) -> tuple[Any, ...]:
    """All that a client could see of an answer."""
    of_prompt = outcome.outputs[0].prompt_logprobs
    return outcome.token_ids, outcome.reason, outcome.end.stop_reason, outcome.logprobs, of_prompt


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("field", FIELDS)
def test_cell(served: Served, field: str, draw: str) -> None:
    wishes = served.completed({"max_tokens": 20, **DRAWS[draw], **FIELDS[field]})
    plain = run(served.core, served.requests("off", wishes))
    if field.startswith("stop"):
        assert any(o.reason is FinishReason.STOP and o.end.stop_reason for o in plain)
    together = [one for method in METHODS for one in served.requests(method, wishes)]
    outcomes = run(served.core, together)
    for index, method in enumerate(METHODS):
        own = outcomes[index * len(plain) : (index + 1) * len(plain)]
        assert [facts(o) for o in own] == [facts(o) for o in plain], method
        if method in FRUITFUL.get((field, draw), ()):
            assert sum(o.end.stats.accepted_tokens for o in own) > 0, f"{method} showed nothing"
