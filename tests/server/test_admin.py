"""/admin: the resolved configuration with origins, and speculation changed while serving."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.app import create_app
from server.config_loader import Override, load_settings
from tests.server.conftest import client_of
from tests.server.fakes import FakeEngine, FakeTokenizer
from tests.server.sse import complete
from tests.server.test_validation import check_error

YAML = "model:\n  name: fake/model\n  source:\n    path: /m\nserver:\n  admin_key: root\n"


@pytest.fixture
async def admin(engine: FakeEngine, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    (tmp_path / "c.yaml").write_text(YAML)
    flag = Override("--depth", "speculation.tree.depth", "20")
    loaded = load_settings(str(tmp_path / "c.yaml"), [flag])
    app = create_app(
        engine, FakeTokenizer(), loaded.engine.speculation, loaded.server, resolved=loaded
    )
    async with client_of(app) as http:
        http.headers["Authorization"] = "Bearer root"
        yield http


async def config(http: httpx.AsyncClient) -> dict[str, Any]:
    response = await http.get("/admin/config")
    assert response.status_code == 200, response.text
    shown: dict[str, Any] = response.json()
    return shown


async def test_config_with_origins_and_without_keys(admin: httpx.AsyncClient) -> None:
    shown = await config(admin)
    assert shown["speculation.tree.depth"] == {"value": 20, "origin": "--depth"}
    assert shown["server.port"] == {"value": 8000, "origin": "default"}
    assert shown["model.name"]["origin"].endswith("c.yaml:2")
    assert shown["model.source.path"]["value"] == "/m"
    assert shown["server.admin_key"]["value"] == "hidden"
    assert shown["server.api_key"]["value"] is None


async def test_the_default_method_and_bounds_change(
    admin: httpx.AsyncClient, engine: FakeEngine
) -> None:
    before = (await admin.get("/v1/models")).json()["data"][0]["speculation"]
    first = await complete(admin, prompt="p", max_tokens=2)
    response = await admin.post("/admin/speculation", json={"method": "off", "budget": 8})
    assert response.status_code == 200
    after = (await admin.get("/v1/models")).json()["data"][0]["speculation"]
    assert response.json() == after
    assert (before["method"], after["method"]) == ("auto", "off")
    assert after["bounds"] == {**before["bounds"], "budget": 8}
    second = await complete(admin, prompt="p", max_tokens=2)
    assert engine.requests[-1].speculation.method == "off"
    assert first["system_fingerprint"] != second["system_fingerprint"]
    over = {"model": "fake/model", "prompt": "p", "speculation": {"budget": 9}}
    check_error(await admin.post("/v1/completions", json=over), 400)
    shown = await config(admin)
    changed = {path for path, entry in shown.items() if entry["origin"].startswith("POST")}
    assert changed == {"speculation.method", "speculation.tree.budget"}
    assert shown["speculation.tree.budget"]["value"] == 8
    # Up again, but never above what was allocated at start.
    assert (await admin.post("/admin/speculation", json={"budget": 128})).status_code == 200
    error = check_error(await admin.post("/admin/speculation", json={"budget": 129}), 400)
    assert error["param"] == "budget"
    error = check_error(await admin.post("/admin/speculation", json={"depth": 21}), 400)
    assert error["param"] == "depth"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"method": "gose"}, "speculation.method"),
        ({"method": "rest"}, "speculation.method"),  # without a datastore
        ({"width": 0}, "width"),
        ({"width": "3"}, "width"),
        ({"method": "off", "depth": 10_000}, "depth"),
        ({"temperature": 1}, "temperature"),
    ],
)
async def test_a_wrong_change_changes_nothing(
    admin: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    before = await config(admin)
    error = check_error(await admin.post("/admin/speculation", json=body), 400)
    assert error["param"] == param
    assert await config(admin) == before
