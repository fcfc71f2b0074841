"""GET /metrics: every series from the start, sums that agree with what clients were told."""

import asyncio

import httpx
from prometheus_client.parser import text_string_to_metric_families

from engine.config import METHODS
from tests.server.conftest import wait_until
from tests.server.fakes import FakeEngine, cycle
from tests.server.sse import complete


async def scrape(client: httpx.AsyncClient) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """All samples by name and labels."""
    response = await client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def of(method: str, **more: str) -> tuple[tuple[str, str], ...]:
    """Labels of a speculation series."""
    return tuple(sorted({"model_name": "fake/model", "method": method, **more}.items()))


MODEL = (("model_name", "fake/model"),)


async def test_children_exist_at_zero(client: httpx.AsyncClient) -> None:
    samples = await scrape(client)
    for method in METHODS:
        for name in ("drafts", "draft_tokens", "accepted_tokens", "steps", "hit_tokens", "tokens"):
            assert samples[f"treeline_spec_decode_num_{name}_total", of(method)] == 0.0
        for position in ("0", "31"):
            labels = of(method, position=position)
            assert samples["treeline_spec_decode_num_accepted_tokens_per_pos_total", labels] == 0
    for reason in ("stop", "length", "abort", "error"):
        labels = tuple(sorted({**dict(MODEL), "finished_reason": reason}.items()))
        assert samples["treeline_request_success_total", labels] == 0.0
    for name in ("num_requests_running", "num_requests_waiting", "prompt_tokens_total"):
        assert samples[f"treeline_{name}", MODEL] == 0.0
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        assert samples[f"treeline_{name}_seconds_count", MODEL] == 0.0
        for bound in ("0.001", "0.002", "0.003", "0.009"):
            labels = tuple(sorted({**dict(MODEL), "le": bound}.items()))
            assert samples[f"treeline_{name}_seconds_bucket", labels] == 0.0
    assert samples["treeline_request_queue_time_seconds_count", MODEL] == 0.0


async def test_sums(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    wish = {"method": "ptd", "stats": True}
    answer = await complete(client, prompt=["abc", "d"], n=2, max_tokens=7, speculation=wish)
    await complete(client, prompt="x", max_tokens=5, speculation={"method": "off"})
    samples = await scrape(client)
    stats = answer["speculation"]
    for name in ("steps", "drafts", "draft_tokens", "accepted_tokens"):
        assert samples[f"treeline_spec_decode_num_{name}_total", of("ptd")] == stats[name]
    for position, count in enumerate(stats["accepted_per_depth"]):
        labels = of("ptd", position=str(position))
        assert samples["treeline_spec_decode_num_accepted_tokens_per_pos_total", labels] == count
    assert samples["treeline_spec_decode_num_tokens_total", of("ptd")] == 28
    assert samples["treeline_spec_decode_num_tokens_total", of("off")] == 5
    assert samples["treeline_spec_decode_num_accepted_tokens_total", of("off")] == 0
    assert samples["treeline_generation_tokens_total", MODEL] == 33
    assert samples["treeline_prompt_tokens_total", MODEL] == 9
    ends = tuple(sorted({**dict(MODEL), "finished_reason": "length"}.items()))
    assert samples["treeline_request_success_total", ends] == 5
    assert samples["treeline_time_to_first_token_seconds_count", MODEL] == 5
    assert samples["treeline_e2e_request_latency_seconds_count", MODEL] == 5
    assert samples["treeline_request_queue_time_seconds_count", MODEL] == 5
    # A gap per token behind the first block: 3 of 7 in each of four, 4 of 5 in the last.
    assert samples["treeline_inter_token_latency_seconds_count", MODEL] == 16
    assert samples["treeline_spec_decode_tree_size_count", of("ptd")] == stats["steps"]


async def test_load_is_read_at_scrape_time(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.script = cycle("a")
    engine.gate.clear()
    body = {"model": "fake/model", "prompt": ["x"] * 12}
    task = asyncio.create_task(client.post("/v1/completions", json=body))
    await asyncio.to_thread(wait_until, lambda: len(engine.requests) == 12)
    samples = await scrape(client)
    assert samples["treeline_num_requests_waiting", MODEL] == 12
    engine.gate.set()
    assert (await task).status_code == 200
    samples = await scrape(client)
    assert samples["treeline_num_requests_running", MODEL] == 0
    assert samples["treeline_num_requests_waiting", MODEL] == 0
