"""What a stream carries besides text."""

from typing import Literal

from pydantic import model_validator

from server.schemas.request_model import RequestModel


class StreamOptions(RequestModel):
    """Only valid with `stream: true`. Chunks are never padded, so obfuscation must be off."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Literal[False] = False

    @model_validator(mode="after")
    def _continuous_needs_usage(self) -> "StreamOptions":
        if self.continuous_usage_stats and not self.include_usage:
            raise ValueError("'continuous_usage_stats' needs 'include_usage: true'")
        return self
