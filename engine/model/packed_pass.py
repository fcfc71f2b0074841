"""What one pass computes, before it is put on a device: the rows of all requests side by side.

The eager path and the recorded graphs both start from this, so they cannot disagree about a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.model.run_request import RunRequest


@dataclass(frozen=True, slots=True)
class PackedPass:
    """One entry per row, parts in order, without padding."""

    parts: Sequence[RunRequest]
    token_ids: list[int]
    positions: list[int]
    reads: list[int]  # rows whose logits somebody reads, ascending

    @classmethod
    def of(cls, parts: Sequence[RunRequest]) -> "PackedPass":
        """The rows of `parts`: each one's prefix, then its tree."""
        token_ids: list[int] = []
        positions: list[int] = []
        reads: list[int] = []
        for part in parts:
            start = len(token_ids)
            reads.extend(start + row for row in part.rows_read)
            token_ids.extend(part.prefix)
            positions.extend(range(part.committed_len, part.committed_len + len(part.prefix)))
            if part.tree:
                token_ids.extend(part.tree.token_ids)
                anchor = part.committed_len + len(part.prefix)
                positions.extend(anchor + depth for depth in part.tree.depths)
        return cls(parts, token_ids, positions, reads)

    def __len__(self) -> int:
        return len(self.token_ids)
