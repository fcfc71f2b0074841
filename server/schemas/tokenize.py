"""The bodies of POST /tokenize and POST /detokenize."""

from pydantic import Field

from server.schemas.request_model import RequestModel
from server.schemas.template import TemplateFields


class TokenizeText(RequestModel):
    """A text as /v1/completions would see it."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class TokenizeMessages(TemplateFields):
    """Messages as /v1/chat/completions would see them."""

    model: str | None = None
    add_special_tokens: bool = False
    return_token_strs: bool = False


class DetokenizeRequest(RequestModel):
    """Token ids to be read."""

    model: str | None = None
    tokens: list[int] = Field(max_length=1_000_000)
