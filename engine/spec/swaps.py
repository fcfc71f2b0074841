"""What a text has put in the place of some tokens of a prediction, and where it may do so again."""

from collections.abc import Sequence
from dataclasses import dataclass

_LONGEST = 6  # tokens on either side: a name, not a rewritten line
_MOST = 32  # learned in one text


@dataclass(frozen=True, slots=True)
class Swap:
    """`length` tokens of the prediction gave way to `new`."""

    length: int
    new: tuple[int, ...]


class Swaps:
    """The swaps seen so far, by the places in the prediction where their old tokens begin."""

    def __init__(self, prediction: Sequence[int]) -> None:
        self._prediction = prediction
        self._places: dict[int, list[int]] | None = None  # by token; made when first needed
        self._at: dict[int, Swap] = {}
        self._num_learned = 0

    def at(self, index: int) -> Swap | None:
        """What may come in the place of the prediction's token at `index`."""
        return self._at.get(index)

    def learn(self, old: Sequence[int], new: Sequence[int]) -> None:
        """`old`, somewhere in the prediction, has become `new`, which begins with another token."""
        is_small = 1 <= len(old) <= _LONGEST and 1 <= len(new) <= _LONGEST
        if not is_small or old[0] == new[0] or self._num_learned >= _MOST:
            return
        self._num_learned += 1
        swap = Swap(len(old), tuple(new))
        if self._places is None:
            self._places = {}
            for index, token in enumerate(self._prediction):
                self._places.setdefault(token, []).append(index)
        for index in self._places[old[0]]:
            if self._prediction[index : index + len(old)] == old:
                self._at[index] = swap
