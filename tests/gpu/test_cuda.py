"""The same engine on a CUDA device: lossless in fp32 and in exact bf16, near ties only in bf16."""

import dataclasses
import random

import pytest
import torch

from engine.config import METHODS
from engine.core import EngineCore
from engine.model.run_request import RunRequest
from engine.spec.drafter import Needs
from engine.spec.tree import TokenTree
from tests.engine.tiny import (
    FAMILIES,
    VOCAB,
    make_core,
    prompts,
    request,
    run,
    tiny_loaded,
    tiny_model,
)

pytestmark = pytest.mark.gpu
TOLERATED = 0.3  # logits; a bf16 near tie
DRAFTING = sorted(set(METHODS) - {"off", "rest"})
SAMPLINGS = [{}, {"temperature": 0.9, "seed": 3}]


def cuda_core(monkeypatch, family: str, dtype: torch.dtype = torch.float32, **passes) -> EngineCore:
    """A core whose tiny model and KV slots live on the device; `passes`: see ModelRunner."""
    fresh = tiny_model.__wrapped__(family, dtype)  # the cached one may be packed for the CPU
    on_device = dataclasses.replace(
        tiny_loaded(family, dtype), model=fresh.to("cuda"), device=torch.device("cuda")
    )
    monkeypatch.setattr("tests.engine.tiny.tiny_loaded", lambda *_: on_device)
    core = make_core(family, dtype=dtype, passes={"attention": "triton"} | passes)
    assert core._runner.kv.data.is_cuda
    return core


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_fp32_is_lossless(monkeypatch, family: str, sampling: dict) -> None:
    core = cuda_core(monkeypatch, family, cuda_graphs="always")
    assert core._runner.passes == "triton, graphs"
    some = prompts(6, seed=71)
    plain = [run(core, [request(p, **sampling)])[0].token_ids for p in some]
    for method in DRAFTING:
        fast = run(core, [request(p, method, **sampling) for p in some])
        assert [o.token_ids for o in fast] == plain, method


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Gemma2"])
def test_every_way_to_run_gives_the_same_text(monkeypatch, family: str) -> None:
    """Graphs, the same kernels without them, and torch's attention."""
    some = prompts(8, seed=72)
    texts = []
    for passes in (
        {"cuda_graphs": "always"},
        {"cuda_graphs": "never"},
        {"attention": "sdpa", "cuda_graphs": "never"},
    ):
        core = cuda_core(monkeypatch, family, **passes)
        fast = run(core, [request(p, "goose") for p in some])
        texts.append([o.token_ids for o in fast])
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("family", ["Llama", "Gemma2"])
def test_a_graph_gives_what_the_eager_step_gives(monkeypatch, family: str) -> None:
    """Rows of every bucket, few of them padding; and no key or value of another row changes."""
    graphs = cuda_core(monkeypatch, family, cuda_graphs="always")._runner
    eager = cuda_core(monkeypatch, family, attention="sdpa", cuda_graphs="never")._runner
    rng = random.Random(7)
    lengths = (150, 64, 1)
    for runner in (graphs, eager):
        runner.kv.data.zero_()
    for slot, length in enumerate(lengths):
        text = [rng.randrange(VOCAB) for _ in range(length)]
        for runner in (graphs, eager):
            runner.run([RunRequest(slot, 0, text, None, Needs())])
    for sizes in ((1,), (1, 1, 1), (3, 2), (9, 1, 4), (30, 2, 1), (40, 20, 30)):
        parts = []
        for slot, size in enumerate(sizes):
            tree = TokenTree.anchored(rng.randrange(VOCAB))
            while len(tree) < size:
                tree.add(rng.randrange(len(tree)), rng.randrange(VOCAB))
            parts.append(RunRequest(slot, lengths[slot], (), tree, Needs(top_k=5)))
        before = graphs.kv.data.clone()
        ours, theirs = graphs.run(parts), eager.run(parts)
        for part, got, expected in zip(parts, ours, theirs, strict=True):
            torch.testing.assert_close(got.logits, expected.logits, atol=1e-3, rtol=0)
            assert got.argmax == expected.argmax
            assert (got.rows.token_ids[:, 0] == got.argmax).all()
            rows = slice(part.committed_len, part.committed_len + part.num_rows)
            before[:, :, part.slot, :, rows] = graphs.kv.data[:, :, part.slot, :, rows]
        assert torch.equal(graphs.kv.data, before)
        torch.testing.assert_close(graphs.kv.data, eager.kv.data, atol=1e-3, rtol=0)


@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Gemma2"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_exact_bf16_is_lossless(monkeypatch, family: str, sampling: dict) -> None:
    core = cuda_core(monkeypatch, family, torch.bfloat16, exact=True)
    assert core._runner.is_exact, "the probe at start found rows that depend on their company"
    some = [prompt * 3 for prompt in prompts(6, seed=74)]
    plain = [run(core, [request(p, **sampling, max_tokens=60)])[0].token_ids for p in some]
    for method in DRAFTING:
        fast = run(core, [request(p, method, **sampling, max_tokens=60) for p in some])
        assert [o.token_ids for o in fast] == plain, method


def test_bf16_differs_at_near_ties_only(monkeypatch) -> None:
    core = cuda_core(monkeypatch, "Llama", torch.bfloat16)
    for prompt in prompts(20, seed=73):
        plain = run(core, [request(prompt, logprobs=2)])[0]
        fast = run(core, [request(prompt, "goose", logprobs=2)])[0]
        for ours, theirs in zip(plain.logprobs, fast.logprobs, strict=False):
            if ours.token_id != theirs.token_id:
                assert ours.top[0][1] - ours.top[1][1] < TOLERATED
                break
