"""The client's predicted output as a source of `auto`, found again behind every edit.

A prediction is the text to come, a few places aside. So its next token is almost always right, and
where it is not, the text goes on a little further down the prediction.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from engine.spec.token_source import NUM_SILENT, Proposal

_RUNS = (1, 2, 4, 8, 16)  # least agreeing tokens of each bucket
_RUN_PRIORS = (0.5, 0.7, 0.85, 0.92, 0.96)
_GUESS_PRIORS = (0.5, 0.3, 0.25, 0.15, 0.1, 0.1)  # by tokens left out, where nothing agrees yet
_SETTLED = 3  # agreeing tokens after which a place is believed
_REACH = 32  # tokens left out at most, to rejoin at a single token
_MAX_RUN = 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path stands in the prediction.

    `next`: index of the token expected now. `run`: tokens that agreed in a row before it. `base`:
    the last believed place, from which the text is looked for. `last`: the path's last tokens.
    """

    next: int = 0
    run: int = 0
    base: int = 0
    last: tuple[int, ...] = ()


class PredictionSource:
    """Proposes the prediction's next token; after an edit, the next few, to rejoin at any of them.

    Features: how many tokens agreed in a row; after an edit, how many a proposal leaves out.
    """

    priors: Sequence[float] = (*(0.0,) * NUM_SILENT, *_RUN_PRIORS, *_GUESS_PRIORS)

    def __init__(self, prediction: Sequence[int], tokens: Sequence[int]) -> None:
        """`tokens`: the live token list, the prompt alone now."""
        self._prediction = prediction
        self._tokens = tokens
        self._length = len(tokens)
        self._place = Place()
        self._followed: set[int] = set()
        self._ends: dict[tuple[int, ...], list[int]] = defaultdict(list)  # n-gram -> next indices
        for end in range(1, len(prediction) + 1):
            for n in range(1, min(_SETTLED, end) + 1):
                self._ends[tuple(prediction[end - n : end])].append(end)

    @property
    def num_accepted(self) -> int:
        """Tokens of the prediction that the committed text has, in line with it."""
        self.anchor()
        return len(self._followed)

    @property
    def num_rejected(self) -> int:
        """Tokens of the prediction that the committed text does not have."""
        return len(self._prediction) - self.num_accepted

    def anchor(self) -> Place:
        """The place behind all committed tokens."""
        for token in self._tokens[self._length :]:
            expected = self._place.next
            place = self._place = self.advance(self._place, token)
            if place.run > 1 or (place.run and place.next == expected + 1):  # no chance token
                self._followed.update(range(place.next - min(place.run, _SETTLED), place.next))
        self._length = len(self._tokens)
        return self._place

    def advance(self, state: Place, token: int) -> Place:
        """One token on: in line, or where the path's end is found again."""
        last = (*state.last, token)[-_SETTLED:]
        if state.next < len(self._prediction) and self._prediction[state.next] == token:
            run = min(state.run + 1, _MAX_RUN)
            ahead = state.next + 1
            return Place(ahead, run, ahead if run >= _SETTLED else state.base, last)
        return self._rejoin(state.base, last)

    def _rejoin(self, base: int, last: tuple[int, ...]) -> Place:
        """The nearest place at or behind `base` whose tokens end like the path; long ends first."""
        for n in range(len(last), 0, -1):
            ends = self._ends.get(last[-n:], ())
            at = bisect_left(ends, base + 1)
            if at < len(ends) and (n > 1 or ends[at] - base <= _REACH):
                return Place(ends[at], n, ends[at] if n >= _SETTLED else base, last)
            if n >= _SETTLED and ends:  # the text goes back to what it left out or repeats
                return Place(ends[-1], n, ends[-1], last)
        return Place(base, 0, base, last)

    def propose(self, state: Place) -> Proposal:
        """The token in line, or the next few."""
        prediction = self._prediction
        if not state.run:
            ahead = prediction[state.base : state.base + len(_GUESS_PRIORS)]
            first = NUM_SILENT + len(_RUN_PRIORS)
            firsts = {token: ahead.index(token) for token in ahead}
            return int(bool(firsts)), [(token, first + place) for token, place in firsts.items()]
        if state.next >= len(prediction):
            return 0, []
        bucket = max(i for i, least in enumerate(_RUNS) if state.run >= least)
        silent = 2 if state.run < _SETTLED else 3
        return silent, [(prediction[state.next], NUM_SILENT + bucket)]
