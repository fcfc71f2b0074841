"""What the trees' promises are worth together: tokens that came, per token that was promised.

The calibrator knows single candidates. A tree is made of those that look best, and paths multiply
what is known of their nodes one by one, so a text that repeats itself more, or less, than the
average text gives more or less than the sum. This learns that ratio from whole steps.
"""

_WEIGHT = 30.0  # tokens that "promises are kept" counts for
_DECAY = 0.5 ** (1 / 300)  # per step


class Trust:
    """Decayed ratio of given to promised tokens, those of plain decoding not counted."""

    def __init__(self) -> None:
        self._promised = self._given = _WEIGHT

    @property
    def factor(self) -> float:
        """Tokens that one promised token is worth."""
        return self._given / self._promised

    def observe(self, promised: float, given: float) -> None:
        """One step: what its trees promised by the calibrator's word, and what they gave."""
        self._promised += (1.0 - _DECAY) * (_WEIGHT - self._promised) + promised
        self._given += (1.0 - _DECAY) * (_WEIGHT - self._given) + given
