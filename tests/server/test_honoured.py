"""No field is accepted and ignored: each changes the engine's request or the answer, or is listed
here as one that by definition changes nothing."""

import re
from dataclasses import replace
from typing import Any

import pytest

from server.schemas.chat import ChatRequest
from server.schemas.completion import CompletionRequest
from server.schemas.generation import GenerationRequest
from tests.server.conftest import build, client_of
from tests.server.fakes import BOS, FakeEngine, FakeTokenizer, reply_ids

TOOL = {"type": "function", "function": {"name": "f"}}
SHARED: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.1,
    "presence_penalty": 1,
    "frequency_penalty": 1,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1},
    "seed": 77,
    "min_tokens": 2,
    "stop": "b",
    "stop_token_ids": [98],
    "ignore_eos": True,
    "n": 2,
    "stream": True,
    "stream_options": {"include_usage": True},
    "speculation": {"method": "ptd"},
    "prediction": {"type": "content", "content": "ab"},
    "structured_outputs": {"regex": "a+"},
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "truncate_prompt_tokens": 1,
    "add_special_tokens": None,  # the opposite of the route's default
    "max_tokens": 2,
}
COMPLETION = {**SHARED, "best_of": 3, "echo": True, "logprobs": 1, "add_special_tokens": False}
CHAT = {
    **SHARED,
    "max_completion_tokens": 2,
    "logprobs": True,
    "top_logprobs": 2,
    "add_special_tokens": True,
    "add_generation_prompt": False,
    "continue_final_message": True,
    "chat_template_kwargs": {"tone": "kind"},
    "response_format": {"type": "json_object"},
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}
# What a field needs beside it to show.
COMPANIONS: dict[str, dict[str, Any]] = {
    "stream_options": {"stream": True},
    "include_stop_str_in_output": {"stop": "b"},
    "top_logprobs": {"logprobs": True},
    "tool_choice": {"tools": [TOOL]},
    "parallel_tool_calls": {"tools": [TOOL]},
}
INERT = {"model", "user"}
INERT_COMPLETION = INERT | {"prompt"}
INERT_CHAT = INERT | {
    *("messages", "metadata", "modalities", "prompt_cache_key"),
    *("safety_identifier", "service_tier", "store"),
}


class VariableTokenizer(FakeTokenizer):
    """Renders the template's variables too, and the tools."""

    def render_chat(
        self, messages: Any, *, variables: Any = None, tools: Any = None, **options: Any
    ) -> str:
        shown = str(tools) if tools else ""
        text = super().render_chat(messages, **options)
        return text + shown + "".join((variables or {}).values())


@pytest.mark.parametrize(
    ("model", "fields", "inert"),
    [(CompletionRequest, COMPLETION, INERT_COMPLETION), (ChatRequest, CHAT, INERT_CHAT)],
)
def test_every_field_is_listed(
    model: type[GenerationRequest], fields: dict[str, Any], inert: set[str]
) -> None:
    assert set(fields) | inert == set(model.model_fields)


async def outcome(path: str, body: dict[str, Any]) -> tuple[Any, str]:
    """What the engine was asked and what the client was told, without ids, times and entropy."""
    engine = FakeEngine(reply_ids(ord("a"), BOS, ord("b"), ord("c")))
    async with client_of(build(engine, tokenizer=VariableTokenizer(adds_bos=True))) as http:
        response = await http.post(path, json=body)
        assert response.status_code == 200, response.text
    is_seeded = "seed" in body
    asked = [
        (
            request.prompt_token_ids,
            request.sampling if is_seeded else replace(request.sampling, seed=0),
            request.speculation,
            request.prediction_token_ids,
        )
        for request in engine.requests
    ]
    text = re.sub(r"cmpl-[0-9a-f]{32}|\"created\":\d+", "", response.text)
    return asked, text


def requests() -> list[Any]:
    """(path, field, value) of all fields."""
    completion = [("/v1/completions", *item) for item in COMPLETION.items()]
    return completion + [("/v1/chat/completions", *item) for item in CHAT.items()]


@pytest.mark.parametrize(("path", "field", "value"), requests())
async def test_the_field_changes_something(path: str, field: str, value: Any) -> None:
    prompt: dict[str, Any] = {"prompt": "hi"}
    if "chat" in path:
        talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So"}]
        prompt = {"messages": talk, "max_tokens": 9}
    if field == "return_tokens_as_token_ids":
        prompt["logprobs"] = True if "chat" in path else 1
    body = {"model": "fake/model", **prompt, **COMPANIONS.get(field, {})}
    assert await outcome(path, body) != await outcome(path, {**body, field: value})
