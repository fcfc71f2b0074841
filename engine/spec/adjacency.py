"""What the target model lately said would follow a token: Goose's source of branches.

Every row of every forward pass names likely successors of its token, the rows of rejected nodes
too. They cost nothing more than keeping them.
"""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.spec.drafter import Rows

Successors = tuple[list[int], list[float]]  # token ids and scores, best first

_INITIAL_SLOTS = 256


class Adjacency:
    """The top `width` successors of a token, by its last two tokens or, failing that, by itself.

    A row's score is the softmax over its top `width` logits only, as in the paper, which overstates
    the true probability. Later rows overwrite earlier ones. Each of the two tiers keeps at most
    `max_keys` keys; those not written for the longest time leave first.
    """

    def __init__(self, width: int, max_keys: int) -> None:
        self._width = width
        self._by_token = _Table(width, max_keys)
        self._by_pair = _Table(width, max_keys)

    def observe(self, previous: Sequence[int], tokens: Sequence[int], rows: Rows) -> None:
        """Learn `rows[i]`, said after `previous[i]` and `tokens[i]`.

        `previous[0]` is -1 where nothing comes before.
        """
        if not tokens:
            return
        ids, logits = rows.token_ids[:, : self._width], rows.logits[:, : self._width]
        scores = np.exp(logits - logits[:, :1])
        scores /= scores.sum(axis=1, keepdims=True)
        self._by_token.write(tokens, ids, scores)
        self._by_pair.write(list(map(_pair, previous, tokens)), ids, scores)

    def __len__(self) -> int:
        """Rows of both tiers."""
        return len(self._by_token) + len(self._by_pair)

    def successors(self, previous: int, token: int) -> Successors | None:
        """What is known to follow `previous`, `token`; None for a token never seen."""
        return self._by_pair.read(_pair(previous, token)) or self._by_token.read(token)


def _pair(previous: int, token: int) -> int:
    return previous << 32 | token


class _Table:
    """Rows of equal width under integer keys, in arrays: a tenth of the memory of Python lists."""

    def __init__(self, width: int, max_keys: int) -> None:
        self._max_keys = max_keys
        self._slot_of: OrderedDict[int, int] = OrderedDict()  # oldest write first
        slots = min(_INITIAL_SLOTS, max_keys)
        self._ids: npt.NDArray[np.int32] = np.empty((slots, width), np.int32)
        self._scores: npt.NDArray[np.float32] = np.empty((slots, width), np.float32)

    def write(
        self,
        keys: Sequence[int],
        ids: npt.NDArray[np.int64],
        scores: npt.NDArray[np.float32],
    ) -> None:
        """Set the rows of `keys`; of a key that comes twice, the last row stays."""
        slots = [self._claim(key) for key in keys]
        while len(self._ids) < len(self._slot_of):
            self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
            self._scores = np.concatenate((self._scores, np.empty_like(self._scores)))
        self._ids[slots] = ids
        self._scores[slots] = scores

    def __len__(self) -> int:
        return len(self._slot_of)

    def read(self, key: int) -> Successors | None:
        """The row of `key`, or None."""
        slot = self._slot_of.get(key)
        return None if slot is None else (self._ids[slot].tolist(), self._scores[slot].tolist())

    def _claim(self, key: int) -> int:
        slot = self._slot_of.get(key)
        if slot is not None:
            self._slot_of.move_to_end(key)
            return slot
        slot = len(self._slot_of)
        if slot == self._max_keys:
            _, slot = self._slot_of.popitem(last=False)
        self._slot_of[key] = slot
        return slot
