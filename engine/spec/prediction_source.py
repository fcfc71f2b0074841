"""The client's predicted output as a source of `auto`, found again behind every edit.

A prediction is the text to come, a few places aside. So its next token is almost always right, and
where it is not, the text goes on a little further down the prediction. What was put in another's
place once will be again: a name that is changed is changed everywhere.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from engine.spec.swaps import Swaps
from engine.spec.token_source import NUM_SILENT, Proposal

_RUNS = (1, 2, 4, 8, 16)  # least agreeing tokens of each bucket
_RUN_PRIORS = (0.5, 0.7, 0.85, 0.92, 0.96)
_GUESS_PRIORS = (0.5, 0.3, 0.25, 0.15, 0.1, 0.1)  # by tokens left out, where nothing agrees yet
# Where a known swap may be due: its first token, the prediction's own, and the swap's other tokens.
_SWAP_PRIORS = (0.8, 0.15, 0.95)
_GUESS = NUM_SILENT + len(_RUN_PRIORS)
_SWAP, _KEPT, _SWAPPED = range(_GUESS + len(_GUESS_PRIORS), _GUESS + len(_GUESS_PRIORS) + 3)
_SETTLED = 3  # agreeing tokens after which a place is believed
_REACH = 32  # tokens left out at most, to rejoin at a single token
_MAX_RUN = 16


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path stands in the prediction.

    `next`: index of the token expected now. `run`: tokens that came as expected in a row before it.
    `base`: the last believed place, from which the text is looked for. `last`: the path's last
    tokens. `since`: index from which on the prediction itself agreed. `swap`: what is still to come
    of a swap, before the token at `next`.
    """

    next: int = 0
    run: int = 0
    base: int = 0
    last: tuple[int, ...] = ()
    since: int = 0
    swap: tuple[int, ...] = ()


class PredictionSource:
    """Proposes the prediction's next token, or what came in its place before; after an edit, the
    next few, to rejoin at any of them.

    Features: how many tokens agreed in a row; after an edit, how many a proposal leaves out; how
    far a swap has come.
    """

    priors: Sequence[float] = (*(0.0,) * NUM_SILENT, *_RUN_PRIORS, *_GUESS_PRIORS, *_SWAP_PRIORS)

    def __init__(self, prediction: Sequence[int], tokens: Sequence[int]) -> None:
        """`tokens`: the live token list, the prompt alone now."""
        self._prediction = prediction
        self._tokens = tokens
        self._length = len(tokens)
        self._place = Place()
        self._followed: set[int] = set()
        self._swaps = Swaps(prediction)
        self._edit: tuple[int, int] | None = None  # where it began, in prediction and text
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
        for index in range(self._length, len(self._tokens)):
            before = self._place
            place = self._place = self.advance(before, self._tokens[index])
            if place.run > 1 or (place.run and place.next == before.next + 1):  # no chance token
                recent = max(place.since, place.next - min(place.run, _SETTLED))
                self._followed.update(range(recent, place.next))
            self._learn_swap(before, place, index)
        self._length = len(self._tokens)
        return self._place

    def _learn_swap(self, before: Place, place: Place, index: int) -> None:
        """Follow an edit from the token at `index` that begins it to where the text is back."""
        if self._edit is None:
            if before.run >= _SETTLED and place.run <= 1 and not before.swap:
                self._edit = (before.next, index)
            return
        agreed = place.next - place.since
        if agreed >= _SETTLED:
            first, begin = self._edit
            self._edit = None
            old = self._prediction[first : place.since]
            self._swaps.learn(old, self._tokens[begin : index + 1 - agreed])

    def advance(self, state: Place, token: int) -> Place:
        """One token on: in line, along a swap, or where the path's end is found again."""
        last = (*state.last, token)[-_SETTLED:]
        run = min(state.run + 1, _MAX_RUN)
        if state.swap:
            if token == state.swap[0]:
                return Place(state.next, run, state.base, last, state.next, state.swap[1:])
        elif state.next < len(self._prediction) and self._prediction[state.next] == token:
            ahead = state.next + 1
            return Place(ahead, run, ahead if run >= _SETTLED else state.base, last, state.since)
        elif state.run:
            swap = self._swaps.at(state.next)
            if swap is not None and swap.new[0] == token:
                ahead = state.next + swap.length
                return Place(ahead, run, state.base, last, ahead, swap.new[1:])
        return self._rejoin(state.base, last)

    def _rejoin(self, base: int, last: tuple[int, ...]) -> Place:
        """The nearest place at or behind `base` whose tokens end like the path; long ends first."""
        for n in range(len(last), 0, -1):
            ends = self._ends.get(last[-n:], ())
            at = bisect_left(ends, base + 1)
            if at < len(ends) and (n > 1 or ends[at] - base <= _REACH):
                end = ends[at]
                return Place(end, n, end if n >= _SETTLED else base, last, end - n)
            if n >= _SETTLED and ends:  # the text goes back to what it left out or repeats
                return Place(ends[-1], n, ends[-1], last, ends[-1] - n)
        return Place(base, 0, base, last, base)

    def propose(self, state: Place) -> Proposal:
        """The token in line and what a swap would put there, or the next few."""
        prediction = self._prediction
        if state.swap:
            return 3, [(state.swap[0], _SWAPPED)]
        if not state.run:
            ahead = prediction[state.base : state.base + len(_GUESS_PRIORS)]
            firsts = {token: ahead.index(token) for token in ahead}
            return int(bool(firsts)), [(token, _GUESS + place) for token, place in firsts.items()]
        if state.next >= len(prediction):
            return 0, []
        silent = 2 if state.run < _SETTLED else 3
        swap = self._swaps.at(state.next)
        if swap is not None:
            return silent, [(swap.new[0], _SWAP), (prediction[state.next], _KEPT)]
        bucket = max(i for i, least in enumerate(_RUNS) if state.run >= least)
        return silent, [(prediction[state.next], NUM_SILENT + bucket)]
