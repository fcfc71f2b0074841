"""Names for the beginnings of a prompt, by which a router finds who has computed them before.

Beginnings are named at doubling lengths, so even a very long prompt has few names, and two prompts
share the name of at least half of what they have in common. A name is a hash: it says nothing.
"""

from hashlib import blake2b
from typing import Any

import orjson

SHORTEST = 128  # bytes; computing less again costs less than an uneven load
NAME_BYTES = 8


def prefix_names(body: bytes, session: str = "") -> tuple[str, ...]:
    """The names of a completion's or chat's beginnings, the shortest first, none for what is no
    such request. A `session` that the client named comes last, as the longest beginning."""
    text = _beginning(body)
    names = []
    digest = blake2b(digest_size=NAME_BYTES)
    done, length = 0, SHORTEST
    while length <= len(text):
        digest.update(text[done:length])
        names.append(digest.hexdigest())
        done, length = length, 2 * length
    if session:
        names.append(blake2b(b"session:" + session.encode(), digest_size=NAME_BYTES).hexdigest())
    return tuple(names)


def _beginning(body: bytes) -> bytes:
    """The prompt as bytes that a longer prompt with the same beginning begins with, too."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return b""
    if not isinstance(fields, dict):
        return b""
    if "messages" in fields:
        tools = fields.get("tools")  # templates show them before the messages
        return (orjson.dumps(tools) if tools else b"") + _open(fields["messages"])
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        prompt = prompt[0]  # of several prompts the first decides
    return _open(prompt)


def _open(value: Any) -> bytes:
    """JSON without its closing bracket or quote."""
    return orjson.dumps(value)[:-1] if isinstance(value, str | list) else b""
