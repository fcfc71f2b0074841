"""The model's tokenizer as the rest of Treeline needs it: exact, thread-safe, injection-proof.

Text of users must not turn into control tokens: `<|im_end|>` typed by a user is ten ordinary
characters. Such text is marked with an invisible guard, which hides it from the search for control
tokens and is removed before anything is tokenized, so the other characters tokenize as if alone.
"""

import json
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from engine.errors import ModelError, RequestError
from engine.text.detokenizer import Detokenizer
from engine.text.grammars import Grammars
from engine.text.pieces import PieceTable
from engine.types import PLAIN_TEXT, TextRules

GUARD = "\ufdd0\ufdd1"  # noncharacters, which no text interchanged between programs holds


class Tokenizer:
    """Text to ids and back, and chat messages to text. Safe to share between threads."""

    def __init__(self, wrapped: Any) -> None:
        """`wrapped`: a fast tokenizer of transformers. Raises ModelError if it cannot serve."""
        if not getattr(wrapped, "is_fast", False):
            raise ModelError(f"{type(wrapped).__name__} is not a fast tokenizer (tokenizer.json).")
        self._wrapped = wrapped
        self._backend: Backend = wrapped.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._pieces = PieceTable(self._backend)
        self._guarded: Backend | None = None
        self._lock = threading.Lock()
        self._grammars: dict[tuple[int, tuple[int, ...]], Grammars] = {}
        added = self._backend.get_added_tokens_decoder().values()
        names = [re.escape(token.content) for token in added if token.special]
        self._special = re.compile(f"(?=(?:{'|'.join(names)}))(.)", re.S) if names else None

    @classmethod
    def load(cls, folder: Path, *, trust_remote_code: bool = False) -> "Tokenizer":
        """The tokenizer in a model's folder. Raises ModelError if there is none of use."""
        try:
            wrapped = AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=trust_remote_code
            )
        except Exception as error:  # transformers documents no set of exceptions
            reason = str(error).strip().splitlines()
            raise ModelError(
                f"No tokenizer can be loaded from {folder}: {reason[0] if reason else error!r}"
            ) from error
        return cls(wrapped)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included. A model's logits may be padded beyond it."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def bos_token_id(self) -> int | None:
        """The beginning-of-text token, if the tokenizer names one."""
        id_: int | None = self._wrapped.bos_token_id
        return id_

    @property
    def eos_token_id(self) -> int | None:
        """The tokenizer's own end-of-text token; the model may know more of them."""
        id_: int | None = self._wrapped.eos_token_id
        return id_

    @property
    def has_chat_template(self) -> bool:
        """Whether `render_chat` works without a template of the caller's."""
        return bool(self._wrapped.chat_template)

    def encode(
        self, text: str, add_special_tokens: bool = True, *, parse_special_tokens: bool = True
    ) -> list[int]:
        """Token ids of `text`.

        add_special_tokens: add what the model's tokenizer adds, such as BOS. False for the text of
        `render_chat`, whose template wrote them already.
        parse_special_tokens: whether the name of a control token in `text` means that token.
        Raises RequestError if `text` holds lone surrogates.
        """
        if not parse_special_tokens:
            text = self._guard(text)
        backend = self._guarded_backend() if GUARD in text else self._backend
        try:
            # A batch lets go of the interpreter's lock: a long text must not stop other threads.
            found = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            return list(found[0].ids)
        except (TypeError, UnicodeEncodeError) as error:
            raise RequestError("The text is not valid Unicode: it has lone surrogates.") from error

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`: what a `detokenizer` gives for them, in any blocks."""
        detokenizer = self.detokenizer(TextRules(skip_special_tokens))
        return detokenizer.push(ids) + detokenizer.flush()

    def detokenizer(self, rules: TextRules = PLAIN_TEXT) -> Detokenizer:
        """A fresh incremental detokenizer."""
        return Detokenizer(self._pieces, rules)

    def token_bytes(self, token_id: int) -> bytes:
        """The true bytes of one token inside a text; a control token's are its name."""
        return self._pieces.bytes_of(token_id)

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token, which `decode` leaves out by default."""
        return self._pieces.is_special(token_id)

    def grammars(self, vocab_size: int, eos_token_ids: Sequence[int]) -> Grammars:
        """The compiler for a model of this tokenizer: the same object for all who ask."""
        key = vocab_size, tuple(eos_token_ids)
        with self._lock:
            if key not in self._grammars:
                self._grammars[key] = Grammars(self, vocab_size, eos_token_ids)
            return self._grammars[key]

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
        """The prompt for `messages`, to be given to `encode(text, add_special_tokens=False)`.

        Control tokens come from the template alone: their names in messages and tools are guarded.
        variables: further names that the template may use.
        Raises RequestError (param "messages") if there is no template or the template objects.
        """
        if not (template or self.has_chat_template):
            raise RequestError(
                "This model has no chat template; use /v1/completions.", param="messages"
            )
        try:
            text: str = self._wrapped.apply_chat_template(
                self._guard_within(messages),
                tools=self._guard_within(tools),
                chat_template=template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tokenize=False,
                **(variables or {}),
            )
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            message = f"The chat template rejects these messages: {error}"
            raise RequestError(message, param="messages") from error
        return text

    def _guard(self, text: str) -> str:
        """`text` with the guard inside the name of every control token, overlapping ones too."""
        return self._special.sub(rf"\1{GUARD}", text) if self._special else text

    def _guard_within(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._guard(value)
        if isinstance(value, Mapping):
            return {self._guard(key): self._guard_within(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self._guard_within(item) for item in value]
        return value

    def _guarded_backend(self) -> Backend:
        """The same tokenizer with a normalizer that removes guards; built when first needed."""
        with self._lock:
            if self._guarded is None:
                rules = json.loads(self._backend.to_str())
                remove = {"type": "Replace", "pattern": {"String": GUARD}, "content": ""}
                steps = [remove, rules["normalizer"]] if rules["normalizer"] else [remove]
                rules["normalizer"] = {"type": "Sequence", "normalizers": steps}
                for token in rules["added_tokens"]:
                    # Matched before normalization, so that a guard still hides the name.
                    token["normalized"] = token["normalized"] and not token["special"]
                self._guarded = Backend.from_str(json.dumps(rules))
            return self._guarded
