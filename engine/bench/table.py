"""Rows as aligned text."""

from collections.abc import Iterable, Iterator, Sequence

from engine.bench.replay_row import ReplayRow
from engine.bench.row import Row


def table(rows: Iterable[Row]) -> str:
    """What was measured."""
    return "\n".join(_measured(list(rows)))


def replay_table(rows: Iterable[ReplayRow]) -> str:
    """What was modelled."""
    return "\n".join(_modelled(list(rows)))


def _measured(rows: Sequence[Row]) -> Iterator[str]:
    wide = _width(row.method for row in rows)
    yield (
        f"{'suite':<14}{'method':<{wide}}{'tau':>6}{'HR':>6}{'AL':>6}{'draft':>7}{'verify':>7}"
        f"{'tok/s':>8}{'speedup':>9}{'host ms':>9}{'step ms':>9}{'pred':>6}{'identical':>11}"
    )
    for row in rows:
        same = f"{row.identical}/{row.prompts}"
        step = row.forward_ms_per_step + row.host_ms_per_step
        yield (
            f"{row.suite:<14}{row.method:<{wide}}{row.tau:>6.2f}{row.hit_rate:>6.2f}"
            f"{row.accept_length:>6.2f}{row.draft_nodes:>7.1f}{row.verify_nodes:>7.1f}"
            f"{row.tokens_per_second:>8.1f}{row.speedup:>9.2f}{row.host_ms_per_step:>9.2f}"
            f"{step:>9.2f}{_ratio(row.predicted):>6}{same:>11}"
        )


def _modelled(rows: Sequence[ReplayRow]) -> Iterator[str]:
    wide = _width(row.method for row in rows)
    yield (
        f"{'suite':<14}{'method':<{wide}}{'slope':>7}{'tau':>6}{'HR':>6}{'AL':>6}{'verify':>7}"
        f"{'speedup':>9}{'pred':>6}"
    )
    for row in rows:
        yield (
            f"{row.suite:<14}{row.method:<{wide}}{row.slope:>7g}{row.tau:>6.2f}{row.hit_rate:>6.2f}"
            f"{row.accept_length:>6.2f}{row.verify_nodes:>7.1f}{row.speedup:>9.2f}"
            f"{_ratio(row.predicted):>6}"
        )


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _width(labels: Iterable[str]) -> int:
    return max(16, *(len(label) + 2 for label in labels))
