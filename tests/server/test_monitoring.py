"""Monitoring and containers ask only for what the server has: metrics, labels, routes, settings."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from server.settings import ServerSettings
from tests.server.monitoring import (
    MONITORING,
    ROOT,
    Query,
    Samples,
    dashboard,
    matches,
    panel_queries,
    rule_queries,
    rules,
)

TARGET_LABELS = {"instance": "server:8000", "job": "treeline"}  # added by every scrape
QUERIES = [*panel_queries(), *rule_queries()]


@pytest.fixture
async def samples(client: httpx.AsyncClient) -> Samples:
    """All series of a server that has served nothing yet, and those that the rules record."""
    found: dict[str, list[Mapping[str, str]]] = {"up": [TARGET_LABELS]}
    for family in text_string_to_metric_families((await client.get("/metrics")).text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append({**sample.labels, **TARGET_LABELS})
    for rule in rules():
        if "record" in rule:
            labels = Query(rule["record"], rule["expr"]).grouping
            found[rule["record"]] = [dict.fromkeys(labels, "any")]
    return found


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.place)
def test_every_selector_finds_a_series(query: Query, samples: Samples) -> None:
    assert query.selectors
    for name, matchers in query.selectors:
        assert name in samples, f"{name} is not exported"
        hits = [s for s in samples[name] if all(matches(s, matcher) for matcher in matchers)]
        assert hits, f"no series of {name} has {matchers}"
        assert all(label in samples[name][0] for label, _, _ in matchers)
    known = {label for name, _ in query.selectors for labels in samples[name] for label in labels}
    assert query.grouping <= known


@pytest.mark.parametrize(
    ("expr", "selectors"),
    [
        ('rate(a_total{x="1",y!~"b|c"}[5m])', [("a_total", [("x", "=", "1"), ("y", "!~", "b|c")])]),
        ("sum by (a) (b) / on (c) group_left () (l:d:r > 0)", [("b", []), ("l:d:r", [])]),
        ("up unless (rate(d[$__rate_interval]) + e) > 0.5", [("up", []), ("d", []), ("e", [])]),
    ],
)
def test_reading_expressions_apart(expr: str, selectors: list[Any]) -> None:
    assert Query("", expr).selectors == selectors


def test_an_unknown_metric_is_found(samples: Samples) -> None:
    with pytest.raises(AssertionError, match="treeline_nothing is not exported"):
        test_every_selector_finds_a_series(Query("", "sum(treeline_nothing)"), samples)
    with pytest.raises(AssertionError, match="no series of up"):
        test_every_selector_finds_a_series(Query("", 'up{job="other"}'), samples)


def test_the_dashboard_asks_the_provisioned_datasource() -> None:
    provisioning = MONITORING / "grafana" / "provisioning"
    sources = _yaml(provisioning / "datasources" / "treeline.yml")["datasources"]
    panels = dashboard()["panels"]
    asked = {target["datasource"]["uid"] for p in panels for target in p.get("targets", ())}
    assert asked == {source["uid"] for source in sources}
    assert len({panel["id"] for panel in panels}) == len(panels)
    (provider,) = _yaml(provisioning / "dashboards" / "treeline.yml")["providers"]
    mounts = dict(volume.split(":")[:2] for volume in _services()["grafana"]["volumes"])
    folder = ROOT / next(
        here for here, there in mounts.items() if there == provider["options"]["path"]
    )
    assert (folder / "treeline.json").is_file()


def test_prometheus_scrapes_the_server_of_the_compose_file() -> None:
    (job,) = _yaml(MONITORING / "prometheus.yml")["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    for name in ("cpu", "gpu"):
        service = _services()[name]
        assert host in service["networks"]["default"]["aliases"]
        assert service["ports"][0].endswith(f":{port}")
    assert int(port) == ServerSettings().port


def test_every_mounted_file_exists() -> None:
    for service in _services().values():
        for volume in service["volumes"]:
            here = volume.split(":")[0]
            assert not here.startswith(".") or (ROOT / here).exists(), here


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_a_container_has_time_to_drain(name: str) -> None:
    service = _services()[name]
    grace = int(service["stop_grace_period"].removesuffix("s"))
    drain = int(service["environment"]["TREELINE_SERVER_DRAIN_SECONDS"])
    assert drain == ServerSettings().drain_seconds
    assert grace > drain


async def test_the_health_check_asks_for_readiness(client: httpx.AsyncClient) -> None:
    found = re.search(r"c\.request\('GET', '([^']+)'\)", (ROOT / "Dockerfile").read_text())
    assert found
    assert found[1] == "/ready"
    assert (await client.get(found[1])).status_code == 200


def _services() -> dict[str, Any]:
    services: dict[str, Any] = _yaml(ROOT / "docker-compose.yml")["services"]
    return services


def _yaml(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded
