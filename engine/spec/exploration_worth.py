"""What an exploration node is worth: accepted tokens that only the pool could have named.

Exploration pays steps later and through whatever finds its way into the pool, so no single node's
gain can be known; the mean over recent steps can.
"""

_PRIOR = 0.012  # tokens per node, before anything is known
_PRIOR_NODES = 100.0
_DECAY = 0.5 ** (1 / 200)  # per step


class ExplorationWorth:
    """Decayed mean of gained tokens per exploration node.

    Without exploration the memory fades to the prior, so that it is tried again.
    """

    def __init__(self) -> None:
        self._gained = self._nodes = 0.0

    @property
    def per_node(self) -> float:
        """Expected tokens per exploration node."""
        return (self._gained + _PRIOR * _PRIOR_NODES) / (self._nodes + _PRIOR_NODES)

    def observe(self, gained: int, nodes: int) -> None:
        """One request's step: tokens accepted thanks to the pool alone, exploration nodes run."""
        self._gained = self._gained * _DECAY + gained
        self._nodes = self._nodes * _DECAY + nodes
