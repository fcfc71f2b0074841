"""Text that the client expects as the answer: what `auto` drafts from besides its own sources."""

from typing import Literal

from server.schemas.message import Content
from server.schemas.request_model import RequestModel


class PredictionFields(RequestModel):
    """OpenAI's predicted outputs. Never changes the answer, only its speed."""

    type: Literal["content"]
    content: Content
