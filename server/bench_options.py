"""The options of `treeline bench`. Only text is checked here; the engine knows the rest."""

import argparse
from pathlib import Path

from engine.config import METHODS

_AXES = ("width", "depth", "budget")


def add_bench_options(bench: argparse.ArgumentParser) -> None:
    """Add what to measure, on which prompts, how, and where the result goes."""
    what = bench.add_argument_group("what is compared")
    what.add_argument("--methods", type=_methods, metavar="A,B", help="default: all that can run")
    what.add_argument(
        "--sweep",
        type=_axis,
        nargs="+",
        default=[],
        metavar="AXIS=N,N",
        help="every combination of these bounds: width=1,2,4 depth=3,6 budget=8,16",
    )
    what.add_argument("--runs", type=_count, default=1, metavar="N", help="repeat, take medians")
    what.add_argument(
        "--batch", type=_count, default=1, metavar="N", help="prompts that run at a time"
    )
    what.add_argument(
        "--sampled", type=_sampling, metavar="T,SEED", help="sample; default: greedy decoding"
    )
    what.add_argument(
        "--exact", action="store_true", help="refuse to run unless tokens can be bit-identical"
    )
    _add_prompt_options(bench.add_argument_group("on which prompts"))
    _add_result_options(bench.add_argument_group("result"))
    _add_trace_options(bench.add_argument_group("recorded text"))


def _add_prompt_options(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--data", type=Path, metavar="DIR", help="the folder of SUITE.jsonl files")
    group.add_argument("--suites", type=_words, metavar="A,B")
    group.add_argument(
        "--prompts",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="your own: .jsonl rows with turns or prompt, or text with a prompt a line",
    )
    group.add_argument("--limit", type=_count, metavar="N", help="prompts per suite; default: 20")
    group.add_argument("--max-tokens", type=_count, metavar="N", help="per prompt; default: 128")
    group.add_argument("--raw", action="store_true", help="do not apply the chat template")


def _add_result_options(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--json", type=Path, metavar="FILE", help="also write the result here")
    group.add_argument("--plots", type=Path, metavar="DIR", help="also draw it here, as PNG files")


def _add_trace_options(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="instead of measuring, keep the greedy answers and what the model said (.npz)",
    )
    group.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="run the drafters on such a file, without the model; rows of rejected nodes are "
        "unknown, so methods that explore cannot be replayed, and `auto` does not explore",
    )
    group.add_argument(
        "--slope",
        type=_slopes,
        metavar="S,S",
        help="with --replay: a step of n rows costs 1 + S (n - 1)",
    )


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _methods(text: str) -> list[str]:
    for word in _words(text):
        if word not in METHODS:
            raise argparse.ArgumentTypeError(f"{word}: known methods are {', '.join(METHODS)}")
    return _words(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text}")
    return int(text)


def _axis(text: str) -> tuple[str, list[int]]:
    axis, equals, values = text.partition("=")
    if axis not in _AXES or not equals or not _words(values):
        raise argparse.ArgumentTypeError(f"{text}: expected {', '.join(_AXES)} = numbers")
    return axis, [_count(value) for value in _words(values)]


def _slopes(text: str) -> list[float]:
    slopes = [_number(word) for word in _words(text)]
    if not slopes or min(slopes) < 0.0:
        raise argparse.ArgumentTypeError(f"must be numbers from 0 on, got {text}")
    return slopes


def _sampling(text: str) -> tuple[float, int]:
    temperature, _, seed = text.partition(",")
    if not seed.isdecimal() or not 0.0 < _number(temperature) <= 2.0:
        raise argparse.ArgumentTypeError(
            f"must be a temperature above 0 and at most 2, and a seed, such as 0.8,1; got {text}"
        )
    return _number(temperature), int(seed)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a number, got {text}") from error
