"""POST /tokenize and /detokenize: the ids that the generating routes would see, and back."""

from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from server.body import parse_body, parse_object
from server.context import Context
from server.logprobs import LogprobFormatter
from server.preparation import prepared
from server.schemas.tokenize import DetokenizeRequest, TokenizeMessages, TokenizeText

router = APIRouter()


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """Token ids of a text or of messages."""
    return _json(await prepared(request, _tokenize))


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """The text of token ids, control tokens included, so that it tokenises to the same ids."""
    return _json(await prepared(request, _detokenize))


def _tokenize(context: Context, raw: bytes) -> dict[str, Any]:
    converter = context.converter
    body: TokenizeText | TokenizeMessages
    if "messages" in parse_object(raw):
        body = parse_body(raw, TokenizeMessages)
        ids = converter.chat_token_ids(body, body.add_special_tokens, body.tools)
    else:
        body = parse_body(raw, TokenizeText)
        ids = tuple(context.tokenizer.encode(body.prompt, body.add_special_tokens))
    if body.model is not None:
        converter.check_model(body.model)
    names = LogprobFormatter(context.tokenizer, as_token_ids=False, num_top=None)
    return {
        "count": len(ids),
        "max_model_len": context.info.max_model_len,
        "tokens": list(ids),
        "token_strs": [names.name(i) for i in ids] if body.return_token_strs else None,
    }


def _detokenize(context: Context, raw: bytes) -> dict[str, Any]:
    body = parse_body(raw, DetokenizeRequest)
    if body.model is not None:
        context.converter.check_model(body.model)
    context.converter.check_vocabulary(body.tokens, "tokens")
    return {"prompt": context.tokenizer.decode(body.tokens, skip_special_tokens=False)}


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
