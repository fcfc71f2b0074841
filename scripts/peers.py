"""The engines that compare_peers.py compares, behind one call: prompt ids in, token ids out, timed.

Each decodes greedily, one prompt at a time, without reusing anything of earlier prompts.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

from engine.bench.arm import Arm
from engine.bench.bench import Bench
from engine.bench.trial import Trial


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt's greedy answer and what it took."""

    token_ids: tuple[int, ...]
    seconds: float
    ttft: float  # seconds to the first token
    forwards: int  # that gave tokens, the prompt's included


class Peer(Protocol):
    """An engine in one setting. `name` groups settings, of which the fastest is reported."""

    name: str
    setting: str

    def run(self, prompt: str, token_ids: Sequence[int], max_tokens: int) -> Answer:
        """Answer one prompt."""
        ...


class Treeline:
    """Our engine core, in process."""

    def __init__(self, bench: Bench, arm: Arm) -> None:
        self.name = f"treeline {arm.label}"
        self.setting = ""
        self._bench = bench
        self._arm = arm
        self._shared = bench.fresh(arm)

    def run(self, prompt: str, token_ids: Sequence[int], max_tokens: int) -> Answer:  # noqa: ARG002
        """Through the same chat template and step loop as a server's request."""
        trial: Trial = self._bench.run(self._arm, [prompt], self._shared, max_tokens)
        (answer,) = trial.token_ids
        return Answer(answer, trial.seconds, trial.ttft_seconds[0], trial.stats.steps)


class _FirstToken(BaseStreamer):  # type: ignore[misc]
    """Notes when the first token arrives. transformers puts the prompt first."""

    def __init__(self) -> None:
        self._puts = 0
        self.time = 0.0

    def put(self, _value: Any) -> None:
        self._puts += 1
        if self._puts == 2:
            self.time = time.perf_counter()

    def end(self) -> None:
        """Nothing is left to tell."""


class Transformers:
    """`generate` of transformers; `lookup`: tokens of its prompt lookup, 0 for none."""

    def __init__(self, model: Any, lookup: int) -> None:
        self.name = "transformers prompt lookup" if lookup else "transformers"
        self.setting = f"prompt_lookup_num_tokens={lookup}" if lookup else ""
        self._model = model
        self._lookup = {"prompt_lookup_num_tokens": lookup} if lookup else {}

    @staticmethod
    def load(folder: Path, dtype: str, device: str) -> Any:
        """The model that all settings share."""
        model = AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=getattr(torch, dtype), local_files_only=True
        )
        return model.eval().to(device)

    @torch.inference_mode()
    def run(self, prompt: str, token_ids: Sequence[int], max_tokens: int) -> Answer:  # noqa: ARG002
        """With the model's own generation config, but greedy."""
        forwards = 0

        def count(*_: Any) -> None:
            nonlocal forwards
            forwards += 1

        hook = self._model.register_forward_pre_hook(count)
        streamer = _FirstToken()
        ids = torch.tensor([list(token_ids)], device=self._model.device)
        begin = time.perf_counter()
        output = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_tokens,
            streamer=streamer,
            **self._lookup,
        )
        seconds = time.perf_counter() - begin
        hook.remove()
        answer = tuple(output[0, len(token_ids) :].tolist())
        return Answer(answer, seconds, streamer.time - begin, forwards)


class LlamaCpp:
    """llama-cpp-python in process; `lookup`: tokens of its prompt lookup, 0 for none."""

    def __init__(self, llama: Any, eos_token_ids: frozenset[int], lookup: int) -> None:
        self.name = "llama.cpp prompt lookup" if lookup else "llama.cpp"
        self.setting = f"num_pred_tokens={lookup}" if lookup else ""
        self._llama = llama
        self._eos_token_ids = eos_token_ids
        self._draft = None
        if lookup:
            from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

            self._draft = LlamaPromptLookupDecoding(num_pred_tokens=lookup)

    @staticmethod
    def load(gguf: Path, context: int, threads: int, reads_all: bool) -> Any:
        """`reads_all`: keep every row's logits, which prompt lookup needs.

        Raises ImportError if llama-cpp-python is not installed.
        """
        from llama_cpp import Llama

        class Counting(Llama):
            """Counts its passes."""

            forwards = 0

            def eval(self, tokens: Sequence[int]) -> None:
                self.forwards += 1
                super().eval(tokens)

        return Counting(
            str(gguf),
            n_ctx=context,
            n_threads=threads,
            n_threads_batch=threads,
            logits_all=reads_all,
            verbose=False,
        )

    def run(self, prompt: str, token_ids: Sequence[int], max_tokens: int) -> Answer:  # noqa: ARG002
        """Greedy, from an empty cache."""
        llama = self._llama
        llama.reset()
        llama.draft_model = self._draft
        llama.forwards = 0
        answer: list[int] = []
        first = 0.0
        begin = time.perf_counter()
        for token in llama.generate(list(token_ids), temp=0.0, repeat_penalty=1.0):
            first = first or time.perf_counter()
            answer.append(int(token))
            if len(answer) == max_tokens or token in self._eos_token_ids:
                break
        return Answer(tuple(answer), time.perf_counter() - begin, first - begin, llama.forwards)
