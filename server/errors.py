"""Every failure as OpenAI's error object, whatever raised it.

Clients retry 408, 409, 429 and 5xx, so bad input must never be a 5xx, and what is wrong must be
known before a stream begins. Nothing here may leak an internal message into a 500.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from engine.api import EngineDeadError, RequestError

logger = logging.getLogger("treeline.http")

_INVALID = frozenset({400, 404, 405, 413, 415})
CLIENT_LEFT = 499  # nobody reads it; the access log shows it


_TYPES = {
    403: "permission_error",
    408: "timeout",
    429: "rate_limit_error",
    503: "service_unavailable",
}


class ApiError(Exception):
    """One HTTP error answer. `param` names the field, `code` is OpenAI's machine-readable code."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers

    @property
    def type(self) -> str:
        """OpenAI's coarse error class."""
        if self.status in _TYPES:
            return _TYPES[self.status]
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def body(self) -> dict[str, Any]:
        """The envelope; all four keys are always there."""
        fields = {"type": self.type, "param": self.param, "code": self.code}
        return {"error": {"message": self.message, **fields}}

    def response(self) -> Response:
        """The whole answer."""
        return Response(
            orjson.dumps(self.body()),
            status_code=self.status,
            headers=dict(self.headers or {}),
            media_type="application/json",
        )


class ClientLeftError(Exception):
    """The client closed the connection; there is nobody to answer."""


def bad_request(message: str, param: str | None, code: str = "invalid_value") -> ApiError:
    """A 400: the request itself is wrong."""
    return ApiError(400, message, param=param, code=code)


def unfulfillable(message: str, code: str | None) -> ApiError:
    """A 422: the body is right, but the answer that it demands cannot be had. Never tried again by
    clients, unlike a 5xx."""
    return ApiError(422, message, code=code)


def unavailable(message: str, seconds: int = 1) -> ApiError:
    """A 503: another attempt, elsewhere or here after `seconds`, may succeed."""
    headers = {"Retry-After": str(seconds)}
    return ApiError(503, message, code="service_unavailable", headers=headers)


def timed_out(seconds: float) -> ApiError:
    """A 408: the request took longer than any may."""
    return ApiError(408, f"The request took more than {seconds:g} s.", code="timeout")


def internal_error(request_id: str) -> ApiError:
    """A 500: our fault, with what an operator needs to find it in the log."""
    message = f"The server failed on this request; its log names {request_id}."
    return ApiError(500, message, code="internal_error")


def _from_http(error: HTTPException, request: Request) -> ApiError:
    asked = f"{request.method} {request.url.path}"
    message, code = str(error.detail), None
    if error.status_code == 404:
        message, code = f"Unknown request URL: {asked}.", "unknown_url"
    elif error.status_code == 405:
        message, code = f"Method not allowed: {asked}.", "method_not_allowed"
    return ApiError(error.status_code, message, code=code, headers=error.headers)


def install(app: FastAPI, reject: Callable[[str], None]) -> None:
    """Answer every exception that a route may raise on purpose. `reject` counts, by reason, what
    was refused here."""

    @app.exception_handler(ApiError)
    async def on_api_error(_: Request, error: ApiError) -> Response:
        if error.status in _INVALID:
            reject("body_size" if error.status == 413 else "invalid")
        return error.response()

    @app.exception_handler(RequestError)
    async def on_request_error(_: Request, error: RequestError) -> Response:
        reject("invalid")
        code = error.code or "invalid_value"
        return ApiError(400, str(error), param=error.param, code=code).response()

    @app.exception_handler(EngineDeadError)
    async def on_engine_dead(_: Request, error: EngineDeadError) -> Response:
        logger.error("request refused: %s", error)
        return unavailable("The engine is not running.").response()

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        reject("invalid")
        return _from_http(error, request).response()

    @app.exception_handler(ClientLeftError)
    @app.exception_handler(ClientDisconnect)
    async def on_client_left(_: Request, __: Exception) -> Response:
        return Response(status_code=CLIENT_LEFT)
