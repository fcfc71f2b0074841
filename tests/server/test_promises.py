"""What an answer says of itself: tokens that were kept from before, and whether it is exact."""

from typing import Any

import httpx
import pytest

from tests.server.conftest import build, client_of
from tests.server.fakes import FakeEngine, cycle
from tests.server.sse import complete, stream
from tests.server.test_metrics import MODEL, scrape
from tests.server.test_validation import check_error

ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "hello"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
]


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_cached_tokens(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    """As the engine counted them, and as the hit rate of /metrics has them."""
    answer = await complete(client, path, max_tokens=5, **body)
    usage = answer["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": usage["prompt_tokens"] // 2}
    samples = await scrape(client)
    hits, queries = (
        samples[f"treeline_prefix_cache_{name}_total", MODEL] for name in ("hits", "queries")
    )
    assert hits == usage["prompt_tokens_details"]["cached_tokens"]
    assert queries == usage["prompt_tokens"]
    chunks = await stream(client, path, stream_options={"include_usage": True}, **body)
    assert chunks[-1]["usage"]["prompt_tokens_details"] == usage["prompt_tokens_details"]


async def test_each_prompt_counts_once(client: httpx.AsyncClient) -> None:
    answer = await complete(client, prompt=["four", "sixsix"], n=3, max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == 10
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_exact(path: str, body: dict[str, Any], is_exact: bool) -> None:
    engine = FakeEngine(cycle("ab"), is_exact=is_exact)
    wish = {"exact": True, "stats": True}
    async with client_of(build(engine)) as http:
        model = (await http.get("/v1/models/fake/model")).json()
        assert model["speculation"]["exact"] is is_exact
        plain = await complete(http, path, max_tokens=3, speculation={"stats": True}, **body)
        assert plain["speculation"]["exact"] is is_exact
        if is_exact:
            answer = await complete(http, path, max_tokens=3, speculation=wish, **body)
            assert answer["speculation"]["exact"] is True
            assert engine.requests[0].prompt_token_ids == engine.requests[1].prompt_token_ids
            return
        for is_stream in (False, True):
            request = {"model": "fake/model", "speculation": wish, "stream": is_stream, **body}
            error = check_error(await http.post(path, json=request), 400)
            assert (error["param"], error["code"]) == (
                "speculation.exact",
                "unsupported_parameter",
            )
        assert len(engine.requests) == 1  # none of the refused
