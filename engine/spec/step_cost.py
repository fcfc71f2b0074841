"""What a step costs by its rows: measured at start, corrected by every real step.

Only the shape decides how many nodes pay, so the table keeps a shape and one scale. A longer
context or a busy machine moves the scale at once; the shape follows slowly.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

SIZES = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64, 96, 128)
_SCALE_RATE = 0.1
_SHAPE_RATE = 0.02
_CORRECTIONS = 8  # of the shape, before it counts
_OUTLIER = 2.0  # a step off by more than this factor counts as off by it


class StepCost:
    """Seconds of a forward pass of n rows, monotone in n, linear between and beyond the sizes."""

    def __init__(self, seconds: Mapping[int, float], is_fixed: bool = False) -> None:
        """`seconds` by rows. A fixed table learns nothing from real steps.

        Raises ValueError unless there are two positive entries.
        """
        self.sizes = tuple(sorted(seconds))
        if len(self.sizes) < 2 or min(seconds.values()) <= 0.0:
            raise ValueError("a cost table needs at least two sizes with positive seconds")
        self.is_fixed = is_fixed
        self._shape = [seconds[size] for size in self.sizes]
        self._scale = 1.0
        self._costs: dict[int, float] = {}  # of the sizes asked for, before scaling
        self._num_corrections = 0
        self._tabulate()

    @classmethod
    def sloped(cls, slope: float, is_fixed: bool = False, step: float = 0.03) -> "StepCost":
        """A step of one row costs `step` seconds, each further row `slope` times that."""
        return cls({size: step * (1.0 + slope * (size - 1)) for size in SIZES}, is_fixed)

    @classmethod
    def measured(
        cls,
        run: Callable[[int], float],
        clock: Callable[[], float],
        sizes: Sequence[int] = SIZES,
        seconds: float = 8.0,
    ) -> "StepCost":
        """Time `run(rows)`, which returns seconds, for each size: the best of up to five passes.

        Passes go round all sizes, so that a disturbance hits them alike, while the next round
        should still end within `seconds`.
        """
        begin = clock()
        run(sizes[-1])
        best = {size: run(size) for size in sizes}
        last = clock()
        for _ in range(4):
            if last - begin + sum(best.values()) * 1.2 > seconds:
                break
            best = {size: min(known, run(size)) for size, known in best.items()}
            last = clock()
        return cls(best)

    @classmethod
    def load(cls, path: Path) -> "StepCost | None":
        """A table that `save` wrote; None if there is none to read."""
        try:
            entries = json.loads(path.read_text("utf-8"))
            return cls({int(size): float(seconds) for size, seconds in entries.items()})
        except (OSError, ValueError, AttributeError, TypeError):
            return None

    def save(self, path: Path) -> None:
        """Write the table as JSON. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.table()) + "\n", "utf-8")

    def __call__(self, rows: int) -> float:
        """Seconds of a step of `rows` rows."""
        cost = self._costs.get(rows)
        if cost is None:
            cost = self._costs[rows] = self._interpolate(rows)
        return cost * self._scale

    def table(self) -> dict[int, float]:
        """Seconds by measured size, as corrected so far."""
        return {size: self(size) for size in self.sizes}

    def observe(self, rows: int, seconds: float) -> None:
        """Correct the table by one real step."""
        if self.is_fixed or rows < 1:
            return
        ratio = seconds / self(rows)
        ratio = min(max(ratio, 1.0 / _OUTLIER), _OUTLIER)
        self._scale *= 1.0 + _SCALE_RATE * (ratio - 1.0)
        low, share = self._place(rows)
        for index, weight in ((low, 1.0 - share), (low + 1, share)):
            weight = min(max(weight, 0.0), 1.0)
            self._shape[index] *= 1.0 + _SHAPE_RATE * weight * (ratio - 1.0)
        self._num_corrections += 1
        if self._num_corrections % _CORRECTIONS == 0:
            self._tabulate()

    def _place(self, rows: int) -> tuple[int, float]:
        """The entry below `rows` and how far behind it `rows` lies, in steps between entries."""
        low = min(max(bisect_left(self.sizes, rows) - 1, 0), len(self.sizes) - 2)
        first, second = self.sizes[low : low + 2]
        return low, (rows - first) / (second - first)

    def _interpolate(self, rows: int) -> float:
        low, share = self._place(max(rows, 1))
        first, second = self._monotone[low : low + 2]
        return first + share * (second - first)

    def _tabulate(self) -> None:
        self._monotone: Sequence[float] = _isotonic(self._shape)
        self._costs = {}


def _isotonic(values: Sequence[float]) -> list[float]:
    """The nearest non-decreasing sequence: neighbours in the wrong order share their mean."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while blocks and blocks[-1][0] > mean:
            before, size = blocks.pop()
            mean, count = (mean * count + before * size) / (count + size), count + size
        blocks.append((mean, count))
    return [mean for mean, count in blocks for _ in range(count)]
