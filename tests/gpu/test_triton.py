"""The Triton kernels against torch's attention: on a CUDA device, or interpreted on a CPU."""

import os
import random
import subprocess
import sys

import pytest
import torch

from engine.model import gpu_start
from engine.model.attention import LayerRules
from engine.model.kv_cache import KvCache, KvShape
from engine.model.packed_pass import PackedPass
from engine.model.run_request import RunRequest
from engine.model.sdpa_attention import SdpaStep
from engine.model.step_graphs import StepGraphs, cuda_recorder
from engine.model.triton_attention import TritonAttention
from engine.spec.drafter import Needs
from engine.spec.tree import TokenTree
from tests.engine.tiny import tiny_model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CAPACITY = 700  # three splits
SHAPES = {  # KV heads, query heads per KV head, head size, window, softcap
    "llama": (2, 4, 64, None, None),
    "qwen": (1, 7, 32, 100, None),
    "gemma": (1, 2, 256, 270, 30.0),
    "smollm": (3, 3, 12, 1, None),
}
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def caches(shape: str, dtype: torch.dtype, slots: int) -> tuple[KvCache, KvCache]:
    """Two equal caches of random rows."""
    kv_heads, _, head_dim, *_ = SHAPES[shape]
    made = [KvCache(KvShape(1, kv_heads, head_dim, CAPACITY), slots, dtype, DEVICE) for _ in "ab"]
    made[0].data.normal_(generator=torch.Generator(DEVICE).manual_seed(1))
    made[1].data.copy_(made[0].data)
    return made[0], made[1]


def rows_of(shape: str, rows: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Queries, keys and values, values laid out as models hand them over."""
    kv_heads, group, head_dim, *_ = SHAPES[shape]
    generator = torch.Generator(DEVICE).manual_seed(rows)
    heads = (kv_heads * group, kv_heads, kv_heads)
    return [
        torch.randn(1, rows, n, head_dim, generator=generator, device=DEVICE)
        .to(dtype)
        .transpose(1, 2)
        for n in heads
    ]


def random_tree(rng: random.Random, size: int) -> TokenTree:
    tree = TokenTree.anchored(1)
    while len(tree) < size:
        tree.add(rng.randrange(max(0, len(tree) - 6), len(tree)), rng.randrange(500))
    return tree


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_torchs_attention(shape: str, dtype: torch.dtype) -> None:
    """A ragged batch at borders of blocks and splits; behind the committed rows all is NaN."""
    rng = random.Random(3)
    parts = [
        RunRequest(2, 301, (), random_tree(rng, 7), Needs()),
        RunRequest(0, 62, [1, 2, 3], random_tree(rng, 4), Needs()),
        RunRequest(1, 60, [4] * 6, None, Needs()),
        RunRequest(3, 511, (), random_tree(rng, 3), Needs()),
    ]
    ours, theirs = caches(shape, dtype, 5)
    for part in parts:
        ours.data[:, :, part.slot, :, part.committed_len :] = torch.nan
    before = ours.data.clone()
    packed = PackedPass.of(parts)
    count = len(packed)
    _, group, head_dim, window, softcap = SHAPES[shape]
    rules = LayerRules(head_dim**-0.5, window, softcap)
    query, key, value = rows_of(shape, count + 2, dtype)  # two rows of padding
    attention = TritonAttention(ours, group, 64)
    assert attention.num_splits == 3
    got = attention.step(packed, count + 2).attend(0, query, key, value, rules)
    expected = SdpaStep(theirs, parts, group).attend(0, query, key, value, rules)
    torch.testing.assert_close(
        got[:, :count].float(), expected[:, :count].float(), atol=TOLERANCE[dtype], rtol=0
    )
    assert not got[:, count:].any()
    for part in parts:
        first, last = part.committed_len, part.committed_len + part.num_rows
        written = (slice(None), slice(None), part.slot, slice(None), slice(first, last))
        assert torch.equal(ours.data[written], theirs.data[written])
        before[written] = ours.data[written]
    assert torch.equal(ours.data.nan_to_num(7.0), before.nan_to_num(7.0))


@pytest.mark.parametrize("shape", ["llama", "qwen"])
def test_a_rows_bits_depend_on_its_own_tokens_only(shape: str) -> None:
    """A text token by token, as a chunk, and as a path of a tree with side branches, in bf16."""
    rng = random.Random(5)
    start, length = 252, 9  # over the border of a block and of a split
    _, group, head_dim, window, _ = SHAPES[shape]
    rules = LayerRules(head_dim**-0.5, window, None)
    plain, other = caches(shape, torch.bfloat16, 2)
    other.data[:, :, 1] = other.data[:, :, 0]
    query, key, value = rows_of(shape, length, torch.bfloat16)
    attention, elsewhere = TritonAttention(plain, group, 64), TritonAttention(other, group, 64)

    def attend(by: TritonAttention, parts: list[RunRequest], rows: list[int]) -> torch.Tensor:
        packed = PackedPass.of(parts)
        step = by.step(packed, len(packed))
        return step.attend(0, query[:, :, rows], key[:, :, rows], value[:, :, rows], rules)[0]

    expected = [
        attend(
            attention, [RunRequest(0, start + row, (), TokenTree.anchored(row), Needs())], [row]
        )[0]
        for row in range(length)
    ]
    chunk = attend(
        elsewhere, [RunRequest(1, start, range(length), None, Needs())], [*range(length)]
    )
    tree = TokenTree.anchored(0)
    nodes, rows = [0], [0]
    for row in range(1, length):
        for _ in range(rng.randrange(3)):
            tree.add(rng.choice(nodes), 100 + len(tree))
            rows.append(0)
        nodes.append(tree.add(nodes[-1], row))
        rows.append(row)
    company = RunRequest(1, 130, (), random_tree(rng, 5), Needs())
    parts = [company, RunRequest(0, start, (), tree, Needs())]
    beside = attend(elsewhere, parts, [0] * 5 + rows)[5:]
    for row in range(length):
        assert torch.equal(chunk[row], expected[row])
        assert torch.equal(beside[nodes[row]], expected[row])


@torch.inference_mode()
def test_kernels_and_recorded_steps_pass_the_self_check() -> None:
    """Of a whole model with windows and score caps; graphs on a device, plain calls elsewhere."""
    model = tiny_model.__wrapped__("Gemma2").to(DEVICE)
    kv = KvCache(KvShape(3, 2, 12, 120), 2, torch.float32, DEVICE)
    kernels = gpu_start._proved_kernels(model, kv, 30)
    record = cuda_recorder() if DEVICE.type == "cuda" else lambda compute: compute
    graphs = StepGraphs(model, kernels, record, (32,))
    gpu_start._prove(model, kernels, lambda packed: graphs.run(packed, 0).logits)


def test_kernels_compile_for_real_chips(tmp_path) -> None:
    """For A100 and H200, within an A100's memory per program. It takes no device."""
    command = [sys.executable, "-m", "tests.gpu.compile_kernels"]
    places = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, env=os.environ | places, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
