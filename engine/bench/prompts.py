"""Prompts to measure on: the suites of a folder, and files of the user's own."""

import argparse
import json
from pathlib import Path

from engine.errors import ConfigError

DEFAULT_LIMIT = 20


def read_suites(options: argparse.Namespace) -> dict[str, list[str]]:
    """Prompts by suite: DIR/SUITE.jsonl of `--data` and `--suites`, then each `--prompts` file.

    Raises ConfigError for a file that cannot be used and for two suites of one name.
    """
    if not options.prompts and not (options.data and options.suites):
        missing = ", ".join(f"--{name}" for name in ("data", "suites") if not vars(options)[name])
        raise ConfigError(
            f"the following arguments are required: {missing}; "
            "or --prompts FILE, or --replay FILE; see treeline bench --help"
        )
    if bool(options.data) != bool(options.suites):
        raise ConfigError("--data and --suites go together")
    paths = [options.data / f"{suite}.jsonl" for suite in options.suites or ()]
    suites: dict[str, list[str]] = {}
    for path in [*paths, *options.prompts]:
        if path.stem in suites:
            raise ConfigError(f"{path}: there is a suite {path.stem} already; rename the file")
        suites[path.stem] = read_prompts(path, options.limit or DEFAULT_LIMIT)
    return suites


def read_prompts(path: Path, limit: int) -> list[str]:
    """The first `limit` prompts of a file.

    Of a .jsonl file: `turns[0]` or `prompt` of each row. Of any other: each line that is not blank.
    Raises ConfigError naming file and line.
    """
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', error)}") from error
    prompts: list[str] = []
    for number, line in enumerate(lines, 1):
        if len(prompts) == limit:
            break
        if line.strip():
            prompts.append(_row(path, number, line) if path.suffix == ".jsonl" else line.strip())
    if not prompts:
        raise ConfigError(f"{path}: no prompts here")
    return prompts


def _row(path: Path, number: int, line: str) -> str:
    try:
        row = json.loads(line)
        return str(row["turns"][0] if row.get("turns") else row["prompt"])
    except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path}:{number}: no prompt here ({error!r})") from error
