"""Who may ask what: deny by default, so that a new route is closed until somebody opens it.

The check sees the path before any routing does. It opens two exact paths and nothing else, hence no
spelling of another path (doubled slashes, escapes, another method) can slip past it.
"""

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from server.access_log import record_of
from server.api_keys import ApiKey, ApiKeys
from server.errors import ApiError
from server.metrics import Metrics
from server.rate_limiter import RateLimiter

OPEN_PATHS = frozenset({"/health", "/ready"})
ADMIN_PREFIX = "/admin"


class Authorisation:
    """ASGI middleware: 401 without a key, 403 without an admin's, 429 above the rate."""

    def __init__(
        self, app: ASGIApp, keys: ApiKeys, limiter: RateLimiter | None, metrics: Metrics
    ) -> None:
        self._app = app
        self._keys = keys
        self._limiter = limiter
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                self._check(HTTPConnection(scope), is_post=scope["method"] == "POST")
            except ApiError as error:
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, asked: HTTPConnection, is_post: bool) -> None:
        key = self._keys.find(_sent_key(asked)) if self._keys else None
        if self._keys and key is None:
            self._metrics.count_rejected("api_key")
            raise ApiError(
                401,
                "Send a valid API key as 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        record_of(asked.scope).key = key.name if key else None
        is_admin = key is not None and key.is_admin
        if asked.scope["path"].startswith(ADMIN_PREFIX) and not is_admin:
            self._metrics.count_rejected("admin_key")
            raise ApiError(403, "This needs an admin key.", code="admin_key_required")
        if is_post and not is_admin:
            self._limit(asked, key)

    def _limit(self, asked: HTTPConnection, key: ApiKey | None) -> None:
        if self._limiter is None:
            return
        client = key.name if key else (asked.client.host if asked.client else "unknown")
        seconds = self._limiter.seconds_to_wait(client)
        if seconds is not None:
            self._metrics.count_rejected("rate_limit")
            raise ApiError(
                429,
                f"Too many requests; try again in {seconds} s.",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(seconds)},
            )


def _sent_key(asked: HTTPConnection) -> bytes:
    """The bearer token; empty, which is no key, for anything but exactly one."""
    sent = asked.headers.getlist("authorization")
    scheme, _, token = (sent[0] if len(sent) == 1 else "").partition(" ")
    return token.strip().encode("latin-1") if scheme.lower() == "bearer" else b""
