"""One request's part in a forward pass, and what its rows gave."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.spec.drafter import Needs, Rows
from engine.spec.tree import TokenTree


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Known tokens to compute, the last of them the tree's anchor.

    `prefix`: known tokens before the anchor (a prompt chunk), empty while decoding. `tree` is None
    for a chunk that does not end the prompt; its last token is then in `prefix` too.
    """

    slot: int
    committed_len: int
    prefix: Sequence[int]
    tree: TokenTree | None
    needs: Needs
    wants_prefix_logits: bool = False

    @property
    def num_rows(self) -> int:
        """Rows in the pass."""
        return len(self.prefix) + (len(self.tree) if self.tree else 0)

    @property
    def rows_read(self) -> range:
        """Rows, counted from the part's start, whose logits somebody reads."""
        reads_prefix = self.needs.prompt_rows or self.wants_prefix_logits
        return range(0 if reads_prefix else len(self.prefix), self.num_rows)


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one request's rows gave. Rows of `tree` only, unless said otherwise."""

    logits: Tensor  # [num_nodes, vocab]
    argmax: list[int]  # [num_nodes]; vocab_size where a row holds NaN
    rows: Rows  # of the tree's nodes
    prefix_rows: Rows | None  # of the prefix, if the drafter reads them
    prefix_logits: Tensor | None  # [len(prefix), vocab], if asked
