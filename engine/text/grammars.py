"""Grammars that an answer must follow: compiled once, checked before the engine hears of them.

The server compiles to refuse what is wrong; the engine asks for a matcher of what was compiled. A
grammar crosses between them as text, and both sides find the same compiled form here.
"""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

from engine.errors import RequestError

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_SOURCE = 128 * 1024  # characters
_MAX_COMPILED = 64  # kept for later requests; the least recently used leaves first
# Time is limited by work done, not by a clock, so the same grammar is refused on every machine.
_COMPILE_FUEL, _STEP_FUEL, _STEP_ITEMS = 1_000_000, 200_000, 50_000  # tens of milliseconds each
# A model that may write any amount of white space may write nothing else for ever.
JSON_OPTIONS: "JsonCompileOptions" = {"whitespace_pattern": r"[ \t\n\r]{1,16}"}

_TOKEN_NAME = re.compile(rb"\xff\[\d+\]")  # a control token among forced bytes


class GrammarError(RequestError):
    """A text cannot go on within its grammar: no token may follow, or a step is too complex."""

    def __init__(self, reason: str) -> None:
        line = reason.partition("\n")[0]
        if line.startswith("NoExtension"):
            line = "no token of the vocabulary may follow what has been written"
        message = f"The answer cannot go on as its grammar demands: {line[:200]}."
        super().__init__(message, code="grammar_dead_end")


class Codec(Protocol):
    """What grammars need of a tokenizer."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The true bytes of one token."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token."""
        ...


class Matcher:
    """One text on its way through a grammar. It only ever moves on: draws come in text order."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def mask(self) -> bytes:
        """The allowed next tokens, one bit each, lowest bit first. An end-of-sequence token is
        among them only where the grammar accepts. Raises GrammarError."""
        mask = self._matcher.compute_bitmask()
        self._check()
        return mask

    def advance(self, token_id: int) -> None:
        """Take the token that was drawn. Raises GrammarError if the grammar does not allow it."""
        self._matcher.consume_token(token_id)
        self._check()

    def fork(self) -> "Matcher":
        """A copy to look ahead with: nothing that happens to it, errors included, is felt here."""
        return Matcher(self._matcher.deep_copy())

    def follow(self, token_ids: Sequence[int]) -> bool:
        """Take tokens; false, and no use any more, if the grammar does not allow all of them."""
        return int(self._matcher.try_consume_tokens(list(token_ids))) == len(token_ids)

    def forced(self) -> list[int]:
        """The tokens that must follow, spelt as the tokenizer would; none where there is a choice
        or that cannot be told."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return [] if self._matcher.is_error() else tokens

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        return bool(self._matcher.is_accepting())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(self._matcher.get_error())


class Grammars:
    """Compiles grammars for one model's vocabulary. Safe to share between threads."""

    def __init__(self, codec: Codec, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """`vocab_size`: of the model's logits, which may be padded beyond the tokenizer's ids."""
        self._codec = codec
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def _vocabulary(self) -> "_Vocabulary":
        return _Vocabulary(self._codec, self._vocab_size, self._eos_token_ids)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        wrapper = TokenizerWrapper(self._vocabulary)
        return LLTokenizer(wrapper, n_vocab=self._vocab_size, eos_token=self._eos_token_ids)

    def json_schema(self, schema: Mapping[str, Any]) -> str:
        """The grammar of JSON texts that satisfy `schema`. Raises RequestError."""
        text = json.dumps(schema)
        self._check_size(text)
        try:
            grammar = LLMatcher.grammar_from_json_schema(text, overrides=JSON_OPTIONS)
        except ValueError as error:
            raise _refusal(str(error)) from error
        return self.check(grammar)

    def regex(self, pattern: str) -> str:
        """The grammar of whole texts that match `pattern` (Rust's syntax, no look-around)."""
        self._check_size(pattern)
        return self.check(LLMatcher.grammar_from_regex(pattern))

    def choice(self, texts: Sequence[str]) -> str:
        """The grammar of exactly these texts. Raises RequestError."""
        self._check_size("".join(texts))
        self._check_bytes("".join(texts).encode(errors="surrogatepass"))
        options = "|".join(f"(?:{_literal(text)})" for text in texts)
        return self.check(LLMatcher.grammar_from_regex(options))

    def lark(self, source: str) -> str:
        """A grammar in llguidance's dialect of Lark. Raises RequestError."""
        self._check_size(source)
        return self.check(LLMatcher.grammar_from_lark(source))

    def notation(self, source: str) -> str:
        """A grammar in Lark's notation, or in GBNF (`root ::= ...`). Raises RequestError."""
        self._check_size(source)
        try:
            return self.lark(any_to_lark(source))
        except RequestError:
            raise
        except Exception as error:  # the converter documents no set of exceptions
            raise _refusal(str(error)) from error

    def check(self, grammar: str) -> str:
        """The same grammar, now known to compile. Raises RequestError with the reason if not."""
        self._template(grammar)
        return grammar

    def matcher(self, grammar: str) -> Matcher:
        """A fresh matcher of a compiled grammar, at a text's start. Raises RequestError."""
        return Matcher(self._template(grammar).deep_copy())

    def _template(self, grammar: str) -> LLMatcher:
        with self._lock:
            known = self._compiled.get(grammar)
            if known is not None:
                self._compiled.move_to_end(grammar)
                return known
            if not self._eos_token_ids:
                raise _refusal("this model has no token that ends a text")
            tokenizer = self._tokenizer
        limits = LLParserLimits(
            initial_lexer_fuel=_COMPILE_FUEL,
            step_lexer_fuel=_STEP_FUEL,
            step_max_items=_STEP_ITEMS,
            verbose_errors=False,
        )
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # the first mask shows what cannot begin at all
        if matcher.is_error():
            raise _refusal(matcher.get_error())
        self._check_bytes(_TOKEN_NAME.sub(b"", matcher.deep_copy().compute_ff_bytes()))
        with self._lock:
            self._compiled[grammar] = matcher
            while len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
        return matcher

    def _check_bytes(self, demanded: bytes) -> None:
        """Raises RequestError for text that no sequence of tokens can be."""
        missing = set(demanded) - self._vocabulary.alphabet
        if missing:
            raise _refusal(f"no token of this model can write the byte {min(missing):#04x} in it")

    @staticmethod
    def _check_size(source: str) -> None:
        if len(source) > MAX_SOURCE:
            raise _refusal(f"it has more than {MAX_SOURCE} characters")


class _Vocabulary:
    """The tokenizer as llguidance reads it: bytes per id."""

    def __init__(self, codec: Codec, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._codec = codec
        ids = range(vocab_size)
        self.eos_token_id = eos_token_ids[0]
        self.bos_token_id = None
        self.special_token_ids = [i for i in ids if codec.is_special(i)]
        self.tokens = [codec.token_bytes(i) for i in ids]
        special = {*self.special_token_ids, *eos_token_ids}
        self._id_of = {
            piece: i for i, piece in enumerate(self.tokens) if piece and i not in special
        }
        self._special = special
        self._longest = max(map(len, self._id_of))
        self.alphabet = frozenset(b"".join(self._id_of))

    def __call__(self, text: bytes) -> list[int]:
        """Ids whose bytes are `text`, no control token among them: the tokenizer's own, unless it
        puts a space before them, as some do at a text's start."""
        try:
            ids = self._codec.encode(text.decode(), False)
        except UnicodeDecodeError:
            return self._greedy(text)
        is_exact = b"".join(self.tokens[i] for i in ids) == text
        return ids if is_exact and self._special.isdisjoint(ids) else self._greedy(text)

    def _greedy(self, text: bytes) -> list[int]:
        """The longest token at each place. Ends early where no token fits."""
        ids: list[int] = []
        while text:
            sizes = range(min(self._longest, len(text)), 0, -1)
            size = next((size for size in sizes if text[:size] in self._id_of), 0)
            if not size:
                break
            ids.append(self._id_of[text[:size]])
            text = text[size:]
        return ids


def _literal(text: str) -> str:
    """A regular expression that matches `text` alone."""
    return re.sub(r"[^A-Za-z0-9 ]", lambda match: f"\\x{{{ord(match[0]):x}}}", text)


def _refusal(reason: str) -> RequestError:
    line = " ".join(reason.split())
    return RequestError(f"The grammar cannot be compiled: {line[:500]}", code="invalid_grammar")
