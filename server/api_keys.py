"""The keys that open the server, and what each opens.

Only digests are kept and compared, each time all of them, so that neither the comparison's length
nor its time tells anything about a key.
"""

import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass

from engine.errors import ConfigError
from server.settings import ServerSettings

_ADMIN = "admin:"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key. `name` says which in logs and limits: its place among all, not a part of it."""

    name: str
    digest: bytes
    is_admin: bool


class ApiKeys:
    """All keys of one server."""

    def __init__(self, settings: ServerSettings) -> None:
        """Raises ConfigError if the file of keys cannot be read, or holds a malformed line."""
        found = list(_found(settings))
        self._keys = [
            ApiKey(f"key-{number}", _digest(key.encode()), is_admin)
            for number, (key, is_admin) in enumerate(found, start=1)
        ]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def find(self, key: bytes) -> ApiKey | None:
        """The key that a client sent, if it is one."""
        sent, found = _digest(key), None
        for known in self._keys:
            if hmac.compare_digest(known.digest, sent):
                found = known
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _found(settings: ServerSettings) -> Iterator[tuple[str, bool]]:
    """Each key and whether it is an administrator's."""
    both = [(settings.api_key, False), (settings.admin_key, True)]
    for key, is_admin in both:
        if key is not None:
            yield key, is_admin
    if settings.api_key_file is None:
        return
    try:
        lines = settings.api_key_file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"server.api_key_file: cannot read it: {error}") from error
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        key = line.removeprefix(_ADMIN).strip()
        if not key or len(key.split()) > 1:
            # The line itself stays unsaid: it may be a key with a slip of the keyboard.
            place = f"{settings.api_key_file}:{number}"
            raise ConfigError(f"server.api_key_file: {place}: expected one key, or 'admin: KEY'")
        yield key, line.startswith(_ADMIN)
