"""Whether `auto` means what it says: predicted against realised acceptance, in bins."""

from engine.spec.calibrator import Calibrator

NUM_BINS = 10


class Reliability:
    """Candidates of committed positions by their probability as it was before the truth was known.

    The probability is that of the candidate alone, before siblings that sum above 1 are rescaled.
    """

    def __init__(self) -> None:
        self.trials = [0] * NUM_BINS
        self._predicted = [0.0] * NUM_BINS
        self._hits = [0] * NUM_BINS

    def watch(self, calibrator: Calibrator) -> None:
        """Take in every later observation of `calibrator`, before it learns from it."""
        learn = calibrator.observe

        def observe(key: int, is_hit: bool) -> None:
            self.add(calibrator.probability(key), is_hit)
            learn(key, is_hit)

        calibrator.observe = observe  # type: ignore[method-assign]

    def add(self, probability: float, is_hit: bool) -> None:
        """Take in one candidate."""
        place = min(int(probability * NUM_BINS), NUM_BINS - 1)
        self.trials[place] += 1
        self._predicted[place] += probability
        self._hits[place] += is_hit

    def points(self) -> list[tuple[float, float, int]]:
        """(mean prediction, share that was right, number) of each bin that is not empty."""
        return [
            (predicted / count, hits / count, count)
            for predicted, hits, count in zip(self._predicted, self._hits, self.trials, strict=True)
            if count
        ]
