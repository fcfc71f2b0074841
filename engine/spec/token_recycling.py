"""Token Recycling: a fixed tree filled from the successors that earlier passes named.

Nothing a forward pass computed is thrown away, the rows of rejected nodes least of all
(arXiv 2408.08696).
"""

from collections.abc import Sequence

from engine.config import TokenRecyclingConfig
from engine.spec.drafter import DraftLimits, Needs, Rows, StepResult
from engine.spec.successor_matrix import SuccessorMatrix
from engine.spec.tree import TokenTree
from engine.types import SpeculationPlan

# Per depth, how many children each node of the depth above has, in order; then none. A node's
# children are its successors of rank 0, 1, ... 80 nodes in all, 8/21/25/15/8/3 per depth as in the
# paper; of ranks 0 to 7 there are 41, 13, 8, 5, 4, 3, 3, 3.
TEMPLATE: tuple[tuple[int, ...], ...] = (
    (8,),
    (8, 4, 3, 2, 1, 1, 1, 1),
    (8, 3, 2, 1, 1, 0, 0, 0, 3, 1, 1, 0, 2, 1, 0, 1, 0, 1),
    (5, 2, 1, 1, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 1),
    (2, 1, 1, 0, 0, 1, 0, 1, 0, 1, 0, 0, 1),
    (1, 0, 1, 0, 1),
)


class TokenRecycling:
    """The static tree of one request. One `matrix` for all requests is kept across them.

    After an unseen token nothing is drafted; the released code's zero-filled rows draft token 0.
    As there, the prompt's rows are not learned.
    """

    def __init__(
        self,
        plan: SpeculationPlan,
        config: TokenRecyclingConfig,
        matrix: SuccessorMatrix | None = None,
    ) -> None:
        self._plan = plan
        self._top_k = config.top_k
        self._is_shared = matrix is not None
        self._matrix = SuccessorMatrix(config.top_k) if matrix is None else matrix
        self._tokens: Sequence[int] = ()

    @property
    def needs(self) -> Needs:
        """The best successors of every row of the tree."""
        return Needs(top_k=self._top_k)

    def begin(self, token_ids: Sequence[int]) -> None:
        """Start on a request's live token list."""
        self._tokens = token_ids

    def observe_prompt(self, start: int, rows: Rows) -> None:
        """Nothing is learned from the prompt."""

    def observe(self, result: StepResult) -> None:
        """Overwrite the successors of every token of the tree."""
        self._matrix.write(result.tree.token_ids, result.rows.token_ids)

    def state_size(self) -> int:
        """Rows of the matrix, if no other request shares it."""
        return 0 if self._is_shared else len(self._matrix)

    def draft(self, limits: DraftLimits) -> TokenTree:
        """Fill the template layer by layer, as far as successors are known and limits allow."""
        tree = TokenTree.anchored(self._tokens[-1])
        width = min(limits.width, self._plan.width)
        budget = min(limits.budget, self._plan.budget)
        layer: list[int | None] = [0]  # None: a place of the template that stays empty
        for counts in TEMPLATE[: min(limits.depth, self._plan.depth)]:
            below: list[int | None] = []
            for node, count in zip(layer, counts, strict=False):
                known = [] if node is None else self._matrix.read(tree.token_ids[node])
                for rank in range(count):
                    if node is None or rank >= min(len(known), width) or len(tree) > budget:
                        below.append(None)
                    else:
                        below.append(tree.add(node, known[rank]))
            layer = below
        return tree
