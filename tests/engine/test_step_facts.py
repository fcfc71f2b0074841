"""What a step and a status tell an operator: trees, prefix hits, KV rows, the cost table."""

from dataclasses import replace

from engine.config import AutoConfig, SpeculationConfig
from engine.types import SpecStats
from tests.engine.test_client import start
from tests.engine.tiny import EOS, make_core, prompts, request


def test_trees_are_told_one_by_one_and_add_up() -> None:
    core = make_core()
    for prompt in prompts(3, seed=2):
        core.add(request(prompt, "goose"))
        core.add(request(prompt, "off"))
    totals: dict[str, SpecStats] = {}
    sizes: dict[str, list[int]] = {"goose": [], "off": []}
    while core.has_work:
        step = core.step()
        for method, stats in step.spec:
            totals[method] = totals.get(method, SpecStats()) + stats
        for method, size in step.trees:
            sizes[method].append(size)
    for method, stats in totals.items():
        assert len(sizes[method]) == stats.steps
        assert sum(sizes[method]) == stats.draft_tokens
    assert sum(sizes["goose"]) > 0 == sum(sizes["off"])


def test_prefix_hits_and_kv_rows_in_use() -> None:
    core = make_core()
    prompt = [9 + i for i in range(30)]

    def serve(token_ids: list[int]) -> tuple[int, int, int]:
        core.add(request(token_ids, max_tokens=4, ignore_eos=True))
        queries = hits = most = 0
        while core.has_work:
            step = core.step()
            queries, hits = queries + step.num_prefix_queries, hits + step.num_prefix_hits
            most = max(most, core.num_kv_tokens)
        return queries, hits, most

    assert serve(prompt) == (30, 0, 32)
    assert serve([*prompt, 8, 8]) == (32, 30, 34)
    assert core.num_kv_tokens == 0


def test_status_carries_the_cost_table_and_the_cache() -> None:
    auto = AutoConfig(cache_scope="here")
    core = make_core(speculation=replace(SpeculationConfig(), auto=auto))
    engine, listener, _ = start(core)
    item = request([EOS + 1] * 8, "auto", max_tokens=20, ignore_eos=True)
    engine.add(item)
    listener.wait(lambda: listener.ended(item.request_id))
    status = engine.status()
    engine.shutdown(timeout=5.0)
    assert [rows for rows, _ in status.step_cost] == list(core.planner.cost.sizes)
    seconds = [cost for _, cost in status.step_cost]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    assert status.num_cache_tokens == core.num_cache_tokens > 0
    assert status.num_kv_tokens == 0
