"""GET /metrics: every series from the start, sums that agree with what clients were told."""

import asyncio

import httpx
from prometheus_client.parser import text_string_to_metric_families

from engine import __version__
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
JSON = {"Content-Type": "application/json"}


async def test_children_exist_at_zero(client: httpx.AsyncClient) -> None:
    samples = await scrape(client)
    for method in METHODS:
        for name in ("drafts", "draft_tokens", "accepted_tokens", "steps", "hit_tokens", "tokens"):
            assert samples[f"treeline_spec_decode_num_{name}_total", of(method)] == 0.0
        for position in ("0", "31"):
            labels = of(method, position=position)
            assert samples["treeline_spec_decode_num_accepted_tokens_per_pos_total", labels] == 0
    for reason in ("stop", "length", "abort", "error", "invalid", "overload"):
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


async def test_what_speculation_expected_and_gave(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await complete(client, prompt="abc", max_tokens=9, speculation={"method": "auto"})
    await complete(client, prompt="abc", max_tokens=9, speculation={"method": "ptd"})
    samples = await scrape(client)
    steps = samples["treeline_spec_decode_num_steps_total", of("auto")]
    assert samples["treeline_predicted_tokens_total", MODEL] == 1.5 * steps
    assert samples["treeline_realised_tokens_total", MODEL] == 9
    assert samples["treeline_price", MODEL] == 0.5
    # Trees of 3 nodes; 9 tokens come as 4, 4 and 1, so that 3, 3 and 0 of a tree are committed.
    name = "treeline_spec_decode_accepted_depth"
    assert samples[f"{name}_count", of("ptd")] == 3
    assert samples[f"{name}_sum", of("ptd")] == 6
    assert samples[f"{name}_bucket", of("ptd", le="0.0")] == 1
    assert samples[f"{name}_bucket", of("ptd", le="2.0")] == 1
    assert samples[f"{name}_bucket", of("ptd", le="3.0")] == 3
    assert samples["treeline_spec_decode_tree_size_sum", of("ptd")] == 9


async def test_memory_and_costs(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    samples = await scrape(client)
    assert samples["treeline_kv_capacity_tokens", MODEL] == 8 * 256
    assert samples["treeline_kv_tokens", MODEL] == 0
    assert samples["treeline_answer_cache_tokens", MODEL] == 7
    assert samples["treeline_drafter_state_entries", of("auto")] == 5
    assert samples["treeline_drafter_state_entries", of("ptd")] == 0
    assert samples["treeline_memory_faults_total", MODEL] == 0
    assert samples["treeline_event_loop_tasks", MODEL] >= 1
    costs = {
        dict(labels)["rows"]: value
        for (name, labels), value in samples.items()
        if name == "treeline_step_cost_seconds"
    }
    assert costs == {"1": 0.01, "8": 0.02}
    assert samples["process_resident_memory_bytes", ()] > 1e6
    (build,) = [dict(labels) for name, labels in samples if name == "treeline_build_info"]
    assert (build["version"], build["device"]) == (__version__, "cpu")
    assert samples["treeline_prefix_cache_queries_total", MODEL] == 0
    await complete(client, prompt="abcd", max_tokens=1)
    samples = await scrape(client)
    assert samples["treeline_prefix_cache_queries_total", MODEL] == 4
    assert samples["treeline_prefix_cache_hits_total", MODEL] == 2


async def test_refusals_are_counted_by_reason(client: httpx.AsyncClient) -> None:
    before = await scrape(client)
    await client.post("/v1/completions", json={"model": "fake/model"})
    await client.get("/nowhere")
    await client.post("/v1/completions", content=b"x" * 9_000_000, headers=JSON)
    await client.get("/admin/config")
    after = await scrape(client)
    for reason, count in (("invalid", 2), ("body_size", 1), ("admin_key", 1), ("timeout", 0)):
        key = (
            "treeline_requests_rejected_total",
            tuple(sorted({**dict(MODEL), "reason": reason}.items())),
        )
        assert (before[key], after[key]) == (0, count)
