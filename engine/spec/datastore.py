"""REST's datastore: the user's own texts as token ids, with their sorted suffixes, in one file.

Sorted suffixes turn "where does this occur" into a binary search over any amount of text. No query
is longer than 16 tokens, so sorting by the first 16 is enough; numpy does that in five rounds.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from engine.errors import ConfigError

Encode = Callable[[str], Sequence[int]]  # text to token ids, without special tokens around it
Tokens = npt.NDArray[np.uint32]

SORTED_LENGTH = 16
SEPARATOR = 2**32 - 1  # after each document; no token has this id
_FORMAT = "treeline-datastore-1"
_PROBE = (
    "The tokenizer that wrote a datastore must split this as the model's does: 12345 naïve 日本."
)


class Datastore:
    """Read-only token ids and the positions of their suffixes in order."""

    def __init__(self, tokens: Tokens, suffixes: Tokens) -> None:
        self._tokens = tokens
        self._suffixes = suffixes

    @classmethod
    def load(cls, path: Path, encode: Encode) -> "Datastore":
        """Read the file that `build_datastore` wrote with the same tokenizer into memory.

        Raises ConfigError if it can not be read or was written with another tokenizer.
        """
        try:
            with safe_open(path, framework="np") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != _FORMAT:
                    raise ConfigError(f"{path} is not a datastore of this version")
                if json.loads(metadata["probe"]) != list(encode(_PROBE)):
                    raise ConfigError(f"{path} was built with another tokenizer than the model's")
                return cls(file.get_tensor("tokens"), file.get_tensor("suffixes"))
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"cannot read the datastore {path}: {error}") from error

    def occurrences(self, gram: Sequence[int]) -> Tokens:
        """Start positions of `gram`, of 1 to 16 tokens, in the order of what follows."""
        query, n = list(gram), len(gram)

        def window(start: np.uint32) -> list[int]:
            ids: list[int] = self._tokens[start : int(start) + n].tolist()
            return ids

        low = bisect_left(self._suffixes, query, key=window)
        high = bisect_right(self._suffixes, query, lo=low, key=window)
        return self._suffixes[low:high]

    def following(self, positions: Tokens, length: int) -> Tokens:
        """[len(positions), length]: the tokens from each position on; SEPARATOR past the end."""
        places = positions.astype(np.int64)[:, None] + np.arange(length)
        found: Tokens = self._tokens[np.minimum(places, len(self._tokens) - 1)]
        return found


def build_datastore(files: Sequence[Path], encode: Encode, out: Path) -> int:
    """Write a datastore of UTF-8 text files, one document each, to `out`; returns its tokens.

    Raises ConfigError if a file can not be read, all are empty, or `out` can not be written.
    """
    documents: list[npt.NDArray[np.uint32]] = []
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {path} as UTF-8 text: {error}") from error
        documents.append(np.array([*encode(text), SEPARATOR], np.uint32))
    padding = np.full(SORTED_LENGTH, SEPARATOR, np.uint32)
    tokens = np.concatenate([*documents, padding])
    num_tokens = int(np.count_nonzero(tokens != SEPARATOR))
    if not num_tokens:
        raise ConfigError("the files hold no text to build a datastore from")
    metadata = {"format": _FORMAT, "probe": json.dumps(list(encode(_PROBE)))}
    try:
        save_file({"tokens": tokens, "suffixes": _sorted_suffixes(tokens)}, out, metadata)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot write the datastore {out}: {error}") from error
    return num_tokens


def _sorted_suffixes(tokens: Tokens) -> Tokens:
    """Positions of all real tokens, ordered by the 16 tokens that start there.

    Prefix doubling: from ranks by k tokens, a position's and its k-th successor's rank together
    give the ranks by 2k tokens.
    """
    rank = np.unique(tokens, return_inverse=True)[1]
    span = 1
    while span < SORTED_LENGTH:
        ahead = np.concatenate((rank[span:], np.full(span, rank.max())))
        rank = np.unique(rank * (rank.max() + 1) + ahead, return_inverse=True)[1]
        span *= 2
    order = np.argsort(rank, kind="stable")
    suffixes: Tokens = order[tokens[order] != SEPARATOR].astype(np.uint32)
    return suffixes
