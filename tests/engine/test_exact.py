"""bf16 on a CPU: a row's bits depend on its own tokens only, so speculation is bit-identical.

The primitives are tested one by one as well: a library upgrade that breaks one shows here first.
"""

import random
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from engine.model.attention import LayerRules
from engine.model.kv_cache import KvCache, KvShape
from engine.model.native import load_kernels
from engine.model.native_attention import NativeStep
from engine.model.native_linear import NativeLinear
from engine.model.packing import PackedLinear, can_pack, pack_linears, stable_rows
from engine.model.run_request import RunRequest
from engine.model.runner import ModelRunner
from engine.model.sdpa_attention import SdpaStep
from engine.spec.drafter import Needs
from engine.spec.tree import TokenTree
from tests.engine.tiny import FAMILIES, VOCAB, make_core, prompts, request, run, tiny_loaded

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def _needs_the_kernels() -> None:
    assert load_kernels() is not None, "the test machine has a C compiler"


@pytest.fixture(params=[1, 2], ids="threads={}".format)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def bits(runner: ModelRunner, parts: list[RunRequest]) -> list[torch.Tensor]:
    return [result.logits.clone() for result in runner.run(parts) if result]


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_have_the_same_bits_in_any_company(family: str) -> None:
    """One text, computed in one chunk, token by token, in odd chunks, and as tree nodes."""
    rng = random.Random(3)
    runner = ModelRunner(tiny_loaded(family, BF16), 3, 128)
    text = [rng.randrange(VOCAB) for _ in range(150)]
    needs = Needs(top_k=1)
    other = RunRequest(2, 0, [9] * 11, TokenTree.chain([4, 5, 6]), needs)

    expected = [
        bits(runner, [RunRequest(0, place, [], TokenTree.anchored(token), needs)])[0][0]
        for place, token in enumerate(text)
    ]
    place = 0
    while place < len(text):
        size = min(rng.choice([1, 3, 8, 30]), len(text) - place)
        tree = TokenTree.chain(text[place : place + size])
        for _ in range(rng.randint(0, 30)):
            tree.add(rng.randrange(len(tree)), rng.randrange(VOCAB))
        parts = [RunRequest(1, place, [], tree, needs)]
        if rng.random() < 0.5:
            parts.insert(0, other)
        got = bits(runner, parts)[-1]
        for offset in range(size):
            assert torch.equal(got[offset], expected[place + offset])
        place += size


def test_a_node_off_the_first_branch_has_its_texts_bits() -> None:
    rng = random.Random(6)
    runner = ModelRunner(tiny_loaded("Llama", BF16), 2, 128)
    text = [rng.randrange(VOCAB) for _ in range(90)]
    needs = Needs(top_k=1)
    tree = TokenTree.anchored(text[60])
    node = 0
    for token in text[61:]:
        for _ in range(rng.randint(0, 3)):
            tree.add(node, rng.randrange(VOCAB))
        node = tree.add(node, token)
    got = bits(runner, [RunRequest(0, 0, text[:60], tree, needs)])[0]
    chain = bits(runner, [RunRequest(1, 0, [], TokenTree.chain(text), needs)])[0]
    for index in range(len(tree)):
        path = [tree.token_ids[n] for n in tree.path(index)]
        if path == text[61 : 61 + len(path)]:
            assert torch.equal(got[index], chain[60 + len(path)])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 5}], ids=str)
def test_speculation_is_bit_identical(family: str, sampling: dict) -> None:
    """Alone and in a batch, after prefix reuse and chunked prefill."""
    core = make_core(family, dtype=BF16)
    some = [p * 3 for p in prompts(6, seed=41)]
    plain = [run(core, [request(p, **sampling, max_tokens=60)])[0].token_ids for p in some]
    for method in ("off", "goose", "ptd"):
        together = run(core, [request(p, method, **sampling, max_tokens=60) for p in some])
        assert [o.token_ids for o in together] == plain


def test_a_kernel_that_differs_on_few_rows_is_found() -> None:
    """Some kernels round one row in ten otherwise below some row count."""

    class Picky:
        in_features = out_features = 8

        def __call__(self, rows: torch.Tensor) -> torch.Tensor:
            off = (rows[..., :1] > 1.2) & (rows.shape[1] < 6)
            return torch.where(off, rows + 1e-3, rows)

    assert stable_rows([Picky()], torch.float32) == 6


@pytest.mark.parametrize("dtype", list(filter(can_pack, (torch.float32, BF16))))
@pytest.mark.parametrize("sizes", [(576, 1536), (1536, 576), (576, 49152), (48, 384)])
def test_packed_linears_give_rows_the_same_bits(dtype: torch.dtype, sizes) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(*sizes, bias=False).to(dtype)
    packed = PackedLinear(linear)
    rows = torch.randn(1, 64, sizes[0]).to(dtype)
    with torch.inference_mode():
        whole = packed(rows)
        torch.testing.assert_close(whole, linear(rows), atol=2e-2, rtol=2e-2)
        least = stable_rows([packed], dtype)
        assert least is not None
        for count in (least, 9, 16, 31, 61):
            for start in range(0, 64 - count + 1):
                part = slice(start, start + count)
                assert torch.equal(packed(rows[:, part]), whole[:, part])


@pytest.mark.parametrize("sizes", [(576, 960), (1536, 50), (48, 384), (50, 33)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_bf16_linears_of_this_machine_give_rows_the_same_bits(sizes, has_bias: bool) -> None:
    """Ours for every number of rows, the library's from the probed number on."""
    torch.manual_seed(0)
    linear = nn.Linear(*sizes, bias=has_bias).to(BF16)
    model = nn.Sequential(linear)
    packed = pack_linears(model, load_kernels())
    rows = torch.randn(1, 64, sizes[0]).to(BF16)
    with torch.inference_mode():
        expected, whole = linear(rows), model(rows)
        torch.testing.assert_close(whole, expected, atol=2e-2, rtol=2e-2)
        least = stable_rows(packed, BF16) if packed else 1
        assert least is not None
        for count in (least, 2, 3, 7, 14, 15, 29, 61):
            for start in range(0, 64 - count + 1):
                part = slice(start, start + count)
                assert count < least or torch.equal(model(rows[:, part]), whole[:, part])


def test_a_linear_with_an_odd_number_of_inputs_is_left_to_the_library() -> None:
    kernels = load_kernels()
    assert not NativeLinear.can_run(nn.Linear(47, 32).to(BF16), kernels)
    assert not NativeLinear.can_run(nn.Linear(48, 32), kernels)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("shape", [(64, 3), (64, 5), (128, 3), (96, 2), (256, 1)], ids=str)
def test_every_shape_of_attention_kernel(dtype: torch.dtype, shape) -> None:
    """Right beside torch's, and each branch of a tree has the bits of its text as a chain."""
    head_dim, group = shape
    rng = random.Random(4)
    torch.manual_seed(1)
    kernels = load_kernels()
    kv = KvCache(KvShape(1, 2, head_dim, 256), 2, dtype, torch.device("cpu"))
    kv.data.normal_()
    kv.data[:, :, 1] = kv.data[:, :, 0]
    tree = TokenTree.anchored(0)
    for token in range(40):
        tree.add(rng.randrange(max(0, len(tree) - 9), len(tree)), token)
    part = RunRequest(0, 120, [3] * 5, tree, Needs())
    size = (1, 2, part.num_rows, head_dim)
    query = torch.randn(1, 2 * group, part.num_rows, head_dim).to(dtype)
    key, value = torch.randn(size).to(dtype), torch.randn(size).to(dtype)
    rules = LayerRules(head_dim**-0.5, 90, None)

    got = NativeStep(kernels, kv, [part], group).attend(0, query, key, value, rules)
    oracle = SdpaStep(kv, [part], group).attend(0, query, key, value, rules)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got, oracle, atol=tolerance, rtol=tolerance)
    for leaf in range(len(tree) - 5, len(tree)):
        rows = [*range(6), *(5 + node for node in tree.path(leaf))]
        chain = RunRequest(1, 120, [], TokenTree.chain([0] * len(rows)), Needs())
        step = NativeStep(kernels, kv, [chain], group)
        alone = step.attend(0, query[:, :, rows], key[:, :, rows], value[:, :, rows], rules)
        assert torch.equal(alone, got[:, rows])
