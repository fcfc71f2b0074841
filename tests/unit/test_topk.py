"""The fast row maxima, by torch's operations and by our kernel, against torch's plain ones."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.model import native_topk, topk
from engine.model.native import load_kernels

Best = Callable[[Tensor, int], tuple[Tensor, Tensor, Tensor]]


kernels = load_kernels()


def by_kernel(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    assert kernels is not None
    argmax, rows = native_topk.best_tokens(kernels, logits, k)
    ids, values = torch.from_numpy(rows.token_ids), torch.from_numpy(rows.logits)
    return torch.tensor(argmax), ids, values.to(logits.dtype)


WAYS = [topk.best_tokens, by_kernel] if kernels is not None else [topk.best_tokens]
BOTH = pytest.mark.parametrize("best_tokens", WAYS)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [50, 384, 390, 4096, 49152])
@pytest.mark.parametrize("k", [0, 1, 10])
def test_equals_torch(best_tokens: Best, dtype: torch.dtype, vocab: int, k: int) -> None:
    generator = torch.Generator().manual_seed(vocab + k)
    logits = (torch.randn(17, vocab, generator=generator) * 3).to(dtype)
    argmax, ids, values = best_tokens(logits, k)
    assert torch.equal(argmax, torch.argmax(logits, dim=1))
    assert torch.equal(values, torch.topk(logits, k, dim=1).values)
    assert torch.equal(logits.gather(1, ids), values)
    assert all(len(set(row)) == k for row in ids.tolist())


@BOTH
def test_ties_give_the_smallest_id(best_tokens: Best) -> None:
    logits = torch.zeros(1, 4096)
    logits[0, [100, 900, 4000]] = 5.0
    assert best_tokens(logits, 3)[0].tolist() == [100]


@BOTH
@pytest.mark.parametrize("vocab", [384, 389, 4096])
def test_nan_is_no_token(best_tokens: Best, vocab: int) -> None:
    logits = torch.randn(2, vocab)
    logits[1, 5] = torch.nan
    argmax = best_tokens(logits, 2)[0].tolist()
    assert argmax[0] < vocab
    assert argmax[1] == vocab
    logits[1, 5], logits[1, -1] = 0.0, torch.nan
    assert best_tokens(logits, 2)[0].tolist()[1] == vocab
    logits[1] = torch.nan
    assert best_tokens(logits, 2)[0].tolist()[1] == vocab


@BOTH
def test_rows_do_not_depend_on_company(best_tokens: Best) -> None:
    logits = torch.randn(31, 4096).bfloat16()
    together = best_tokens(logits, 10)
    for row in range(31):
        alone = best_tokens(logits[row : row + 1], 10)
        assert all(torch.equal(a[0], t[row]) for a, t in zip(alone, together, strict=True))


@BOTH
def test_more_than_there_are(best_tokens: Best) -> None:
    logits = torch.tensor([[0.5, -torch.inf, 2.0]])
    argmax, ids, values = best_tokens(logits, 10)
    assert (argmax.tolist(), ids.tolist()) == ([2], [[2, 0, 1]])
    assert values.tolist() == [[2.0, 0.5, -torch.inf]]
