"""The embedded model under a schema: valid JSON, and the same with speculation."""

import dataclasses
import json

import pytest

from engine.build import build_core, load_tokenizer
from engine.types import EngineRequest, FinishReason
from tests.engine.test_smollm2 import config
from tests.engine.tiny import request, run

SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 40},
        "year": {"type": "integer", "minimum": 1900, "maximum": 2030},
        "kind": {"enum": ["book", "film", "song"]},
    },
    "required": ["title", "year", "kind"],
    "additionalProperties": False,
}
PROMPTS = ("Describe a film about the sea.", "Name a well-known song.", "Which book is long?")
CODE = "def area(width, height):\n    return width * height\n\n\nprint(area(3, 4))\n"


@pytest.mark.model
def test_schema_and_prediction_with_and_without_speculation() -> None:
    settings = dataclasses.replace(config("float32"), max_batch=8)
    tokenizer = load_tokenizer(settings)
    core, info = build_core(settings, tokenizer)
    compiler = tokenizer.grammars(info.vocab_size, info.eos_token_ids)
    grammar = compiler.json_schema(SCHEMA)

    def ids(text: str) -> list[int]:
        chat = tokenizer.render_chat([{"role": "user", "content": text}])
        return tokenizer.encode(chat, add_special_tokens=False)

    for sampling in ({}, {"temperature": 0.8, "seed": 5}):
        texts = {}
        for method in ("off", "auto", "goose"):
            wishes = {"max_tokens": 80, "grammar": grammar, **sampling}
            outcomes = run(core, [request(ids(text), method, **wishes) for text in PROMPTS])
            assert all(o.reason is FinishReason.STOP for o in outcomes)
            texts[method] = [tokenizer.decode(o.token_ids) for o in outcomes]
        for text in texts["off"]:
            value = json.loads(text)
            assert set(value) == {"title", "year", "kind"}
            assert 1900 <= value["year"] <= 2030
        assert texts["auto"] == texts["goose"] == texts["off"]

    asked = ids(f"Repeat this code exactly:\n{CODE}")
    (plain,) = run(core, [request(asked, max_tokens=40)])
    free = request(asked, "auto", max_tokens=40)
    expected = tuple(plain.token_ids)
    with_prediction = EngineRequest(
        "p", free.prompt_token_ids, free.sampling, free.speculation, 0.0, expected
    )
    (fast,) = run(core, [with_prediction])
    assert fast.token_ids == plain.token_ids
    assert fast.end.stats.accepted_prediction_tokens == len(expected)
    assert fast.end.stats.steps < plain.end.stats.steps / 2
