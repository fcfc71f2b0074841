"""What the model says after tokens that stand alone: asked in trees, as it would say it in text."""

import itertools
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.model import bigram_probe
from engine.model.bigram_probe import probe_bigrams
from engine.model.run_request import RunRequest
from engine.model.runner import ModelRunner
from engine.spec.bigrams import Bigrams
from engine.spec.drafter import Needs
from engine.spec.tree import TokenTree
from engine.types import EngineInfo
from tests.engine.tiny import EOS, MAX_LEN, VOCAB, tiny_loaded

INFO = EngineInfo("tiny", "LlamaForCausalLM", "cpu", "float32", VOCAB, MAX_LEN, 1, (EOS,))
BREAK, WIDTH, TREE = [7, 3], 4, 60


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "treeline" / "bigrams"


def runner(family: str = "Llama") -> ModelRunner:
    return ModelRunner(tiny_loaded(family), 1, TREE)


def probe(on: ModelRunner, seconds: float = 60.0) -> Bigrams | None:
    return probe_bigrams(on, INFO, BREAK, WIDTH, seconds)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every pass."""
    seen: list[int] = []
    real = ModelRunner.run

    def run(self, parts):
        seen.append(sum(part.num_rows for part in parts))
        return real(self, parts)

    monkeypatch.setattr(ModelRunner, "run", run)
    return seen


def test_every_token_is_asked_alone() -> None:
    here = runner()
    bigrams = probe(here)
    assert bigrams is not None
    assert len(bigrams) == VOCAB
    for token in (0, 1, TREE - 1, TREE, 200, VOCAB - 1):
        alone = RunRequest(0, 0, BREAK, TokenTree.anchored(token), Needs(top_k=WIDTH))
        (said,) = here.run([alone])
        row = struct.unpack(f"<{WIDTH}i{WIDTH}b", bigrams.row(token))
        assert list(row[:WIDTH]) == said.rows.token_ids[0].tolist()
        shares = torch.tensor(said.rows.logits[0]).softmax(0)
        assert list(row[WIDTH:]) == [min(15, int(s)) for s in (-2.0 * shares.log2()).tolist()]
    assert bigrams.row(VOCAB) is None


def test_a_kept_table_is_taken_for_the_same_model_only(cache: Path, passes: list[int]) -> None:
    first = probe(runner())
    asked = len(passes)
    passes.clear()
    assert probe(runner()) == first
    assert len(passes) == 2 < asked, "the first block, to compare with"
    assert probe(runner("Qwen2")) != first, "a model of the same name and shape"
    (file,) = cache.iterdir()
    file.write_bytes(b"odd")
    assert probe(runner()) == first


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch, passes: list[int]) -> None:
    clock = itertools.count()
    monkeypatch.setattr(bigram_probe.time, "perf_counter", lambda: float(next(clock)))
    bigrams = probe(runner(), seconds=10.0)
    assert bigrams is not None
    assert TREE < len(bigrams) < VOCAB
    assert len(bigrams) % TREE == 0
    passes.clear()
    assert probe(runner(), seconds=0.0) is None
    assert not passes


def test_a_cache_that_cannot_be_written_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    bigrams = probe(runner())
    assert bigrams is not None
    assert len(bigrams) == VOCAB
    assert "not kept" in caplog.text


def test_a_small_vocabulary_is_one_block() -> None:
    bigrams = probe_bigrams(runner(), replace(INFO, vocab_size=5), BREAK, WIDTH, 1.0)
    assert bigrams is not None
    assert len(bigrams) == 5


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match="no rows of 3"):
        Bigrams(3, b"0123456789")
