"""Whole layers in one call give the bits of the layers themselves, or are not used."""

import pytest
import torch
from torch import nn

from engine.model.fused_decoder import FusedDecoders, fuse_decoders
from engine.model.native import load_kernels
from engine.model.run_request import RunRequest
from engine.model.runner import ModelRunner
from engine.spec.drafter import Needs
from engine.spec.tree import TokenTree
from tests.engine.tiny import tiny_loaded, tiny_model

BF16 = torch.bfloat16
FUSED = ("Llama", "Mistral", "Qwen2", "Qwen3")

kernels = load_kernels()
pytestmark = pytest.mark.skipif(
    kernels is None or not kernels.treeline_linear_panel(),
    reason="no bf16 linear layers of our own on this processor",
)


def runner(family: str, attention: str = "auto") -> ModelRunner:
    tiny_model.cache_clear()  # a runner changes its model
    return ModelRunner(tiny_loaded(family, BF16), 2, 64, attention=attention)


def stack(one: ModelRunner) -> list[FusedDecoders]:
    return [module for module in one._model.modules() if isinstance(module, FusedDecoders)]


def passes(one: ModelRunner) -> list[torch.Tensor]:
    """The rows of two requests, a prompt and two trees, through a window's end."""
    tree = TokenTree.chain([5, 6, 7])
    tree.add(0, 9)
    needs = Needs(top_k=1)
    runs = (
        [RunRequest(0, 0, list(range(10, 50)), None, needs)],
        [
            RunRequest(0, 40, [], tree, needs),
            RunRequest(1, 0, [8, 9], TokenTree.anchored(3), needs),
        ],
    )
    return [part.logits.clone() for run in runs for part in one.run(run) if part is not None]


@pytest.mark.parametrize("family", FUSED)
def test_one_call_gives_the_bits_of_the_layers(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused = runner(family)
    assert len(stack(fused)) == 1
    got = passes(fused)
    monkeypatch.setattr("engine.model.runner.fuse_decoders", lambda *_: 0)
    apart = runner(family)
    assert not stack(apart)
    expected = passes(apart)
    assert len(got) == len(expected) == 2
    assert all(map(torch.equal, got, expected))
    for slot, rows in ((0, 41), (1, 3)):
        written, known = (one.kv.data[:, :, slot, :, :rows] for one in (fused, apart))
        assert torch.equal(written, known)


@pytest.mark.parametrize("family", ["Gemma2", "Phi3"])
def test_other_layers_keep_their_own_code(family: str) -> None:
    assert not stack(runner(family))


def test_a_layer_that_computes_something_else_is_not_replaced() -> None:
    tiny_model.cache_clear()
    loaded = tiny_loaded("Llama", BF16)
    odd = loaded.model.model.layers[1]
    plain = type(odd).forward

    class Louder(type(odd)):
        def forward(self, *args, **kwargs):
            return plain(self, *args, **kwargs) * 2

    odd.__class__ = Louder
    one = ModelRunner(loaded, 2, 64)
    assert not stack(one)
    tiny_model.cache_clear()


def test_another_attention_gets_the_layers_themselves() -> None:
    one = runner("Llama")
    expected = passes(one)
    assert stack(one)
    one._is_native = False
    one.kv.data.zero_()
    for got, known in zip(passes(one), expected, strict=True):
        assert torch.allclose(got.float(), known.float(), atol=0.1, rtol=0.05)


def test_a_list_of_other_modules_is_left_alone() -> None:
    one = runner("Llama")
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Identity()]), "none": nn.ModuleList()})
    assert fuse_decoders(model, one._kernels, one.kv.shape) == 0
    assert isinstance(model["layers"][0], nn.Identity)


@pytest.mark.parametrize("family", FUSED)
def test_a_whole_pass_gives_the_bits_of_the_model(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused = runner(family)
    assert fused._fused is not None
    got = passes(fused)
    monkeypatch.setattr("engine.model.runner.fuse_model", lambda *_: None)
    apart = runner(family)
    assert apart._fused is None
    assert all(map(torch.equal, got, passes(apart)))
    assert torch.equal(fused.kv.data[:, :, 0, :, :41], apart.kv.data[:, :, 0, :, :41])


def test_a_model_that_computes_something_else_is_not_replaced() -> None:
    """Its layers are; what stands around them keeps its own code."""
    tiny_model.cache_clear()
    loaded = tiny_loaded("Llama", BF16)
    plain = type(loaded.model).forward

    class Capped(type(loaded.model)):
        def forward(self, *args, **kwargs):
            output = plain(self, *args, **kwargs)
            output.logits = 3.0 * torch.tanh(output.logits / 3.0)
            return output

    loaded.model.__class__ = Capped
    one = ModelRunner(loaded, 2, 64)
    assert stack(one)
    assert one._fused is None
    assert all(logits.abs().max() <= 3.0 for logits in passes(one))
    tiny_model.cache_clear()


def test_angles_that_depend_on_more_than_the_position_are_computed_anew() -> None:
    tiny_model.cache_clear()
    loaded = tiny_loaded("Llama", BF16)
    loaded.model.model.rotary_emb.rope_type = "dynamic"
    assert ModelRunner(loaded, 2, 64)._fused is None
    tiny_model.cache_clear()
