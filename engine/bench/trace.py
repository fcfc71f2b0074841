"""Recorded greedy text with what the target said at every position: drafters' food without a model.

Row i is what the model said after token i. Logits are stored less their row's log-sum-exp, so that
`exp(logit)` is the probability. Rows of nodes that a drafter would have got wrong are not here:
nobody has computed them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from engine.errors import ConfigError
from engine.spec.bigrams import Bigrams
from engine.spec.drafter import Rows

TOP_K = 10
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Trace:
    """One prompt and its greedy answer."""

    suite: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]  # the answer
    max_tokens: int  # that were allowed; the answer may have ended before
    rows: Rows  # [len(prompt_token_ids) + len(token_ids) - 1, TOP_K]

    def rows_at(self, positions: Sequence[int], top_k: int) -> Rows:
        """The `top_k` best of the rows at `positions`."""
        index = np.asarray(positions, dtype=np.int64)
        return Rows(self.rows.token_ids[index, :top_k], self.rows.logits[index, :top_k])


@dataclass(frozen=True, slots=True)
class Recording:
    """The traces of one model. `fingerprint` says which and where."""

    traces: tuple[Trace, ...]
    eos_token_ids: frozenset[int]
    fingerprint: dict[str, Any]
    bigrams: Bigrams | None = None  # what the model says after tokens that stand alone

    def save(self, path: Path) -> None:
        """Write a compressed npz file. Raises ConfigError if that fails."""
        traces = self.traces
        arrays: dict[str, npt.NDArray[Any]] = {
            "version": np.array(_VERSION),
            "fingerprint": np.array(json.dumps(self.fingerprint)),
            "eos_token_ids": np.array(sorted(self.eos_token_ids), dtype=np.int64),
            "suites": np.array([trace.suite for trace in traces]),
            "prompt_lens": np.array([len(t.prompt_token_ids) for t in traces]),
            "answer_lens": np.array([len(t.token_ids) for t in traces]),
            "max_tokens": np.array([trace.max_tokens for trace in traces]),
            "token_ids": np.concatenate(
                [np.array(t.prompt_token_ids + t.token_ids, dtype=np.int32) for t in traces]
            ),
            "row_ids": np.concatenate([t.rows.token_ids for t in traces]).astype(np.int32),
            "row_logits": np.concatenate([t.rows.logits for t in traces]).astype(np.float32),
        }
        if self.bigrams is not None:
            arrays["bigrams"] = np.frombuffer(self.bigrams.rows, np.uint8)
            arrays["bigrams_width"] = np.array(self.bigrams.width)
        try:
            with path.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> "Recording":
        """Read what `save` wrote. Raises ConfigError for anything else."""
        try:
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            if int(arrays["version"]) != _VERSION:
                raise ConfigError(f"{path}: a recording of another version; record it again")
            return cls(
                tuple(_traces(arrays)),
                frozenset(arrays["eos_token_ids"].tolist()),
                json.loads(str(arrays["fingerprint"])),
                _bigrams(arrays),
            )
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from error
        except (ValueError, KeyError, AttributeError, EOFError, BadZipFile) as error:
            raise ConfigError(f"{path}: not a recording of `treeline bench --record`") from error


def _bigrams(arrays: dict[str, npt.NDArray[Any]]) -> Bigrams | None:
    if "bigrams" not in arrays:
        return None
    return Bigrams(int(arrays["bigrams_width"]), arrays["bigrams"].tobytes())


def _traces(arrays: dict[str, npt.NDArray[Any]]) -> list[Trace]:
    traces: list[Trace] = []
    token, row = 0, 0
    for suite, prompt_len, answer_len, max_tokens in zip(
        arrays["suites"].tolist(),
        arrays["prompt_lens"].tolist(),
        arrays["answer_lens"].tolist(),
        arrays["max_tokens"].tolist(),
        strict=True,
    ):
        token_ids = arrays["token_ids"][token : token + prompt_len + answer_len].tolist()
        num_rows = len(token_ids) - 1
        rows = Rows(
            arrays["row_ids"][row : row + num_rows].astype(np.int64),
            arrays["row_logits"][row : row + num_rows],
        )
        prompt, answer = tuple(token_ids[:prompt_len]), tuple(token_ids[prompt_len:])
        traces.append(Trace(suite, prompt, answer, max_tokens, rows))
        token += len(token_ids)
        row += num_rows
    return traces
