"""Masks, positions and KV against plain causal forwards of the same model."""

import random

import pytest
import torch

from engine.model import runner as runner_module
from engine.model.run_request import RunRequest
from engine.model.runner import ModelRunner
from engine.spec.drafter import Needs
from engine.spec.tree import EXPLORE, TokenTree
from tests.engine.tiny import FAMILIES, VOCAB, tiny_loaded

TOLERANCE = 1e-4


def reference(model, token_ids: list[int]) -> torch.Tensor:
    """Logits of a plain causal forward by transformers' own eager attention: [tokens, vocab]."""
    config = model.config
    ours, config._attn_implementation = config._attn_implementation, "eager"
    try:
        with torch.inference_mode():
            return model(torch.tensor([token_ids]), use_cache=False).logits[0]
    finally:
        config._attn_implementation = ours


def random_tree(rng: random.Random, anchor: int, size: int) -> TokenTree:
    tree = TokenTree.anchored(anchor)
    for _ in range(size):
        parent = rng.randrange(len(tree))
        kind = EXPLORE if tree.kinds[parent] == EXPLORE or rng.random() < 0.3 else 0
        tree.add(parent, rng.randrange(VOCAB), kind)
    return tree


@pytest.fixture(params=["native", "sdpa"], autouse=True)
def backend(request, monkeypatch) -> str:
    """Both attention backends; the native one is compiled wherever the tests run."""
    if request.param == "sdpa":
        monkeypatch.setattr(runner_module, "load_kernels", lambda: None)
    else:
        assert runner_module.load_kernels() is not None
    return request.param


def part(slot: int, length: int, prefix: list[int], tree: TokenTree | None) -> RunRequest:
    return RunRequest(slot, length, prefix, tree, Needs(top_k=2, prompt_rows=True), True)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_node_sees_its_own_path_only(family: str) -> None:
    """Two requests in one pass, one in its prompt; chunks of odd sizes; trees behind a prompt."""
    rng = random.Random(5)
    loaded = tiny_loaded(family)
    runner = ModelRunner(loaded, 2, 64)
    texts = [[rng.randrange(VOCAB) for _ in range(n)] for n in (61, 38)]
    lengths = [0, 0]
    for chunks in ((17, 5), (1, 20), (30, 0)):
        parts = [
            part(slot, lengths[slot], texts[slot][lengths[slot] : lengths[slot] + size], None)
            for slot, size in enumerate(chunks)
            if size
        ]
        for request, result in zip(parts, runner.run(parts), strict=True):
            lengths[request.slot] += len(request.prefix)
            full = reference(loaded.model, texts[request.slot][: lengths[request.slot]])
            torch.testing.assert_close(
                result.prefix_logits, full[-len(request.prefix) :], atol=TOLERANCE, rtol=0
            )
    trees = [random_tree(rng, text[-1], 25) for text in texts]
    parts = [
        part(slot, lengths[slot], text[lengths[slot] : -1], tree)
        for slot, (text, tree) in enumerate(zip(texts, trees, strict=True))
    ]
    for text, tree, result in zip(texts, trees, runner.run(parts), strict=True):
        for node in range(len(tree)):
            path = [tree.token_ids[i] for i in tree.path(node)]
            expected = reference(loaded.model, text + path)[-1]
            torch.testing.assert_close(result.logits[node], expected, atol=TOLERANCE, rtol=0)
            assert result.argmax[node] == int(result.logits[node].argmax())


@pytest.mark.parametrize("family", FAMILIES)
def test_committed_kv_equals_a_fresh_prefill(family: str) -> None:
    """Accept paths of every length, off the first branch too, and compare all rows of the slot."""
    rng = random.Random(8)
    loaded = tiny_loaded(family)
    runner = ModelRunner(loaded, 2, 64)
    text = [rng.randrange(VOCAB) for _ in range(9)]
    runner.run([part(0, 0, text[:-1], TokenTree.anchored(text[-1]))])
    for _ in range(12):
        known = len(text)
        tree = random_tree(rng, text[-1], 20)
        runner.run([part(0, known - 1, [], tree)])
        path = tree.path(rng.choice([n for n in range(len(tree)) if not tree.kinds[n]]))
        runner.kv.move([(0, known - 1 + n, known + i) for i, n in enumerate(path)])
        text += [tree.token_ids[n] for n in path]
        runner.run([part(1, 0, text[:-1], TokenTree.anchored(text[-1]))])
        rows = len(text)
        if len(path) == 0:
            rows = known
        torch.testing.assert_close(
            runner.kv.data[:, :, 0, :, :rows],
            runner.kv.data[:, :, 1, :, :rows],
            atol=TOLERANCE,
            rtol=0,
        )
        text.append(rng.randrange(VOCAB))


def test_a_node_changes_only_rows_that_see_it() -> None:
    rng = random.Random(3)
    runner = ModelRunner(tiny_loaded("Llama"), 1, 64)
    tree = random_tree(rng, 5, 24)
    before = runner.run([part(0, 0, [], tree)])[0].logits
    for changed in range(1, len(tree)):
        twin = TokenTree(list(tree.token_ids), tree.parents, tree.kinds, tree.depths, tree.child_of)
        twin.token_ids[changed] = (tree.token_ids[changed] + 1) % VOCAB
        after = runner.run([part(0, 0, [], twin)])[0].logits
        for node in range(len(tree)):
            sees = node == changed or changed in tree.path(node)
            assert torch.equal(before[node], after[node]) is not sees


def test_few_row_counts_occur_and_none_is_far_above() -> None:
    counts = [runner_module.bucket(rows) for rows in range(1, 1025)]
    assert all(rows <= count for rows, count in enumerate(counts, 1))
    assert all(count <= max(rows + 3, rows * 1.25) for rows, count in enumerate(counts, 1))
    assert len(set(counts)) < 48
    assert [runner_module.bucket(count) for count in counts] == counts
