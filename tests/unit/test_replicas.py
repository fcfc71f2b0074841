"""What replicas need that needs no Ray: options, names of beginnings, metrics, and the front."""

import asyncio
import json
import sys
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import JSONResponse

from engine.config import EngineConfig, ModelConfig, ModelSource
from engine.errors import ConfigError
from server.cli import settings_of
from server.replicas.command import main, parser
from server.replicas.exposition import merge_expositions
from server.replicas.front import REPLICA_HEADER, ReplicaFront, environment, middlewares
from server.replicas.options import ReplicaOptions
from server.replicas.prefix_names import prefix_names
from server.replicas.prefix_owners import PrefixOwners
from server.settings import ServerSettings, Settings


def settings_with(device: str) -> Settings:
    model = ModelConfig("tiny", ModelSource(path=Path("tiny")), device=device)
    return Settings(EngineConfig(model=model, max_batch=4), ServerSettings(), {})


class TestOptions:
    @pytest.mark.parametrize("text", ["0", "3:2", "x", "1:2:3", ":", "2:"])
    def test_refused(self, text):
        with pytest.raises(ConfigError, match="--replicas"):
            ReplicaOptions.parse(text)

    def test_a_fixed_number_does_not_scale(self):
        options = ReplicaOptions.parse("3").deployment(settings_with("cpu"), {"CPU": 8.0})
        assert options["num_replicas"] == 3
        assert "autoscaling_config" not in options
        assert options["ray_actor_options"] == {"num_cpus": 2.0, "num_gpus": 0.0}

    def test_a_range_scales_with_what_waits(self):
        cluster = {"CPU": 64.0, "GPU": 8.0}
        options = ReplicaOptions.parse("2:8").deployment(settings_with("auto"), cluster)
        scaling = options["autoscaling_config"]
        assert (scaling["min_replicas"], scaling["max_replicas"]) == (2, 8)
        assert scaling["target_ongoing_requests"] == 4
        assert options["ray_actor_options"] == {"num_cpus": 1.0, "num_gpus": 1.0}

    def test_a_share_may_be_named(self):
        made = ReplicaOptions.parse("1", cpus=0.5, gpus=0.25)
        options = made.deployment(settings_with("cuda"), {"GPU": 1.0})
        assert options["ray_actor_options"] == {"num_cpus": 0.5, "num_gpus": 0.25}


class TestCommand:
    def test_flags_win_over_the_file(self):
        given = parser().parse_args(["--port", "9000", "--set", "engine.max_batch=3"])
        settings = settings_of(given)
        assert (settings.server.port, settings.engine.max_batch) == (9000, 3)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--replicas", "0"], "--replicas"),
            (["--set", "server.prot=1"], "did you mean port?"),
            (["--cpus", "-1"], "--cpus"),
        ],
    )
    def test_a_mistake_is_one_line(self, arguments, said, capsys):
        assert main(arguments) == 2
        told = capsys.readouterr().err
        assert said in told
        assert told.count("\n") == 1

    def test_without_ray(self, monkeypatch, capsys):
        monkeypatch.setitem(sys.modules, "ray", None)
        assert main([]) == 1
        assert "pip install 'treeline[ray]'" in capsys.readouterr().err


def chat(*texts: str) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": t} for t in texts]}).encode()


class TestPrefixes:
    def test_a_longer_talk_has_the_names_of_the_shorter(self):
        short, long = prefix_names(chat("a" * 300)), prefix_names(chat("a" * 300, "b" * 900))
        assert len(short) == 2
        assert long[:2] == short
        assert len(long) == 4

    def test_another_beginning_has_other_names(self):
        assert not {*prefix_names(chat("a" * 300))} & {*prefix_names(chat("b" + "a" * 300))}

    @pytest.mark.parametrize(
        "body", [b"", b"[]", b'{"prompt": 1}', b'{"prompt": "short"}', b'{"prompt": []}', b"{"]
    )
    def test_nothing_to_name(self, body):
        assert prefix_names(body) == ()
        assert len(prefix_names(body, "a session")) == 1

    def test_prompts_of_ids_and_lists(self):
        ids = list(range(200))
        names = [prefix_names(json.dumps({"prompt": p}).encode()) for p in (ids, [ids], [ids, [1]])]
        assert names[0]
        assert names[0] == names[1] == names[2]

    def test_the_longest_living_owner_is_found(self):
        owners: PrefixOwners[str] = PrefixOwners()
        owners.record(["a", "b"], "first")
        owners.record(["a", "c"], "second")
        assert owners.find(["a", "b"], {"first", "second"}) == "first"
        assert owners.find(["a", "b"], {"second"}) == "second"
        assert owners.find(["a", "b"], set()) is None
        assert owners.find(["d"], {"first"}) is None

    def test_the_longest_unused_leave(self):
        owners: PrefixOwners[str] = PrefixOwners(max_names=2)
        for name in "abac":
            owners.record([name], "one")
        assert [owners.find([name], {"one"}) for name in "abc"] == ["one", None, "one"]


def test_metrics_of_all_replicas_are_one_page():
    page = b'# HELP a_total A.\n# TYPE a_total counter\na_total{m="x"} %d.0\n'
    page += b"# HELP b B.\n# TYPE b gauge\nb 2.0\n"
    merged = merge_expositions({"r1": page % 1, "r2": page % 5}).decode()
    assert merged.count("# TYPE") == 2
    samples = [s for family in text_string_to_metric_families(merged) for s in family.samples]
    assert [(s.name, s.labels["replica"], s.value) for s in samples] == [
        ("a_total", "r1", 1.0),
        ("a_total", "r2", 5.0),
        ("b", "r1", 2.0),
        ("b", "r2", 2.0),
    ]
    assert samples[0].labels["m"] == "x"


async def through(app, settings: ServerSettings | None = None, **request) -> httpx.Response:
    """One POST through the front to an app that stands for Ray's proxy."""
    front = ReplicaFront(app, settings or ServerSettings())
    transport = httpx.ASGITransport(app=front)
    async with httpx.AsyncClient(transport=transport, base_url="http://front") as http:
        return await http.post("/v1/completions", **request)


class TestFront:
    async def test_names_and_ids_reach_the_proxy_and_the_body_is_whole(self):
        async def proxy(scope, receive, send):
            headers = dict(scope["headers"])
            body = (await receive())["body"]
            told = {k: headers[k.encode()].decode() for k in ("x-session-id", "x-request-id")}
            answer = JSONResponse(told | {"body": body.decode()}, headers={REPLICA_HEADER: "r1"})
            answer.headers.append("x-request-id", "inner")
            answer.headers.append("x-request-id", "proxy")
            await answer(scope, receive, send)

        body = chat("a" * 300)
        sent = {"x-request-id": "mine", "x-session-id": "s"}
        response = await through(proxy, content=body, headers=sent)
        assert response.json()["body"].encode() == body
        assert response.json()["x-session-id"].split(",") == [*prefix_names(body, "s")]
        assert response.json()["x-request-id"] == "mine"
        assert response.headers.get_list("x-request-id") == ["mine"]

    async def test_a_replica_that_dies_before_its_answer(self):
        async def proxy(scope, receive, send):
            return

        response = await through(proxy, json={})
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json()["error"]["code"] == "service_unavailable"

    async def test_a_replica_that_dies_in_a_stream(self):
        async def proxy(scope, receive, send):
            headers = [(b"content-type", b"text/event-stream"), (REPLICA_HEADER.encode(), b"r1")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})

        events = (await through(proxy, json={})).text.split("\n\n")
        assert events[0] == "data: 1"
        assert json.loads(events[1][6:])["error"]["type"] == "service_unavailable"
        assert events[2:] == ["data: [DONE]", ""]

    async def test_what_the_proxy_says_itself_has_openais_shape(self):
        async def proxy(scope, receive, send):
            await JSONResponse("no such route", status_code=404)(scope, receive, send)

        response = await through(proxy, json={})
        assert response.status_code == 503
        assert response.json()["error"]["message"] == "No replica takes requests now."

    async def test_what_a_replica_refuses_is_passed_on(self):
        async def proxy(scope, receive, send):
            answer = JSONResponse({"error": 1}, status_code=400, headers={REPLICA_HEADER: "r1"})
            await answer(scope, receive, send)

        response = await through(proxy, json={})
        assert (response.status_code, response.json()) == (400, {"error": 1})

    async def test_a_client_that_takes_nothing_is_left(self):
        async def proxy(scope, receive, send):
            await receive()
            headers = [(REPLICA_HEADER.encode(), b"r1")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            heard.append(await receive())

        async def receive():
            if not asked:
                asked.append(True)
                return {"type": "http.request", "body": b"{}", "more_body": False}
            await asyncio.Event().wait()

        async def send(message):
            await asyncio.Event().wait()

        heard, asked = [], []
        front = ReplicaFront(proxy, ServerSettings())
        front._settings = type("Quick", (), {"stall_seconds": 0.01, "request_seconds": 1.0})
        front._settings.max_body_bytes = 1024
        scope = {"type": "http", "path": "/v1/completions", "method": "POST", "headers": []}
        await front(scope, receive, send)
        assert heard == [{"type": "http.disconnect"}]

    def test_settings_reach_the_proxies_process(self, monkeypatch):
        settings = ServerSettings(stall_seconds=5.0, max_body_bytes=2048, request_seconds=7.0)
        for name, value in environment(settings).items():
            monkeypatch.setenv(name, value)
        (made,) = middlewares()
        assert made.kwargs["settings"] == settings
