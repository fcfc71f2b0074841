"""The same engine on a CUDA device: losslessness in fp32, and near ties only in bf16."""

import dataclasses

import pytest
import torch

from engine.config import METHODS
from tests.engine.tiny import FAMILIES, make_core, prompts, request, run, tiny_loaded, tiny_model

pytestmark = pytest.mark.gpu
TOLERATED = 0.3  # logits; a bf16 near tie


def cuda_core(monkeypatch, family: str, dtype: torch.dtype = torch.float32):
    """A core whose tiny model and KV slots live on the device."""
    fresh = tiny_model.__wrapped__(family, dtype)  # the cached one may be packed for the CPU
    on_device = dataclasses.replace(
        tiny_loaded(family, dtype), model=fresh.to("cuda"), device=torch.device("cuda")
    )
    monkeypatch.setattr("tests.engine.tiny.tiny_loaded", lambda *_: on_device)
    core = make_core(family, dtype=dtype)
    assert core._runner.kv.data.is_cuda
    return core


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 3}], ids=str)
def test_fp32_is_lossless(monkeypatch, family: str, sampling: dict) -> None:
    core = cuda_core(monkeypatch, family)
    some = prompts(6, seed=71)
    plain = [run(core, [request(p, **sampling)])[0].token_ids for p in some]
    for method in set(METHODS) - {"off", "rest"}:
        fast = run(core, [request(p, method, **sampling) for p in some])
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
