"""From what sources say to how often they are right: online, from every committed position.

The true token of each committed position is known after the step, so every candidate there can be
scored, drafted or not. That leaves no selection bias, and a source that was priced out comes back
by itself.
"""

from collections.abc import Callable, Sequence

from engine.spec.token_source import NUM_CODES, NUM_SILENT

SHIFT = 8  # bits per source in a key
_MASK = (1 << SHIFT) - 1
_MAX_KEYS = 1 << 16
_AGREEMENT_WEIGHT = 20.0  # observations that "agreeing is worth nothing" counts for
_SUREST = 0.98


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
        self._priors = [list(codes) for codes in priors]
        self._alone = [list(codes) for codes in priors]  # probability by source and code
        self._alone_counts = [[[0.0, 0.0] for _ in codes] for codes in priors]
        # By number of agreeing sources: decayed hits, and hits that the largest one alone promised.
        self._agreement = [[_AGREEMENT_WEIGHT, _AGREEMENT_WEIGHT] for _ in range(len(priors) + 1)]
        self.lookup = _Lookup(self._prior)  # key -> probability, for reading many at once
        self._joint_counts: dict[int, list[float]] = {}

    def probability(self, key: int) -> float:
        """How likely the candidate is the next token, given that its path is right."""
        return self.lookup[key]

    def observe(self, key: int, is_hit: bool) -> None:
        """Score one candidate of a committed position."""
        self.lookup.forget_guesses()
        hit = 1.0 if is_hit else 0.0
        weight, decay = self._weight, self._decay
        best, num_sources = self._best(key)
        agreement = self._agreement[num_sources]
        agreement[0] = agreement[0] * decay + hit
        agreement[1] = agreement[1] * decay + best
        rest, source = key, 0
        while rest:
            code = rest & _MASK
            if code >= NUM_SILENT:
                counts = self._alone_counts[source][code]
                counts[0] = counts[0] * decay + hit
                counts[1] = counts[1] * decay + 1.0
                prior = self._priors[source][code]
                self._alone[source][code] = (counts[0] + weight * prior) / (counts[1] + weight)
            rest >>= SHIFT
            source += 1
        known = self._joint_counts.get(key)
        if known is None:
            if len(self._joint_counts) >= _MAX_KEYS:
                oldest = next(iter(self._joint_counts))
                del self._joint_counts[oldest], self.lookup[oldest]
            known = self._joint_counts[key] = [0.0, 0.0]
        known[0] = known[0] * decay + hit
        known[1] = known[1] * decay + 1.0
        self.lookup[key] = (known[0] + weight * self._prior(key)) / (known[1] + weight)

    def trials(self, key: int) -> float:
        """Decayed number of observations of `key`."""
        return self._joint_counts.get(key, (0.0, 0.0))[1]

    def _prior(self, key: int) -> float:
        best, num_sources = self._best(key)
        if num_sources < 2:
            return best
        hits, promised = self._agreement[num_sources]
        return min(best * hits / promised, _SUREST)

    def _best(self, key: int) -> tuple[float, int]:
        """The largest probability among a key's sources alone, and how many they are."""
        best, source, num_sources = 0.0, 0, 0
        while key:
            code = key & _MASK
            if code >= NUM_SILENT:
                best = max(best, self._alone[source][code])
                num_sources += 1
            key >>= SHIFT
            source += 1
        return best, num_sources


class _Lookup(dict[int, float]):
    """Probabilities by key. A key not observed yet is guessed on demand, until something is."""

    def __init__(self, guess: Callable[[int], float]) -> None:
        super().__init__()
        self._guess = guess
        self._guessed: list[int] = []

    def __missing__(self, key: int) -> float:
        self[key] = value = self._guess(key)
        self._guessed.append(key)
        return value

    def forget_guesses(self) -> None:
        """What guesses rest on is about to change."""
        for key in self._guessed:
            del self[key]
        self._guessed.clear()
