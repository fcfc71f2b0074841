"""What fast passes must show at start, on this device and with this model, before they are used.

A kernel compiled for another chip or a graph that recorded too little gives wrong text silently.
So each fast way to run a pass is held against the plain one on a ragged batch of random trees.
"""

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.model.kv_cache import KvCache
from engine.model.packed_pass import PackedPass
from engine.model.run_request import RunRequest, RunResult
from engine.spec.drafter import Needs
from engine.spec.tree import TokenTree

Pass = Callable[[PackedPass], Tensor]  # to the logits of the rows that are read

_TOLERANCE = {torch.float32: 1e-3}  # of the largest value
_NARROW_TOLERANCE = 5e-2
_TREES = (1, 9, 20)  # nodes
_EXACT_TEXT = 150  # tokens: over two blocks of keys
_EXACT_ROOM = 64  # rows for a chunk and a tree behind them


class RaggedBatch:
    """Requests of unlike lengths, the longest across a border of `split_len`, with random trees.

    Uses the first slots, which must be free. `plain` runs a pass in the way that is trusted.
    """

    def __init__(self, plain: Pass, kv: KvCache, vocab: int, split_len: int) -> None:
        self._kv = kv
        rng = random.Random(1)
        room = kv.shape.capacity - max(_TREES) - 1
        lengths = (split_len + 37, 70, 5)[: kv.data.shape[2]]
        parts = []
        for slot, (length, size) in enumerate(zip(lengths, _TREES, strict=False)):
            length = min(length, room)
            text = [rng.randrange(vocab) for _ in range(length)]
            plain(PackedPass.of([RunRequest(slot, 0, text, None, Needs())]))
            tree = TokenTree.anchored(rng.randrange(vocab))
            while len(tree) < size:
                tree.add(rng.randrange(len(tree)), rng.randrange(vocab))
            parts.append(RunRequest(slot, length, text[:slot], tree, Needs()))
        self.packed = PackedPass.of(parts)
        self._expected = self._run(plain)

    def difference(self, run: Pass) -> str | None:
        """How `run` differs from the plain pass in logits or in KV, in words; None: it does not."""
        tolerance = _TOLERANCE.get(self._kv.data.dtype, _NARROW_TOLERANCE)
        for name, expected, got in zip(
            ("logits", "keys and values"), self._expected, self._run(run), strict=True
        ):
            share = float((got - expected).abs().max() / expected.abs().max())
            if not share <= tolerance:
                return f"its {name} differ from the plain pass by {share:.2g} of the largest"
        return None

    def _run(self, run: Pass) -> tuple[Tensor, Tensor]:
        spans = [
            self._kv.data[:, :, part.slot, :, part.committed_len :][..., : part.num_rows, :]
            for part in self.packed.parts
        ]
        for span in spans:
            span.zero_()
        logits = run(self.packed).float().clone()
        return logits, torch.cat([span.flatten() for span in spans]).float()


def rows_keep_their_bits(
    run: Callable[[Sequence[RunRequest]], list[RunResult | None]], kv: KvCache, vocab: int
) -> bool:
    """Whether a text's rows have the same bits token by token, in chunks, and inside trees.

    Uses the first two slots, which must be free. False where there is no room to try.
    """
    rng = random.Random(2)
    length = min(_EXACT_TEXT, kv.shape.capacity - _EXACT_ROOM)
    has_company = kv.data.shape[2] > 1
    text = [rng.randrange(vocab) for _ in range(length)]
    expected = [
        _logits(run, [RunRequest(0, place, (), TokenTree.anchored(token), Needs())])[0]
        for place, token in enumerate(text)
    ]
    place = 0
    while place < length:
        prefix = text[place : place + rng.choice((0, 3, 20, 70))][: length - place - 1]
        path = text[place + len(prefix) :][: rng.choice((1, 5, 12))]
        tree = TokenTree.chain(path)
        for _ in range(rng.randrange(30)):
            tree.add(rng.randrange(len(tree)), rng.randrange(vocab))
        parts = [RunRequest(int(has_company), place, prefix, tree, Needs())]
        if has_company and rng.random() < 0.5:
            parts.append(RunRequest(0, length // 2, text[:2], TokenTree.chain(text[:9]), Needs()))
        got = _logits(run, parts)
        place += len(prefix)
        if any(not torch.equal(got[i], expected[place + i]) for i in range(len(path))):
            return False
        place += len(path)
    if length < 1:
        return False
    if not has_company:
        return True
    last = RunRequest(1, length - 1, (), TokenTree.anchored(text[-1]), Needs())
    crowd = RunRequest(0, 0, (text * 3)[: kv.shape.capacity], None, Needs())
    return torch.equal(_logits(run, [last, crowd])[0], expected[-1])


def _logits(
    run: Callable[[Sequence[RunRequest]], list[RunResult | None]], parts: Sequence[RunRequest]
) -> Tensor:
    result = run(parts)[0]
    assert result is not None
    return result.logits.clone()
