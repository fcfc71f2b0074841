"""The fast row maxima against torch's own."""

import pytest
import torch

from engine.model.topk import best_tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [50, 384, 4096, 49152])
@pytest.mark.parametrize("k", [0, 1, 10])
def test_equals_torch(dtype: torch.dtype, vocab: int, k: int) -> None:
    generator = torch.Generator().manual_seed(vocab + k)
    logits = (torch.randn(17, vocab, generator=generator) * 3).to(dtype)
    argmax, ids, values = best_tokens(logits, k)
    assert torch.equal(argmax, torch.argmax(logits, dim=1))
    assert torch.equal(values, torch.topk(logits, k, dim=1).values)
    assert torch.equal(logits.gather(1, ids), values)
    assert all(len(set(row)) == k for row in ids.tolist())


def test_ties_give_the_smallest_id() -> None:
    logits = torch.zeros(1, 4096)
    logits[0, [100, 900, 4000]] = 5.0
    assert best_tokens(logits, 3)[0].tolist() == [100]


@pytest.mark.parametrize("vocab", [384, 4096])
def test_nan_is_no_token(vocab: int) -> None:
    logits = torch.randn(2, vocab)
    logits[1, 5] = torch.nan
    argmax = best_tokens(logits, 2)[0].tolist()
    assert argmax[0] < vocab
    assert argmax[1] == vocab
    logits[1] = torch.nan
    assert best_tokens(logits, 2)[0].tolist()[1] == vocab


def test_rows_do_not_depend_on_company() -> None:
    logits = torch.randn(31, 4096).bfloat16()
    together = best_tokens(logits, 10)
    for row in range(31):
        alone = best_tokens(logits[row : row + 1], 10)
        assert all(torch.equal(a[0], t[row]) for a, t in zip(alone, together, strict=True))
