"""The papers' figures from a bench's rows. Needs matplotlib, which serving does not."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.bench.reliability import Reliability
from engine.bench.replay_row import ReplayRow
from engine.bench.row import Row
from engine.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Value = Callable[[Row], float]
_SWEPT = ("width", "depth")
_ACROSS: tuple[tuple[str, Value], ...] = (
    ("hit rate", lambda row: row.hit_rate),
    ("accept length", lambda row: row.accept_length),
    ("tokens/s", lambda row: row.tokens_per_second),
)


def require_matplotlib() -> None:
    """Raises ConfigError, in one line, if no plot can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError("plots need matplotlib: pip install 'treeline[bench]'") from error


def plot(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write the PNG files and return their paths.

    Always: speedup.png, tau.png, throughput.png (against verified nodes), step_time.png; where a
    width or a depth was swept, sweep_width.png and sweep_depth.png. Raises ConfigError.
    """
    require_matplotlib()
    figures = {
        "speedup": _bars(rows, "speedup over plain decoding", lambda row: row.speedup),
        "tau": _bars(rows, "tokens per forward (tau)", lambda row: row.tau),
        "throughput": _throughput(rows),
        "step_time": _step_time(rows),
    }
    for axis in _SWEPT:
        swept = [row for row in rows if f" {axis[0]}" in row.method]
        if len({getattr(row, axis) for row in swept}) > 1:
            figures[f"sweep_{axis}"] = _sweep(swept, axis)
    return _save(figures, folder)


def plot_replay(rows: Sequence[ReplayRow], reliability: Reliability, folder: Path) -> list[Path]:
    """Write replay.png, modelled speedup against cost slope over all suites, and, if anything was
    predicted, calibration.png. Returns their paths. Raises ConfigError."""
    require_matplotlib()
    figures = {"replay": _slopes(rows)}
    if reliability.points():
        figures["calibration"] = _calibration(reliability)
    return _save(figures, folder)


def _save(figures: Mapping[str, "Figure"], folder: Path) -> list[Path]:
    paths = [folder / f"{name}.png" for name in figures]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, figure in zip(paths, figures.values(), strict=True):
            figure.savefig(path, dpi=130)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from error
    return paths


def _figure(num_rows: int = 1, width: float = 8.0) -> tuple["Figure", list["Axes"]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 1.5 + 2.8 * num_rows), layout="constrained")
    return figure, [figure.add_subplot(num_rows, 1, place + 1) for place in range(num_rows)]


def _bars(rows: Sequence[Row], label: str, value: Value) -> "Figure":
    """A group of bars per suite, one bar per method."""
    suites, methods = _distinct(r.suite for r in rows), _distinct(r.method for r in rows)
    figure, (axes,) = _figure(width=max(8.0, 0.28 * len(suites) * len(methods)))
    share = 0.8 / len(methods)
    for place, method in enumerate(methods):
        heights = {row.suite: value(row) for row in rows if row.method == method}
        centres = [i + (place - (len(methods) - 1) / 2) * share for i in range(len(suites))]
        axes.bar(centres, [heights[suite] for suite in suites], share, label=method)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(suites)), suites)
    axes.set_ylabel(label)
    figure.legend(loc="outside lower center", fontsize="small", ncols=5)
    return figure


def _throughput(rows: Sequence[Row]) -> "Figure":
    """Tokens per second against verified nodes: one line per method, one point per row."""
    figure, (axes,) = _figure()
    for method in _distinct(map(_base, rows)):
        own = [row for row in rows if _base(row) == method]
        own.sort(key=lambda row: row.verify_nodes)
        nodes = [row.verify_nodes for row in own]
        rates = [row.tokens_per_second for row in own]
        axes.plot(nodes, rates, marker="o", linestyle="--", label=method)
    axes.set_xlabel("verified nodes per step")
    axes.set_ylabel("tokens/s")
    axes.legend(fontsize="small")
    return figure


def _step_time(rows: Sequence[Row]) -> "Figure":
    """Milliseconds of a step by method, mean over the suites: the forward pass and the rest."""
    methods = _distinct(row.method for row in rows)
    figure, (axes,) = _figure(width=max(8.0, 0.7 * len(methods)))
    forward = [_mean(rows, method, lambda row: row.forward_ms_per_step) for method in methods]
    host = [_mean(rows, method, lambda row: row.host_ms_per_step) for method in methods]
    axes.bar(methods, forward, label="forward pass")
    axes.bar(methods, host, bottom=forward, label="drafting and bookkeeping")
    axes.tick_params(axis="x", rotation=30)
    axes.set_ylabel("ms per step")
    axes.legend(fontsize="small")
    return figure


def _sweep(rows: Sequence[Row], axis: str) -> "Figure":
    """Hit rate, accept length and throughput against one bound, mean over all else."""
    figure, panels = _figure(len(_ACROSS))
    for axes, (label, value) in zip(panels, _ACROSS, strict=True):
        for method in _distinct(map(_base, rows)):
            own = [row for row in rows if _base(row) == method]
            places = sorted({getattr(row, axis) for row in own})
            groups = [[value(row) for row in own if getattr(row, axis) == x] for x in places]
            axes.plot(places, [sum(g) / len(g) for g in groups], marker="o", label=method)
        axes.set_ylabel(label)
        axes.legend(fontsize="small")
    panels[-1].set_xlabel(axis)
    return figure


def _slopes(rows: Sequence[ReplayRow]) -> "Figure":
    last = rows[-1].suite  # all suites together, where there are several
    figure, (axes,) = _figure()
    for method in _distinct(row.method for row in rows):
        own = [row for row in rows if row.method == method and row.suite == last]
        axes.plot([r.slope for r in own], [r.speedup for r in own], marker="o", label=method)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlabel("cost of one more row, in plain steps")
    axes.set_ylabel("modelled speedup")
    figure.legend(loc="outside lower center", fontsize="small", ncols=5)
    return figure


def _calibration(reliability: Reliability) -> "Figure":
    figure, (axes,) = _figure(width=5.0)
    predicted, realised, counts = zip(*reliability.points(), strict=True)
    axes.plot([0, 1], [0, 1], "k:", linewidth=0.8)
    axes.plot(predicted, realised, marker="o")
    for x, y, count in zip(predicted, realised, counts, strict=True):
        axes.annotate(
            str(count), (x, y), fontsize="x-small", xytext=(4, -8), textcoords="offset points"
        )
    axes.set_xlabel("predicted acceptance")
    axes.set_ylabel("realised acceptance (number of candidates)")
    return figure


def _mean(rows: Iterable[Row], method: str, value: Value) -> float:
    values = [value(row) for row in rows if row.method == method]
    return sum(values) / len(values)


def _base(row: Row) -> str:
    """The method without its swept bounds."""
    return row.method.partition(" ")[0]


def _distinct(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))
