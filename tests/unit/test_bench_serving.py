"""The load generator: its clock, its counts and its sums, against a server of a few lines."""

import asyncio
import importlib
import json
import sys
import time
from pathlib import Path

import httpx
import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module", autouse=True)
def _on_path():
    sys.path.insert(0, str(SCRIPTS))
    yield
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def load():
    return importlib.import_module("serving_load")


@pytest.fixture(scope="module")
def script():
    return importlib.import_module("bench_serving")


class Stream(httpx.AsyncByteStream):
    """Two chunks of text that bring five tokens, each after 30 ms."""

    def __init__(self, *events: dict | str) -> None:
        self._events = events

    async def __aiter__(self):
        for event in self._events:
            await asyncio.sleep(0.03)
            text = event if isinstance(event, str) else json.dumps(event)
            yield f"data: {text}\n\n".encode()


TEXT = ({"choices": [{"text": "a"}]}, {"choices": [{"text": "bcd"}]})
USAGE = {"choices": [], "usage": {"completion_tokens": 5}}


def ask(load, *events, status: int = 200, is_chat: bool = False):
    seen = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.path, json.loads(request.content)))
        return httpx.Response(status, stream=Stream(*events))

    async def run():
        transport = httpx.MockTransport(handler)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            target = load.Target(client, {"model": "m", "stream": True}, is_chat)
            return await target.ask("hello", time.perf_counter())

    answer = asyncio.run(run())
    prompt = (
        {"messages": [{"role": "user", "content": "hello"}]} if is_chat else {"prompt": "hello"}
    )
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    assert seen == [(path, {"model": "m", "stream": True} | prompt)]
    return answer


def test_tokens_are_the_servers_count_and_times_are_of_text(load) -> None:
    role = {"choices": [{"text": ""}]}
    answer = ask(load, role, *TEXT, USAGE, "[DONE]", "never read")
    assert (answer.error, answer.tokens, len(answer.gaps)) == (None, 5, 1)
    assert 0.06 < answer.ttft < 0.09 < answer.last < 0.12 < answer.e2e < 0.3
    assert answer.tpot == pytest.approx((answer.last - answer.ttft) / 4)


def test_chats_are_counted_alike(load) -> None:
    deltas = [{"choices": [{"delta": delta}]} for delta in ({"role": "x"}, {"content": "a"}, {})]
    answer = ask(load, *deltas, USAGE, "[DONE]", is_chat=True)
    assert (answer.error, answer.tokens, answer.gaps) == (None, 5, ())
    assert answer.ttft == answer.last > 0.06


@pytest.mark.parametrize(
    ("events", "status", "error"),
    [
        ((*TEXT, "[DONE]"), 200, "the stream held no usage"),
        (("busy",), 503, "HTTP 503: data: busy"),
        (({"error": {"message": "dead"}},), 200, "dead"),
        (("{nonsense",), 200, "JSONDecodeError"),
    ],
)
def test_what_goes_wrong_is_a_failed_answer(load, events, status, error) -> None:
    answer = ask(load, *events, status=status)
    assert error in answer.error
    assert answer.tokens == 0


def scripted(load, seconds: float):
    active, most = 0, 0

    async def ask(_: str, due: float):
        nonlocal active, most
        active += 1
        most = max(most, active)
        await asyncio.sleep(seconds)
        active -= 1
        return load.Answer(0.01, time.perf_counter() - due, 0.02, (), 2)

    return ask, lambda: most


def test_a_closed_loop_keeps_its_clients_busy(load) -> None:
    ask, most = scripted(load, 0.02)
    answers, seconds = asyncio.run(load.run_load(ask, ["p"] * 9, load.Load(clients=3), 0))
    assert (len(answers), most()) == (9, 3)
    assert 0.06 <= seconds < 0.2


def test_an_open_loop_does_not_wait_for_answers(load) -> None:
    ask, most = scripted(load, 0.3)
    answers, seconds = asyncio.run(load.run_load(ask, ["p"] * 20, load.Load(rate=200.0), 1))
    assert len(answers) == 20
    assert most() > 10
    assert seconds < 1.0


def test_quantiles_are_linear(script) -> None:
    assert script.quantile([], 50) == 0.0
    assert script.quantile([3.0], 99) == 3.0
    assert script.quantile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert script.quantile([1.0, 2.0], 90) == pytest.approx(1.9)


def test_goodput_counts_who_kept_every_bound(load, script) -> None:
    answers = [
        load.Answer(0.1, 1.0, 0.9, (0.4, 0.4), 9),
        load.Answer(0.3, 1.0, 0.9, (0.6,), 4),
        load.Answer(0.0, 1.0, 0.0, (), 0, "HTTP 503"),
        load.Answer(0.1, 0.1, 0.1, (), 1),
    ]
    row = script.summarise(load.Load(clients=2), answers, 2.0, {"ttft": 200.0, "tpot": 150.0})
    assert (row["requests"], row["failed"], row["errors"]) == (4, 1, ["HTTP 503"])
    assert (row["tokens"], row["tokens_per_second"], row["requests_per_second"]) == (14, 7.0, 1.5)
    assert (row["goodput_share"], row["goodput_requests_per_second"]) == (0.5, 1.0)
    assert row["ttft_ms_p50"] == pytest.approx(100.0)
    assert row["tpot_ms_p50"] == pytest.approx(150.0)
    assert row["itl_ms_p99"] == pytest.approx(598.0, abs=3.0)
    assert "2 clients" in script.table([row])


def test_the_plot_is_a_png(load, script, tmp_path: Path) -> None:
    answers = [load.Answer(0.1, 1.0, 0.9, (0.4,), 9)]
    rows = [script.summarise(load.Load(rate=r), answers, 2.0, {}) for r in (1.0, 2.0)]
    script.plot(rows, tmp_path)
    assert (tmp_path / "serving.png").read_bytes().startswith(b"\x89PNG")


def test_prompts_are_taken_from_the_files_in_turn(script, tmp_path: Path) -> None:
    for name, prompts in (("a", ["a0", "a1"]), ("b", ["b0"])):
        lines = [json.dumps({"turns": [prompt]}) for prompt in prompts]
        (tmp_path / name).write_text("\n".join(lines))
    found = script.read_prompts([tmp_path / "a", tmp_path / "b"], 5)
    assert found == ["a0", "b0", "a1", "b0", "a0"]
    assert {path.stem for path in script.PROMPTS} >= {"chat", "code", "maths", "summarising"}


def test_no_server_is_one_line(script, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--url", "http://127.0.0.1:9", "--clients", "1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bench_serving: http://127.0.0.1:9: ")


@pytest.mark.parametrize("given", [["--clients", "0"], ["--rate", "x"], ["--slo", "speed=1"], []])
def test_a_wrong_option_is_refused(script, given: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        script.main(given)
