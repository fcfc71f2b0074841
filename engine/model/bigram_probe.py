"""Asks the model what it says after each token alone, once per machine and model.

The tokens of a block are siblings in one tree below a line break, so that a pass asks as many as a
step may have rows, and none of them sees another.
"""

import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from engine.model.cache_folder import cache_file
from engine.model.run_request import RunRequest
from engine.model.runner import ModelRunner
from engine.spec.bigrams import Bigrams
from engine.spec.drafter import Needs
from engine.spec.packed_rows import layout, packer
from engine.spec.tree import TokenTree
from engine.types import EngineInfo

_BLOCK = 128  # tokens per pass at most
_ALIKE = 0.9  # of the first block's best tokens: the kept table is of this very model
_FORMAT = 1

log = logging.getLogger("treeline.engine")


def probe_bigrams(
    runner: ModelRunner, info: EngineInfo, line_break: Sequence[int], width: int, seconds: float
) -> Bigrams | None:
    """The best `width` successors of as many tokens as can be asked within `seconds`, in the order
    of their ids, which is roughly that of their frequency. None if there is no time or room.

    `line_break`: the tokens that all are asked behind. A table in the user's cache folder is taken
    if the model still says what it says. Runs on slot 0, which must be free.
    """
    room = runner.kv.shape.capacity - len(line_break) - 1
    size = min(_BLOCK, runner.max_tree_nodes, room, info.vocab_size)
    if seconds <= 0.0 or size < 1 or not line_break:
        return None
    ask = _Asking(runner, line_break, width)
    first = ask(range(size))
    path = _path(runner, info, line_break, width, seconds)
    known = _load(path, width)
    if known is not None and _are_alike(first, known):
        return known
    begin = time.perf_counter()
    blocks = [first]
    with tqdm(
        total=info.vocab_size,
        initial=size,
        desc="what follows each token, once",
        unit="token",
        file=sys.stderr,
        disable=None,
    ) as progress:
        for start in range(size, info.vocab_size, size):
            if time.perf_counter() - begin > seconds:
                break
            # Blocks are full, the last one too: every other number of rows would cost memory.
            full = min(start, info.vocab_size - size)
            block = ask(range(full, full + size))
            blocks.append(block[(start - full) * layout(width).size :])
            progress.update(full + size - start)
    bigrams = Bigrams(width, b"".join(blocks))
    log.info("asked what follows %d of %d tokens", len(bigrams), info.vocab_size)
    _save(path, bigrams)
    return bigrams


class _Asking:
    """Asks blocks of tokens behind one line break."""

    def __init__(self, runner: ModelRunner, line_break: Sequence[int], width: int) -> None:
        self._runner = runner
        self._before, self._anchor = line_break[:-1], line_break[-1]
        self._needs = Needs(top_k=width)
        self._width = width
        self._run(0, self._before, TokenTree.anchored(self._anchor))

    def __call__(self, tokens: Sequence[int]) -> bytes:
        """The packed rows of `tokens`."""
        tree = TokenTree.anchored(self._anchor)
        for token in tokens:
            tree.add(0, token)
        packed = self._run(len(self._before), (), tree)
        return packed[layout(self._width).size :]

    def _run(self, committed_len: int, prefix: Sequence[int], tree: TokenTree) -> bytes:
        (result,) = self._runner.run([RunRequest(0, committed_len, prefix, tree, self._needs)])
        assert result is not None
        return packer(self._width)(result.rows)


def _are_alike(first: bytes, known: Bigrams) -> bool:
    size = layout(known.width).size
    starts = range(0, len(first), size)
    same = [first[start : start + 4] == known.rows[start : start + 4] for start in starts]
    return sum(same) >= _ALIKE * len(same)


def _path(
    runner: ModelRunner, info: EngineInfo, line_break: Sequence[int], width: int, seconds: float
) -> Path:
    facts = {
        "format": _FORMAT,
        "model": info.model_name,
        "vocab": info.vocab_size,
        "kv": asdict(runner.kv.shape) | {"capacity": 0},
        "dtype": info.dtype,
        "behind": list(line_break),
        "width": width,
        "seconds": seconds,
    }
    return cache_file("bigrams", facts, ".bin")


def _load(path: Path, width: int) -> Bigrams | None:
    try:
        return Bigrams(width, path.read_bytes())
    except (OSError, ValueError):
        return None


def _save(path: Path, bigrams: Bigrams) -> None:
    """By way of a second file, since others may be reading."""
    partial = path.with_suffix(f".{time.time_ns()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(bigrams.rows)
        partial.replace(path)
    except OSError as error:
        log.warning("what follows each token was asked but not kept: %s", error)
