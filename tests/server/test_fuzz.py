"""Bodies that nobody planned: never a 5xx, always OpenAI's shapes, and an engine that lives on.

TREELINE_FUZZ_EXAMPLES sets how many bodies each test sends.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.schemas.chat import ChatRequest
from server.schemas.completion import CompletionRequest
from tests.server.conftest import Live, serving, wait_until
from tests.server.fakes import FakeEngine, cycle
from tests.server.sse import events
from tests.server.test_validation import check_error

EXAMPLES = int(os.environ.get("TREELINE_FUZZ_EXAMPLES", "150"))
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.integers(-2, 20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.floats(0, 2)
    | st.text(max_size=12)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
PLAUSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "prompt": st.text(max_size=20)
    | st.lists(st.text(max_size=5), max_size=3)
    | st.lists(st.integers(0, 269), max_size=9)
    | st.lists(st.lists(st.integers(0, 269), max_size=4), max_size=3),
    "messages": st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant", "system", "tool"])},
            optional={"content": st.text(max_size=9) | values, "name": st.text(max_size=3)},
        ),
        max_size=3,
    ),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "max_tokens": st.integers(0, 20),
    "n": st.integers(1, 3),
    "stop": st.lists(st.text(min_size=1, max_size=3), max_size=4) | st.sampled_from(["b", "ef"]),
    "stop_token_ids": st.lists(st.integers(90, 275), max_size=3),
    "logit_bias": st.dictionaries(st.integers(0, 280).map(str), st.floats(-101, 101), max_size=3),
    "echo": st.booleans(),
    "logprobs": st.integers(0, 5) | st.booleans(),
    "top_logprobs": st.integers(0, 20),
    "speculation": st.fixed_dictionaries(
        {},
        optional={
            "method": st.sampled_from(["off", "goose", "ptd", "x"]),
            "width": st.integers(0, 11),
            "stats": st.booleans(),
        },
    ),
}
NAMES = sorted({*CompletionRequest.model_fields, *ChatRequest.model_fields} - {"model"})


@st.composite
def bodies(draw: st.DrawFn, always: str) -> dict[str, Any]:
    """A body with `always`, some known fields with plausible or wild values, and maybe another."""
    body: dict[str, Any] = {"model": "fake/model", always: draw(PLAUSIBLE[always] | values)}
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=6, unique=True)):
        body[name] = draw(PLAUSIBLE[name] if name in PLAUSIBLE and draw(st.booleans()) else values)
    if draw(st.integers(0, 9)) == 0:
        body[draw(st.text(max_size=8))] = draw(values)
    return body


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[tuple[Live, httpx.Client]]:
    """One server for all bodies; it must be alive and idle at the end."""
    engine = FakeEngine(cycle("abcdefgh"))
    with serving(engine) as live, httpx.Client(base_url=live.url) as http:
        yield live, http
        wait_until(lambda: engine.is_idle and live.num_waiting == 0)
        assert http.get("/health").status_code == 200


def check(response: httpx.Response) -> None:
    """A valid answer of either kind, or a valid error below 500."""
    assert response.status_code < 500, response.text
    if response.status_code != 200:
        check_error(response, response.status_code)
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert all("error" not in chunk for chunk in events(response.text))
    else:
        answer = json.loads(response.text)
        if "usage" in answer:
            usage = answer["usage"]
            total = usage["prompt_tokens"] + usage["completion_tokens"]
            assert usage["total_tokens"] == total


@fuzz
@given(body=bodies("prompt"))
def test_completions(fuzzed: tuple[Live, httpx.Client], body: dict[str, Any]) -> None:
    check(_post(fuzzed[1], "/v1/completions", json.dumps(body).encode()))


@fuzz
@given(body=bodies("messages"))
def test_chat(fuzzed: tuple[Live, httpx.Client], body: dict[str, Any]) -> None:
    check(_post(fuzzed[1], "/v1/chat/completions", json.dumps(body).encode()))


@fuzz
@given(
    path=st.sampled_from(["/tokenize", "/detokenize"]),
    body=st.dictionaries(
        st.sampled_from(["prompt", "messages", "tokens", "model", "add_special_tokens"]), values
    ),
)
def test_tokenize(fuzzed: tuple[Live, httpx.Client], path: str, body: dict[str, Any]) -> None:
    check(_post(fuzzed[1], path, json.dumps(body).encode()))


@fuzz
@given(raw=st.binary(max_size=200) | values.map(lambda value: json.dumps(value).encode()))
def test_raw_bytes(fuzzed: tuple[Live, httpx.Client], raw: bytes) -> None:
    response = _post(fuzzed[1], "/v1/completions", raw)
    check_error(response, 400)


@fuzz
@given(path=st.text(st.characters(codec="ascii", exclude_characters="?#"), max_size=30))
def test_paths(fuzzed: tuple[Live, httpx.Client], path: str) -> None:
    visible = "".join(c for c in path if c.isprintable())
    for verb in ("GET", "POST", "DELETE"):
        check(fuzzed[1].request(verb, f"/{visible.lstrip('/')}"))


def _post(http: httpx.Client, path: str, raw: bytes) -> httpx.Response:
    return http.post(path, content=raw, headers={"content-type": "application/json"})
