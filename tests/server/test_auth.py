"""Keys: deny by default on every route and every spelling of it; rates; other origins."""

import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from engine.errors import ConfigError
from server.api_keys import ApiKeys
from server.rate_limiter import RateLimiter
from server.settings import ServerSettings
from tests.server.conftest import build, client_of
from tests.server.fakes import FakeEngine
from tests.server.test_validation import check_error

OPEN = {"/health", "/ready"}
BODY: dict[str, Any] = {"model": "fake/model", "prompt": "p", "max_tokens": 2}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
async def guarded(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(build(engine, ServerSettings(api_key="user", admin_key="root"))) as http:
        yield http


def all_routes(engine: FakeEngine) -> list[tuple[str, str]]:
    """Every method and path of the app, those of included routers too."""
    document = build(engine).openapi()["paths"]
    listed = [(method.upper(), path) for path, methods in document.items() for method in methods]
    plain = [r for r in build(engine).routes if isinstance(r, Route)]
    return [*listed, *((method, r.path) for r in plain for method in r.methods or ())]


async def test_every_route_but_the_probes_asks_for_a_key(
    guarded: httpx.AsyncClient, engine: FakeEngine
) -> None:
    found = all_routes(engine)
    paths = {path for _, path in found}
    assert paths >= OPEN | {"/metrics", "/v1/completions", "/openapi.json", "/admin/config"}
    for method, path in found:
        response = await guarded.request(method, path)
        if path in OPEN:
            assert response.status_code == 200
        else:
            assert response.status_code == 401, path
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.headers["x-request-id"]
            if method != "HEAD":
                assert check_error(response, 401)["code"] == "invalid_api_key"


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize(
    "path",
    [
        *("//v1/models", "/v1%2fmodels", "/%761/models", "/v1/models/", "/v1/../v1/models"),
        *("/V1/models", "/health/", "//health", "/health%2f", "/ready/../metrics", "/health;x"),
        *("/health%00", "/health/../v1/models", "/nothing", "/", "/admin/config/"),
    ],
)
async def test_no_spelling_slips_past(guarded: httpx.AsyncClient, method: str, path: str) -> None:
    response = await guarded.send(raw_request(method, path))
    assert response.status_code == 401


def raw_request(method: str, path: str) -> httpx.Request:
    """A request whose path is sent as it is written."""
    request = httpx.Request(method, "http://server/")
    request.url = httpx.URL("http://server/").copy_with(raw_path=path.encode())
    return request


@pytest.mark.parametrize(
    "sent",
    [
        [],
        ["user"],
        ["Bearer"],
        ["Bearer "],
        ["Basic user"],
        ["Bearer User"],
        ["Bearer user x"],
        ["Bearer usér"],
        ["Bearer use"],
        ["Bearer user", "Bearer user"],
        ["Bearer null", "Bearer user"],
    ],
)
async def test_a_wrong_key_is_refused(guarded: httpx.AsyncClient, sent: list[str]) -> None:
    headers = [(b"Authorization", value.encode("latin-1")) for value in sent]
    response = await guarded.post("/v1/completions", json=BODY, headers=headers)
    check_error(response, 401)


async def test_a_right_key_opens(guarded: httpx.AsyncClient) -> None:
    for headers in (bearer("user"), bearer("root"), {"authorization": "bearer  user "}):
        response = await guarded.post("/v1/completions", json=BODY, headers=headers)
        assert response.status_code == 200
    head = await guarded.send(raw_request("HEAD", "/health"))
    assert head.status_code == 405


async def test_only_an_admin_key_opens_admin(guarded: httpx.AsyncClient) -> None:
    refused = await guarded.get("/admin/config", headers=bearer("user"))
    error = check_error(refused, 403)
    assert (error["type"], error["code"]) == ("permission_error", "admin_key_required")


async def test_nobody_opens_admin_without_an_admin_key(client: httpx.AsyncClient) -> None:
    for path in ("/admin/config", "/admin/speculation", "/admin", "/admin/"):
        check_error(await client.get(path), 403)
        check_error(await client.post(path, json={"method": "off"}), 403)


async def test_keys_from_a_file(engine: FakeEngine, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the two teams\nfirst\n\n  second  \nadmin: third\n")
    settings = ServerSettings(api_key="zeroth", api_key_file=file)
    async with client_of(build(engine, settings)) as http:
        for key, code in (("zeroth", 403), ("first", 403), ("second", 403), ("fourth", 401)):
            assert (await http.get("/admin/config", headers=bearer(key))).status_code == code
        answer = await http.post(
            "/admin/speculation", json={"method": "off"}, headers=bearer("third")
        )
        assert answer.status_code == 200


@pytest.mark.parametrize("text", ["two words\n", "admin:\n", "ok\nadmin: a b\n"])
def test_a_malformed_file_of_keys_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"expected one key") as caught:
        ApiKeys(ServerSettings(api_key_file=file))
    assert "two" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot read it"):
        ApiKeys(ServerSettings(api_key_file=tmp_path / "missing"))


def test_settings_never_show_keys() -> None:
    assert "sesame" not in repr(ServerSettings(api_key="sesame", admin_key="sesame"))


class TestRate:
    """Each key has its own window; a refusal says when to come back."""

    async def test_per_key(self, engine: FakeEngine) -> None:
        settings = ServerSettings(api_key="a", admin_key="root", rate_limit="2/minute")
        async with client_of(build(engine, settings)) as http:
            codes = []
            for _ in range(3):
                response = await http.post("/v1/completions", json=BODY, headers=bearer("a"))
                codes.append(response.status_code)
            assert codes == [200, 200, 429]
            error = check_error(response, 429)
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            assert 1 <= int(response.headers["retry-after"]) <= 60
            assert (await http.get("/v1/models", headers=bearer("a"))).status_code == 200
            for _ in range(3):  # administrators are not limited
                response = await http.post("/v1/completions", json=BODY, headers=bearer("root"))
                assert response.status_code == 200

    async def test_per_address_without_keys(self, engine: FakeEngine) -> None:
        async with client_of(build(engine, ServerSettings(rate_limit="1/minute"))) as http:
            assert (await http.post("/v1/completions", json=BODY)).status_code == 200
            check_error(await http.post("/v1/completions", json=BODY), 429)

    def test_windows_move_and_refusals_do_not_count(self) -> None:
        limiter = RateLimiter("2/second; 100/hour")
        assert [limiter.seconds_to_wait("x") for _ in range(4)] == [None, None, 1, 1]
        assert limiter.seconds_to_wait("y") is None
        time.sleep(1.05)
        assert limiter.seconds_to_wait("x") is None

    def test_a_rate_that_cannot_be_read(self) -> None:
        with pytest.raises(ConfigError, match="rate_limit must read like"):
            ServerSettings(rate_limit="often")


class TestOrigins:
    """Other origins are refused by default, and are one setting away."""

    ORIGIN = "https://chat.example.org"

    async def test_off_by_default(self, client: httpx.AsyncClient) -> None:
        response = await client.get("/v1/models", headers={"Origin": self.ORIGIN})
        assert "access-control-allow-origin" not in response.headers

    async def test_a_listed_origin(self, engine: FakeEngine) -> None:
        settings = ServerSettings(cors_origins=(self.ORIGIN,), api_key="a")
        asked = {
            "Origin": self.ORIGIN,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        async with client_of(build(engine, settings)) as http:
            preflight = await http.options("/v1/completions", headers=asked)
            assert preflight.status_code == 200
            assert preflight.headers["access-control-allow-origin"] == self.ORIGIN
            other = await http.options("/v1/completions", headers={**asked, "Origin": "https://x"})
            assert other.status_code == 400
            assert "access-control-allow-origin" not in other.headers
            refused = await http.get("/v1/models", headers={"Origin": self.ORIGIN})
            assert refused.status_code == 401
            assert refused.headers["access-control-allow-origin"] == self.ORIGIN


def test_half_a_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="go together"):
        ServerSettings(ssl_certfile=tmp_path / "cert.pem")


async def test_no_key_reaches_the_log(
    guarded: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await guarded.post("/v1/completions", json=BODY, headers=bearer("user"))
    await guarded.post("/v1/completions", json=BODY, headers=bearer("guess"))
    lines = [str(getattr(record, "fields", "")) + record.getMessage() for record in caplog.records]
    assert any("key-1" in line for line in lines)
    assert not any("guess" in line or "Bearer" in line for line in lines)
