"""The token tree: the one shape in which anything enters a forward pass.

Node 0 is the anchor, the last known token, whose KV is not yet computed. `parents[i] < i`.
A node's position is the committed length plus its depth. A node sees the committed prefix, its
ancestors and itself, nothing else.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

VERIFY = 0
EXPLORE = 1  # computed for the drafter's sake, never walked


@dataclass(slots=True)
class TokenTree:
    """A tree under construction or in flight. Build it with `anchored()` and `add()`.

    Among VERIFY children of one node tokens are distinct, so a drawn token names one child.
    """

    token_ids: list[int]
    parents: list[int]
    kinds: list[int]
    depths: list[int]
    child_of: dict[tuple[int, int], int] = field(default_factory=dict)

    @classmethod
    def anchored(cls, token_id: int) -> "TokenTree":
        """A tree with the anchor only: a plain decode step."""
        return cls([token_id], [-1], [VERIFY], [0])

    @classmethod
    def chain(cls, token_ids: Iterable[int]) -> "TokenTree":
        """A path: a prompt chunk, or a copied continuation below its anchor."""
        tree: TokenTree | None = None
        for token_id in token_ids:
            if tree is None:
                tree = cls.anchored(token_id)
            else:
                tree.add(len(tree) - 1, token_id)
        if tree is None:
            raise ValueError("a chain needs at least one token")
        return tree

    def __len__(self) -> int:
        return len(self.token_ids)

    def add(self, parent: int, token_id: int, kind: int = VERIFY) -> int:
        """Append a child of `parent` and return its index; an existing VERIFY twin is returned."""
        if kind == VERIFY:
            twin = self.child_of.get((parent, token_id))
            if twin is not None:
                return twin
            self.child_of[parent, token_id] = len(self.token_ids)
        self.token_ids.append(token_id)
        self.parents.append(parent)
        self.kinds.append(kind)
        self.depths.append(self.depths[parent] + 1)
        return len(self.token_ids) - 1

    def child(self, node: int, token_id: int) -> int | None:
        """The VERIFY child of `node` that carries `token_id`, if drafted."""
        return self.child_of.get((node, token_id))

    @property
    def num_draft_tokens(self) -> int:
        """VERIFY nodes without the anchor."""
        return len(self.child_of)

    @property
    def num_explored_tokens(self) -> int:
        """EXPLORE nodes."""
        return len(self.token_ids) - 1 - len(self.child_of)

    def path(self, node: int) -> list[int]:
        """Indices from the anchor's child down to `node`."""
        indices: list[int] = []
        while node > 0:
            indices.append(node)
            node = self.parents[node]
        return indices[::-1]

    def ancestor_mask(self) -> npt.NDArray[np.bool_]:
        """[num_nodes, num_nodes]: row i is true at i and at i's ancestors."""
        n = len(self.token_ids)
        mask = np.zeros((n, n), dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                mask[node] = mask[parent]
            mask[node, node] = True
        return mask
