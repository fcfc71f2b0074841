"""From what sources say to how often they are right: online, from every committed position.

The true token of each committed position is known after the step, so every candidate there can be
scored, drafted or not. That leaves no selection bias, and a source that was priced out comes back
by itself.
"""

from collections.abc import Callable, Sequence

from engine.spec.token_source import NUM_CODES, NUM_SILENT

SHIFT = 8  # bits per source in a key
_MAX_KEYS = 1 << 14  # half a kilobyte each; hundreds are common
_WELL_KNOWN = 8.0  # trials from which on a key is not the first to leave
_SPARED = 8  # such keys that one newcomer passes by at most
_AGREEMENT_WEIGHT = 20.0  # observations that "agreeing is worth nothing" counts for
_SUREST = 0.98
_GUESS_AGE = 256  # observations that a guess outlives at most


class Calibrator:
    """Acceptance probabilities of one engine's candidates.

    A candidate's key packs one code per source, source i in bits 8i .. 8i + 7. Its probability is
    (hits + m * prior) / (trials + m) with decayed counts; the prior of a key is the largest
    probability among its proposing sources' own codes, which are estimated alike from `priors`,
    times what so many sources agreeing has been worth so far.
    """

    def __init__(
        self, priors: Sequence[Sequence[float]], weight: float = 8.0, half_life: float = 2000.0
    ) -> None:
        """`weight`: m above. `half_life`: in observations of one key."""
        if any(len(codes) > NUM_CODES for codes in priors):
            raise ValueError(f"a source may have {NUM_CODES} codes")
        self._weight = weight
        self._decay = 0.5 ** (1.0 / half_life)
        # By source and code in one row, as a key's bytes are.
        self._priors = [prior for codes in priors for prior in _padded(codes)]
        self._alone = list(self._priors)  # probability of a source's code, whatever others say
        self._hits = [0.0] * len(self._priors)
        self._trials = [0.0] * len(self._priors)
        # By number of agreeing sources: decayed hits, and hits that the largest one alone promised.
        self._agreement = [[_AGREEMENT_WEIGHT, _AGREEMENT_WEIGHT] for _ in range(len(priors) + 1)]
        self._parts: dict[int, tuple[int, ...]] = {}  # by key: places of its proposing codes
        self.lookup = _Lookup(self._prior)  # key -> probability, for reading many at once
        self._joint_counts: dict[int, list[float]] = {}

    def probability(self, key: int) -> float:
        """How likely the candidate is the next token, given that its path is right."""
        return self.lookup[key]

    def observe(self, key: int, is_hit: bool) -> None:
        """Score one candidate of a committed position."""
        hit = 1.0 if is_hit else 0.0
        weight, decay, alone = self._weight, self._decay, self._alone
        parts = self._split(key)
        agreement = self._agreement[len(parts)]
        agreement[0] = agreement[0] * decay + hit
        agreement[1] = agreement[1] * decay + max([alone[part] for part in parts], default=0.0)
        for part in parts:
            hits = self._hits[part] = self._hits[part] * decay + hit
            trials = self._trials[part] = self._trials[part] * decay + 1.0
            alone[part] = (hits + weight * self._priors[part]) / (trials + weight)
        known = self._joint_counts.get(key)
        if known is None:
            if len(self._joint_counts) >= _MAX_KEYS:
                self._forget_one()
            known = self._joint_counts[key] = [0.0, 0.0]
        known[0] = known[0] * decay + hit
        known[1] = known[1] * decay + 1.0
        self.lookup.settle(key, (known[0] + weight * self._prior(key)) / (known[1] + weight))

    def _forget_one(self) -> None:
        """Drop the oldest key that is not well known; those before it get half their trials and
        the youngest's place."""
        for _ in range(_SPARED):
            oldest = next(iter(self._joint_counts))
            counts = self._joint_counts.pop(oldest)
            if counts[1] < _WELL_KNOWN:
                break
            self._joint_counts[oldest] = [0.5 * count for count in counts]
        else:
            oldest = next(iter(self._joint_counts))
            del self._joint_counts[oldest]
        del self.lookup[oldest]

    def trials(self, key: int) -> float:
        """Decayed number of observations of `key`."""
        return self._joint_counts.get(key, (0.0, 0.0))[1]

    def _prior(self, key: int) -> float:
        """The largest probability among the parts alone, times what their agreement is worth."""
        parts, alone = self._split(key), self._alone
        if len(parts) == 1:
            return alone[parts[0]]
        if not parts:
            return 0.0
        hits, promised = self._agreement[len(parts)]
        return min(max([alone[part] for part in parts]) * hits / promised, _SUREST)

    def _split(self, key: int) -> tuple[int, ...]:
        """The places of the codes with which sources name the candidate."""
        parts = self._parts.get(key)
        if parts is None:
            if len(self._parts) >= _MAX_KEYS:
                self._parts.clear()
            codes = enumerate(key.to_bytes(len(self._priors) >> SHIFT, "little"))
            parts = tuple(place << SHIFT | code for place, code in codes if code >= NUM_SILENT)
            self._parts[key] = parts
        return parts


def _padded(codes: Sequence[float]) -> list[float]:
    return [*codes, *[0.0] * (NUM_CODES - len(codes))]


class _Lookup(dict[int, float]):
    """Probabilities by key. A key not observed yet is guessed on demand, and again now and then."""

    def __init__(self, guess: Callable[[int], float]) -> None:
        super().__init__()
        self._guess = guess
        self._guessed: set[int] = set()
        self._age = 0

    def __missing__(self, key: int) -> float:
        self[key] = value = self._guess(key)
        self._guessed.add(key)
        return value

    def settle(self, key: int, value: float) -> None:
        """`key` has been observed. What guesses rest on has changed a little."""
        self._guessed.discard(key)
        self[key] = value
        self._age += 1
        if self._age >= _GUESS_AGE:
            self._age = 0
            for guessed in self._guessed:
                del self[guessed]
            self._guessed.clear()
