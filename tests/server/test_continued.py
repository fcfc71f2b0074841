"""A completion continues its prompt, a chat answer begins a text: the first space shows it."""

from dataclasses import replace
from typing import Any

import pytest

from engine.text.stop import StopScanner
from engine.text.tokenizer import Tokenizer
from tests.server.conftest import build, client_of
from tests.server.fakes import FakeEngine, reply_ids
from tests.server.sse import complete, joined, stream
from tests.unit.tokenizer_kinds import tokenizer_of

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
TALK = [{"role": "user", "content": "The"}, {"role": "assistant", "content": "The lazy"}]


@pytest.mark.parametrize("kind", ["sentencepiece", "metaspace"])
@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        (PLAIN, {"prompt": "The lazy"}, " dog"),
        (PLAIN, {"prompt": "The lazy", "echo": True}, "The lazy dog"),
        (PLAIN, {"prompt": "The lazy", "logprobs": 0}, " dog"),
        (PLAIN, {"prompt": ""}, "dog"),  # a token of the text's beginning, and no text
        (PLAIN, {"prompt": "", "skip_special_tokens": False}, " dog"),  # that token is text here
        (CHAT, {"messages": TALK}, "dog"),
        (CHAT, {"messages": TALK, "continue_final_message": True}, " dog"),
    ],
)
async def test_the_first_space(kind: str, path: str, body: dict[str, Any], text: str) -> None:
    tokenizer = Tokenizer(tokenizer_of(kind))
    ids = tokenizer.encode("dog", False)
    assert tokenizer.token_bytes(ids[0]).startswith(b" ")
    engine = FakeEngine(reply_ids(*ids))
    engine._info = replace(engine._info, vocab_size=tokenizer.vocab_size)
    async with client_of(build(engine, tokenizer=tokenizer)) as http:  # type: ignore[arg-type]
        answer = await complete(http, path, **body)
        chunks = await stream(http, path, **body)
    choice = answer["choices"][0]
    if path == CHAT:
        assert choice["message"]["content"] == text
        deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
        assert "".join(deltas) == text
    else:
        assert choice["text"] == joined(chunks) == text
    rules = engine.requests[0].sampling.text
    scanner = StopScanner(tokenizer, (" dog",), rules)  # as the engine will search
    assert any(scanner.push(token_id) for token_id in ids) == text.startswith((" dog", "The"))
