"""Who owns which KV slot, and which tokens each slot's rows stand for. Accounting only, no tensors.

A released slot keeps its tokens until it is taken again, so that a new request can start from the
longest prefix that any slot, free or running, already holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotGrant:
    """A slot for one request. Rows [0, num_cached) are already right once they have been copied
    from `copy_from` (None: they are in the slot itself)."""

    slot: int
    num_cached: int
    copy_from: int | None = None


def common_prefix_len(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    low, high = 0, limit  # a[:low] == b[:low] always; compares run in C
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


class KvSlots:
    """The slots of one engine. `committed_len(slot)` rows of each are valid."""

    def __init__(self, num_slots: int, *, reuse_prefixes: bool = True) -> None:
        self._reuse = reuse_prefixes
        self._free: list[int] = list(range(num_slots))  # least recently released first
        self._owner: dict[int, str] = {}
        self._tokens: list[tuple[list[int], int]] = [([], 0) for _ in range(num_slots)]

    @property
    def num_free(self) -> int:
        """Slots that nobody owns."""
        return len(self._free)

    @property
    def owners(self) -> dict[int, str]:
        """slot -> request id, of all taken slots."""
        return dict(self._owner)

    def take(self, request_id: str, token_ids: list[int], max_cached: int) -> SlotGrant:
        """Give a free slot to a request; `token_ids` is its live token list.

        At most `max_cached` leading tokens are taken from what slots hold: the last prompt token
        must be computed anyway, for its logits.
        """
        best, best_len = None, 0
        if self._reuse and max_cached > 0:
            for slot, (held, committed_len) in enumerate(self._tokens):
                shared = min(common_prefix_len(held, token_ids), committed_len, max_cached)
                if shared > best_len or (shared == best_len > 0 and slot in self._free):
                    best, best_len = slot, shared
        if best is not None and best not in self._owner:
            self._free.remove(best)
            slot, copy_from = best, None
        else:
            slot, copy_from = self._free.pop(0), best
        self._owner[slot] = request_id
        self._tokens[slot] = (token_ids, best_len if copy_from is None else 0)
        return SlotGrant(slot, best_len, copy_from)

    def commit(self, slot: int, committed_len: int) -> None:
        """The slot's first `committed_len` rows now hold the KV of its tokens."""
        self._tokens[slot] = (self._tokens[slot][0], committed_len)

    def release(self, slot: int, request_id: str) -> None:
        """Give a slot back. Raises ValueError if the request does not own it."""
        if self._owner.get(slot) != request_id:
            raise ValueError(f"slot {slot} is not owned by {request_id}")
        del self._owner[slot]
        held, committed_len = self._tokens[slot]
        self._tokens[slot] = (held[:committed_len], committed_len)
        self._free.append(slot)

    def check_invariants(self) -> None:
        """Every slot is free or owned, never both; no slot claims more rows than tokens."""
        free, taken = set(self._free), set(self._owner)
        assert len(free) == len(self._free), "a slot is free twice"
        assert not free & taken, "a slot is free and owned"
        assert free | taken == set(range(len(self._tokens))), "a slot is lost"
        for held, committed_len in self._tokens:
            assert committed_len <= len(held), "a slot claims rows without tokens"
