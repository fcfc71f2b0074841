"""Recorded steps and how a GPU starts, on a CPU: plain calls stand in for recordings."""

import logging
import random
from collections.abc import Sequence

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.errors import ModelError
from engine.model import gpu_start
from engine.model.gpu_start import GpuPasses, start_gpu
from engine.model.kv_cache import KvCache
from engine.model.packed_pass import PackedPass
from engine.model.row_blocks import ROW_BLOCK, BlockedLinear
from engine.model.run_request import RunRequest
from engine.model.runner import ModelRunner
from engine.model.sdpa_attention import SdpaStep
from engine.model.self_check import RaggedBatch, rows_keep_their_bits
from engine.model.step_graphs import StaticStep, StepGraphs
from engine.spec.drafter import Needs
from engine.spec.tree import TokenTree
from tests.engine.plain_attention import PlainAttention
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

TOLERANCE = 1e-4


def runner_of(family: str) -> ModelRunner:
    return ModelRunner(tiny_loaded(family), 3, 64, attention="sdpa")


def record_nothing(runner: ModelRunner, row_counts: Sequence[int] = (4, 16, 80)) -> StepGraphs:
    attention = PlainAttention(runner.kv)
    return StepGraphs(runner._model, attention, lambda compute: compute, row_counts)


def random_tree(rng: random.Random, size: int) -> TokenTree:
    tree = TokenTree.anchored(rng.randrange(VOCAB))
    while len(tree) < size:
        tree.add(rng.randrange(len(tree)), rng.randrange(VOCAB))
    return tree


@torch.inference_mode()
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Gemma2"])
def test_recorded_steps_equal_plain_ones(family: str) -> None:
    """Ragged batches of trees behind chunks; rows of padding leave every key and value alone."""
    rng = random.Random(4)
    runner = runner_of(family)
    graphs = record_nothing(runner)
    runner.kv.data.zero_()
    lengths = (70, 127, 0)
    for slot, length in enumerate(lengths[:2]):
        text = [rng.randrange(VOCAB) for _ in range(length)]
        runner.run([RunRequest(slot, 0, text, None, Needs())])
    for sizes in ((1, 1, 1), (2, 9, 5), (18, 1, 25)):
        parts = [
            RunRequest(slot, lengths[slot], [5] * slot, random_tree(rng, size), Needs(3))
            for slot, size in enumerate(sizes)
        ]
        assert graphs.fits(parts)
        before = runner.kv.data.clone()
        got = graphs.run(PackedPass.of(parts), 3)
        after = runner.kv.data.clone()
        logits = torch.cat([result.logits for result in runner.run(parts)])
        torch.testing.assert_close(got.logits, logits, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(runner.kv.data, after, atol=TOLERANCE, rtol=0)
        assert got.argmax == got.logits.argmax(1).tolist()
        expected = torch.topk(got.logits, 3)
        assert got.best.token_ids.tolist() == expected.indices.tolist()
        assert got.best.logits.tolist() == expected.values.tolist()
        for part in parts:
            first = part.committed_len
            before[:, :, part.slot, :, first : first + part.num_rows] = 0
            after[:, :, part.slot, :, first : first + part.num_rows] = 0
        assert torch.equal(before, after)


@torch.inference_mode()
def test_more_best_tokens_than_recorded_are_found_too() -> None:
    graphs = record_nothing(runner_of("Llama"))
    part = RunRequest(0, 0, (), random_tree(random.Random(2), 7), Needs(40))
    got = graphs.run(PackedPass.of([part]), 40)
    assert got.best.token_ids.tolist() == torch.topk(got.logits, 40).indices.tolist()
    assert not graphs.fits([RunRequest(0, 0, [1] * 81, None, Needs(prompt_rows=True))])
    assert not graphs.fits([RunRequest(0, 0, [1] * 3, None, Needs())]), "nothing is read"


@pytest.mark.parametrize(("method", "temperature"), [("goose", 0.0), ("ptd", 0.9)])
def test_speculation_through_recorded_steps_is_lossless(method: str, temperature: float) -> None:
    core = make_core("Mistral")
    sampling = {"temperature": temperature, "max_tokens": 10}
    some = prompts(3, seed=77, longest=12)
    plain = [run(core, [request(p, **sampling)])[0].token_ids for p in some]
    graphs = record_nothing(core._runner, (4, 32, 144))
    core._runner._gpu = GpuPasses(graphs=graphs)
    fast = run(core, [request(p, method, **sampling) for p in some])
    assert [outcome.token_ids for outcome in fast] == plain


class NoHostReads(TorchDispatchMode):
    """Fails where a recording on a GPU would: at a value that goes to the host or comes from it."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "lift_fresh")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in self.FORBIDDEN, f"{name} cannot be recorded"
        return func(*args, **(kwargs or {}))


class Blind(PlainAttention):
    """Attention that looks at nothing."""

    def over(self, tensors):
        return self

    def attend(self, layer, query, key, value, rules):
        return query.transpose(1, 2).clone()


@torch.no_grad()  # inference mode hides some of the calls
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_can_be_recorded(family: str) -> None:
    """Model and best tokens read nothing on the host."""
    model = tiny_model.__wrapped__(family)
    kv: KvCache = runner_of(family).kv
    step = StaticStep(model, Blind(kv), 8)
    with NoHostReads():
        step.compute()
    with pytest.raises(AssertionError, match="cannot be recorded"), NoHostReads():
        torch.zeros(3).sum().item()


@torch.inference_mode()
def test_the_self_check_finds_what_is_wrong() -> None:
    runner = runner_of("Llama")

    def plain(packed: PackedPass) -> torch.Tensor:
        return gpu_start.forward(
            runner._model, packed, SdpaStep(runner.kv, packed.parts, 2), torch.device("cpu")
        )

    def one_tree_flat(packed: PackedPass) -> torch.Tensor:
        tree = packed.parts[2].tree
        flat = TokenTree(tree.token_ids, [0] * len(tree), tree.kinds, tree.depths, {})
        parts = [*packed.parts[:2], RunRequest(2, 5, packed.parts[2].prefix, flat, Needs())]
        return plain(PackedPass.of(parts))

    def one_row_unwritten(packed: PackedPass) -> torch.Tensor:
        logits = plain(packed)
        runner.kv.data[2, 1, 1, :, 71].zero_()
        return logits

    batch = RaggedBatch(plain, runner.kv, VOCAB, 64)
    assert batch.difference(plain) is None
    assert "logits" in batch.difference(one_tree_flat)
    assert "keys and values" in batch.difference(one_row_unwritten)
    assert batch.difference(lambda packed: plain(packed) * torch.nan) is not None


def test_the_probe_of_exactness_tells_exact_passes_from_others() -> None:
    loaded = tiny_loaded("Llama", torch.bfloat16)
    for attention, expected in (("auto", True), ("sdpa", False)):
        runner = ModelRunner(loaded, 2, 64, attention=attention)
        assert runner.is_exact is expected
        assert rows_keep_their_bits(runner.run, runner.kv, VOCAB) is expected


def test_what_fails_falls_back_or_is_refused(monkeypatch, caplog) -> None:
    runner = runner_of("Llama")

    def start(attention: str, graphs: str) -> GpuPasses:
        return start_gpu(runner._model, runner.kv, 65, attention, graphs, exact=False)

    def broken(*_args, **_kwargs):
        raise RuntimeError("no such chip")

    assert start("sdpa", "auto") == GpuPasses()
    with pytest.raises(ModelError, match=r"model\.cuda_graphs: always takes model\.attention"):
        start("sdpa", "always")
    monkeypatch.setattr(gpu_start, "_proved_kernels", broken)
    with caplog.at_level(logging.WARNING):
        assert start("auto", "auto") == GpuPasses()
    assert "model.attention" in caplog.text
    assert "no such chip" in caplog.text
    with pytest.raises(ModelError, match=r"model\.attention: triton .* no such chip"):
        start("triton", "auto")
    with pytest.raises(ModelError, match=r"model\.cuda_graphs: always .* no such chip"):
        start("auto", "always")
    with pytest.raises(ModelError, match=r"model\.attention: triton"):
        ModelRunner(tiny_loaded("Llama"), 1, 8, attention="triton")


def test_blocked_linears_give_rows_the_same_bits() -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(48, 96).to(torch.bfloat16)
    blocked = BlockedLinear(linear)
    rows = torch.randn(1, 2 * ROW_BLOCK + 5, 48).to(torch.bfloat16)
    with torch.inference_mode():
        whole = blocked(rows)
        torch.testing.assert_close(whole, linear(rows), atol=2e-2, rtol=2e-2)
        for count in (1, 3, ROW_BLOCK, ROW_BLOCK + 1):
            assert torch.equal(blocked(rows[:, :count]), whole[:, :count])
        assert blocked(rows[:, :0]).shape == (1, 0, 96)
