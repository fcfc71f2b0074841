"""What the target says after a token that stands alone: a guess for what the text has not shown.

Sources that copy know nothing of a token that is new in a text, and a quarter of an answer's tokens
are. The target itself does: asked once about each token of its vocabulary, without any text, it
names the rest of a split word and what mostly follows a common one. No corpus, no training.
"""

from dataclasses import dataclass

from engine.spec.packed_rows import layout


@dataclass(frozen=True, slots=True)
class Bigrams:
    """Packed rows of the tokens 0, 1, 2, ...; later tokens may be missing."""

    width: int
    rows: bytes

    def __post_init__(self) -> None:
        """Raises ValueError for bytes that are not rows of that width."""
        if len(self.rows) % layout(self.width).size:
            raise ValueError(f"{len(self.rows)} bytes are no rows of {self.width} tokens")

    def __len__(self) -> int:
        return len(self.rows) // layout(self.width).size

    def row(self, token: int) -> bytes | None:
        """What follows `token`, or None if it was not asked."""
        size = layout(self.width).size
        return self.rows[token * size : (token + 1) * size] or None
