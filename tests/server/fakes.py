"""A tiny tokenizer and an engine that replays a script: every server fault becomes exact on a CPU.

The fake engine keeps the real one's contract: a thread, one callback per step, several tokens per
step as a tree gives them, cuts at EOS, stop ids, stop strings and max_tokens, one end per request.
"""

import asyncio
import codecs
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.client import EngineStatus, OnStep
from engine.config import METHODS
from engine.errors import EngineDeadError, RequestError
from engine.text.grammars import Grammars
from engine.types import (
    PLAIN_TEXT,
    EngineInfo,
    EngineOutput,
    EngineRequest,
    FinishReason,
    RequestTimes,
    SpecStats,
    StepOutputs,
    TextRules,
    TokenLogprob,
)

EOS, BOS = 256, 257
SPECIAL = {EOS: "<eos>", BOS: "<bos>"}
PIECES = {
    258: b" the",
    259: "🙂".encode()[:2],
    260: "🙂".encode()[2:],
    261: b"own f",
}
VOCAB = 270

Script = Callable[[Sequence[int], int], int]  # (prompt, index of the next token) -> token id


class FakeTokenizer:
    """Bytes are their own ids; a few pieces are longer or end inside a character."""

    def __init__(self, adds_bos: bool = False) -> None:
        self._adds_bos = adds_bos
        self._grammars: Grammars | None = None

    def grammars(self, vocab_size: int, eos_token_ids: Sequence[int]) -> Grammars:
        self._grammars = self._grammars or Grammars(self, vocab_size, eos_token_ids)
        return self._grammars

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = [BOS] if self._adds_bos and add_special_tokens else []
        while text:
            special = next((i for i, name in SPECIAL.items() if text.startswith(name)), None)
            if special is not None:
                ids.append(special)
                text = text[len(SPECIAL[special]) :]
            else:
                ids.extend(text[0].encode())
                text = text[1:]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        decoder = self.detokenizer(TextRules(skip_special_tokens))
        return decoder.push(ids) + decoder.flush()

    def detokenizer(self, rules: TextRules = PLAIN_TEXT) -> "FakeDecoder":
        return FakeDecoder(self, rules)

    def token_bytes(self, token_id: int) -> bytes:
        if token_id in SPECIAL:
            return SPECIAL[token_id].encode()
        return PIECES.get(token_id, bytes([token_id]) if token_id < 256 else b"")

    def is_special(self, token_id: int) -> bool:
        return token_id in SPECIAL

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        if template is not None:
            return template + "".join(str(message["content"]) for message in messages)
        roles = [message["role"] for message in messages]
        if any(a == b == "user" for a, b in itertools.pairwise(roles)):
            raise RequestError("Conversation roles must alternate user/assistant", param="messages")
        text = "".join(f"[{message['role']}]{message['content']}" for message in messages)
        return text + ("[assistant]" if add_generation_prompt else "")


class FakeDecoder:
    """Incremental UTF-8 over the pieces."""

    def __init__(self, tokenizer: FakeTokenizer, rules: TextRules) -> None:
        self._tokenizer = tokenizer
        self._rules = rules
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Sequence[int]) -> str:
        return self._utf8.decode(
            b"".join(
                self._tokenizer.token_bytes(i)
                for i in token_ids
                if self._rules.shows(i, self._tokenizer.is_special(i))
            )
        )

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


def reply(text: str) -> Script:
    """Answer every prompt with `text`, then EOS for ever."""
    ids = list(text.encode())
    return lambda _, index: ids[index] if index < len(ids) else EOS


def reply_ids(*ids: int) -> Script:
    """Answer with these ids, then EOS for ever."""
    return lambda _, index: ids[index] if index < len(ids) else EOS


def cycle(text: str) -> Script:
    """Repeat `text` for ever."""
    ids = list(text.encode())
    return lambda _, index: ids[index % len(ids)]


@dataclass
class _Running:
    request: EngineRequest
    tokens: list[int] = field(default_factory=list)
    stats: SpecStats = field(default_factory=SpecStats)
    first_token: float = 0.0


class FakeEngine:
    """Implements EngineClient over a script."""

    def __init__(
        self,
        script: Script,
        *,
        max_model_len: int = 256,
        max_batch: int = 8,
        block: int = 4,
        step_seconds: float = 0.0,
        name: str = "fake/model",
        is_exact: bool = False,
    ) -> None:
        self.script = script
        self.block = block
        self.step_seconds = step_seconds
        self.waits_for_readers = False  # a step's output is read before the next step begins
        self.gate = threading.Event()  # cleared: the engine hangs
        self.gate.set()
        self.requests: list[EngineRequest] = []  # all that were ever added
        self.aborted: list[str] = []
        self.running: dict[str, _Running] = {}
        self.waiting: list[EngineRequest] = []
        self.fail_next: str | None = None  # the next step ends all its requests with this error
        self.fail_code: str | None = None  # the same as the requests' own fault, with this code
        self._info = EngineInfo(
            model_name=name,
            architecture="FakeForCausalLM",
            device="cpu",
            dtype="float32",
            vocab_size=VOCAB,
            max_model_len=max_model_len,
            max_batch=max_batch,
            eos_token_ids=(EOS,),
            is_exact=is_exact,
            created=1,
        )
        self._tokenizer = FakeTokenizer()
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._on_step: OnStep | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stops = threading.Event()
        self._death: str | None = None
        self._draining = False
        self._last_step = time.monotonic()
        self._step_stats: list[tuple[str, SpecStats]] = []
        self._new_prompt_tokens = self._new_cached_tokens = 0

    @property
    def info(self) -> EngineInfo:
        return self._info

    def start(self, on_step: OnStep) -> None:
        self._on_step = on_step
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def add(self, request: EngineRequest) -> None:
        if self._death is not None:
            raise EngineDeadError(self._death)
        self.requests.append(request)
        self._inbox.put(("add", request))

    def abort(self, request_id: str) -> None:
        self._inbox.put(("abort", request_id))

    def kill(self, reason: str) -> None:
        """Die as an exception in the loop would make the real engine die."""
        self._inbox.put(("kill", reason))

    def status(self) -> EngineStatus:
        since = time.monotonic() - self._last_step
        queued = len(self.waiting) + self._inbox.qsize()
        alive = self._death is None
        tokens = [len(r.request.prompt_token_ids) + len(r.tokens) for r in [*self.running.values()]]
        return EngineStatus(
            is_alive=alive,
            is_draining=self._draining,
            num_running=len(self.running),
            num_waiting=queued,
            seconds_since_step=since,
            error=self._death,
            num_kv_tokens=sum(tokens),
            num_cache_tokens=7,
            step_cost=((1, 0.01), (8, 0.02)),
            drafter_entries=(("auto", 5),),
        )

    def shutdown(self, timeout: float) -> None:
        self._draining = True
        self.gate.set()
        self._stops.set()
        self._thread.join(timeout)

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.waiting and self._inbox.empty()

    def _run(self) -> None:
        while not self._stops.is_set():
            self.gate.wait()
            ended = self._drain()
            if self._death is not None:
                self._emit(StepOutputs(dead=self._death))
                return
            while self.waiting and len(self.running) < self._info.max_batch:
                request = self.waiting.pop(0)
                self.running[request.request_id] = _Running(request)
            outputs = [*ended, *(self._step(r) for r in list(self.running.values()))]
            if outputs:
                self.fail_next = None
                self._emit(self._step_outputs(outputs))
                if self.waits_for_readers:
                    asyncio.run_coroutine_threadsafe(many_turns(), self._loop).result()
            self._last_step = time.monotonic()
            time.sleep(self.step_seconds if outputs else 0.001)

    def _emit(self, step: StepOutputs) -> None:
        assert self._on_step is not None
        self._on_step(step)

    def _step_outputs(self, outputs: list[EngineOutput]) -> StepOutputs:
        spec = []
        for method in METHODS:
            stats = [s for m, s in self._step_stats if m == method]
            if stats:
                spec.append((method, sum(stats, SpecStats())))
        return StepOutputs(
            outputs=tuple(outputs),
            spec=tuple(spec),
            trees=tuple((method, stats.draft_tokens) for method, stats in self._step_stats),
            num_prefix_queries=self._new_prompt_tokens,
            num_prefix_hits=self._new_cached_tokens,
            price=0.5,
            predicted_tokens=1.5 if any(method == "auto" for method, _ in spec) else 0.0,
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            num_prompt_tokens=self._new_prompt_tokens,
            draft_seconds=0.001,
            forward_seconds=0.002,
            walk_seconds=0.001,
            num_rows=len(outputs),
        )

    def _drain(self) -> list[EngineOutput]:
        self._step_stats, self._new_prompt_tokens, self._new_cached_tokens = [], 0, 0
        ended = []
        while not self._inbox.empty():
            kind, item = self._inbox.get()
            if kind == "kill":
                self._death = item
            elif kind == "add":
                self.waiting.append(item)
            else:
                self.aborted.append(item)
                known = self.running.pop(item, None)
                queued = [r for r in self.waiting if r.request_id == item]
                self.waiting = [r for r in self.waiting if r.request_id != item]
                if known or queued:
                    stats = known.stats if known else SpecStats()
                    ended.append(EngineOutput(item, finish_reason=FinishReason.ABORT, stats=stats))
        return ended

    def _step(self, state: _Running) -> EngineOutput:
        request, sampling = state.request, state.request.sampling
        if not state.tokens:
            self._new_prompt_tokens += len(request.prompt_token_ids)
            self._new_cached_tokens += num_cached(request)
        if self.fail_next is not None:
            del self.running[request.request_id]
            return EngineOutput(
                request.request_id,
                finish_reason=FinishReason.INVALID if self.fail_code else FinishReason.ERROR,
                error=self.fail_next,
                error_code=self.fail_code,
            )
        prompt_logprobs = None
        if sampling.prompt_logprobs is not None and not state.tokens:
            prompt_logprobs = self._prompt_logprobs(request)
        depth = 0 if request.speculation.method == "off" else self.block - 1
        new: list[int] = []
        reason, matched = self._end(state) if sampling.max_tokens == 0 else (None, None)
        while reason is None and len(new) <= depth:
            token = self.script(request.prompt_token_ids, len(state.tokens))
            if token == EOS and len(state.tokens) < sampling.min_tokens:
                token = ord(".")
            state.tokens.append(token)
            new.append(token)
            reason, matched = self._end(state)
        state.first_token = state.first_token or time.monotonic()
        self._count(state, depth, len(new))
        logprobs = None
        if sampling.logprobs is not None:
            logprobs = tuple(fake_logprob(token, sampling.logprobs) for token in new)
        output = EngineOutput(
            request.request_id,
            tuple(new),
            logprobs,
            prompt_logprobs,
            reason,
            matched,
            num_cached_tokens=num_cached(request),
        )
        return self._finish(state, output) if reason else output

    def _count(self, state: _Running, depth: int, num_new: int) -> None:
        accepted = max(num_new - 1, 0)
        hits = num_new if depth else 0
        per_depth = tuple(1 for _ in range(accepted))
        stats = SpecStats(1, int(depth > 0), depth, 0, accepted, hits, num_new, per_depth)
        state.stats += stats
        self._step_stats.append((state.request.speculation.method, stats))

    def _finish(self, state: _Running, output: EngineOutput) -> EngineOutput:
        del self.running[output.request_id]
        prediction = state.request.prediction_token_ids
        agreeing = itertools.takewhile(
            lambda pair: pair[0] == pair[1], zip(state.tokens, prediction, strict=False)
        )
        accepted = len(list(agreeing))
        state.stats += SpecStats(
            accepted_prediction_tokens=accepted,
            rejected_prediction_tokens=len(prediction) - accepted,
        )
        arrival, now = state.request.arrival_time, time.monotonic()
        times = RequestTimes(arrival, arrival, state.first_token, now)
        return EngineOutput(
            output.request_id,
            output.new_token_ids,
            output.logprobs,
            output.prompt_logprobs,
            output.finish_reason,
            output.stop_reason,
            num_cached_tokens=output.num_cached_tokens,
            stats=state.stats,
            times=times,
        )

    def _end(self, state: _Running) -> tuple[FinishReason | None, int | str | None]:
        sampling, tokens = state.request.sampling, state.tokens
        if tokens and tokens[-1] == EOS and not sampling.ignore_eos:
            return FinishReason.STOP, None
        if tokens and tokens[-1] in sampling.stop_token_ids:
            return FinishReason.STOP, tokens[-1]
        for stop in sampling.stop:
            if stop in self._tokenizer.decode(tokens):
                return FinishReason.STOP, stop
        total = len(state.request.prompt_token_ids) + len(tokens)
        if len(tokens) >= sampling.max_tokens or total >= self._info.max_model_len:
            return FinishReason.LENGTH, None
        return None, None

    def _prompt_logprobs(self, request: EngineRequest) -> tuple[TokenLogprob | None, ...]:
        num_top = request.sampling.prompt_logprobs or 0
        rest = (fake_logprob(token, num_top) for token in request.prompt_token_ids[1:])
        return (None, *rest)


async def many_turns() -> None:
    """Enough turns of the event loop for all that waits on a step to have run."""
    for _ in range(100):
        await asyncio.sleep(0)


def num_cached(request: EngineRequest) -> int:
    """Half of every prompt is said to be kept from before."""
    return len(request.prompt_token_ids) // 2


def usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    """Token counts as answers show them."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def fake_logprob(token: int, num_top: int) -> TokenLogprob:
    """A made-up distribution: the token is likeliest, its successors follow, one is impossible."""
    alternatives = [(token, -0.5), ((token + 1) % 256, -1.5), ((token + 2) % 256, -2.5)]
    alternatives += [((token + 3) % 256, float("-inf")), ((token + 4) % 256, float("-inf"))]
    return TokenLogprob(token, -0.5, tuple(alternatives[:num_top]))
