"""Who computed a beginning last: the router's memory, bounded, of names and nothing else."""

from collections import OrderedDict
from collections.abc import Container, Sequence
from typing import Generic, TypeVar

Owner = TypeVar("Owner")

MAX_NAMES = 65536


class PrefixOwners(Generic[Owner]):
    """Maps names of beginnings to the replica that got them last; the longest unused leave."""

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._owners: OrderedDict[str, Owner] = OrderedDict()
        self._max_names = max_names

    def find(self, names: Sequence[str], alive: Container[Owner]) -> Owner | None:
        """The living owner of the longest known beginning. `names`: the shortest first."""
        for name in reversed(names):
            owner = self._owners.get(name)
            if owner is not None and owner in alive:
                return owner
        return None

    def record(self, names: Sequence[str], owner: Owner) -> None:
        """A request with these beginnings went to `owner`."""
        for name in names:
            self._owners[name] = owner
            self._owners.move_to_end(name)
        while len(self._owners) > self._max_names:
            self._owners.popitem(last=False)
