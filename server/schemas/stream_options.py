"""What a stream carries besides text."""

from server.schemas.request_model import RequestModel


class StreamOptions(RequestModel):
    """Only valid with `stream: true`."""

    include_usage: bool = False
