"""Answers that must follow a grammar: valid to the last token, and the same with every method."""

import json
import re
from functools import cache

import pytest

from engine.errors import RequestError
from engine.text.grammars import GrammarError, Grammars
from engine.text.tokenizer import Tokenizer
from engine.types import FinishReason
from tests.engine.tiny import EOS, VOCAB, make_core, prompts, request, run
from tests.unit.tokenizer_kinds import tokenizer_of

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "size": {"enum": ["small", "large"]},
        "tags": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "more": {"$ref": "#/$defs/more"},
    },
    "required": ["name", "size", "tags", "more"],
    "additionalProperties": False,
    "$defs": {"more": {"type": ["boolean", "null"]}},
}
METHODS = ("off", "auto", "goose", "ptd")
SAMPLING = [
    {},
    {"temperature": 1.0, "seed": 8},
    {"temperature": 0.8, "seed": 3, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.3},
    {"temperature": 0.0, "frequency_penalty": 1.0, "logit_bias": ((40, -100.0),)},
    {"temperature": 1.0, "min_tokens": 40, "logprobs": 2},
]


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(tokenizer_of("byte_level"))


def grammars() -> Grammars:
    return tokenizer().grammars(VOCAB, (EOS,))


def is_valid(text: str) -> bool:
    value = json.loads(text)
    return (
        list(value) == ["name", "size", "tags", "more"]
        and len(value["name"]) <= 8
        and value["size"] in ("small", "large")
        and len(value["tags"]) <= 3
        and all(type(tag) is int for tag in value["tags"])
        and value["more"] in (True, False, None)
    )


def answers(grammar: str, method: str, sampling: dict, count: int = 6) -> list:
    core = make_core(tokenizer=tokenizer())
    wishes = {"max_tokens": 150, "grammar": grammar, **sampling}
    return run(core, [request(p, method, **wishes) for p in prompts(count, seed=6)])


def text_of(outcome) -> str:
    assert outcome.token_ids[-1] == EOS
    return tokenizer().decode(outcome.token_ids[:-1])


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_json_is_valid_and_the_same_with_every_method(sampling: dict) -> None:
    grammar = grammars().json_schema(SCHEMA)
    plain = answers(grammar, "off", sampling)
    ended = [o for o in plain if o.reason is FinishReason.STOP]
    assert ended, "no answer came to its end"
    assert all(is_valid(text_of(o)) for o in ended)
    for method in METHODS[1:]:
        outcomes = answers(grammar, method, sampling)
        assert [o.token_ids for o in outcomes] == [o.token_ids for o in plain]
        assert [o.reason for o in outcomes] == [o.reason for o in plain]
        assert [o.logprobs for o in outcomes] == [o.logprobs for o in plain]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("kind", "source", "pattern"),
    [
        ("regex", r"[a-f]{3}-\d{2,4}", r"[a-f]{3}-\d{2,4}"),
        ("choice", ["ja", "nein [no]", 'a"b\\c\n', "Ж🙂"], r'ja|nein \[no\]|a"b\\c\n|Ж🙂'),
        ("lark", 'start: "x" ("," NUMBER)*\nNUMBER: /[0-9]{1,2}/', r"x(,[0-9]{1,2})*"),
        ("notation", 'root ::= "a" [b-c]+ "."', r"a[bc]+\."),
    ],
)
def test_every_kind(method: str, kind: str, source, pattern: str) -> None:
    grammar = getattr(grammars(), kind)(source)
    outcomes = answers(grammar, method, {"temperature": 1.0, "seed": 2})
    ended = [o for o in outcomes if o.reason is FinishReason.STOP]
    assert ended
    assert all(re.fullmatch(pattern, text_of(o)) for o in ended)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("regex", "a(b"),
        ("regex", r"(a)\1"),
        ("lark", "start: missing"),
        ("notation", "nonsense"),
        ("json_schema", {"type": 5}),
        ("json_schema", {"type": "object", "unevaluatedProperties": False}),
        ("json_schema", {"$ref": "#/nowhere"}),
        ("regex", "x" * 200_000),
        ("lark", "start: " + "a " * 9 + "\\n".join(f"a: {i}" for i in range(9))),
    ],
)
def test_what_cannot_be_compiled_is_refused(kind: str, source) -> None:
    with pytest.raises(RequestError) as caught:
        getattr(grammars(), kind)(source)
    assert caught.value.code == "invalid_grammar"
    assert "\n" not in str(caught.value)


def test_a_broken_grammar_ends_its_request_alone() -> None:
    core = make_core(tokenizer=tokenizer())
    good = request([20, 21], grammar=grammars().regex("ab"))
    with pytest.raises(RequestError):
        core.add(request([20, 21], grammar="{}"))
    (outcome,) = run(core, [good])
    assert text_of(outcome) == "ab"


class WithoutZ(Tokenizer):
    """Has no token to write a z with."""

    def token_bytes(self, token_id: int) -> bytes:
        spelling = super().token_bytes(token_id)
        return b"" if b"z" in spelling else spelling


@pytest.mark.parametrize("method", METHODS)
def test_a_dead_end_ends_its_request_alone(method: str) -> None:
    poor = WithoutZ(tokenizer_of("byte_level"))
    compiler = poor.grammars(VOCAB, (EOS,))
    core = make_core(tokenizer=poor)
    wishes = {"max_tokens": 20, "ignore_eos": True}
    bad = request([20, 21], method, grammar=compiler.regex("(ab|cd){3}z"), **wishes)
    good = request([22, 23], method, **wishes)
    failed, fine = run(core, [bad, good])
    assert (failed.reason, failed.end.error_code) == (FinishReason.INVALID, "grammar_dead_end")
    assert "no token of the vocabulary" in failed.end.error
    assert re.fullmatch("(ab|cd){0,3}[ac]?", poor.decode(failed.token_ids))
    assert fine.token_ids == run(core, [request([22, 23], **wishes)])[0].token_ids


def test_a_dead_end_that_shows_at_once_is_refused() -> None:
    compiler = WithoutZ(tokenizer_of("byte_level")).grammars(VOCAB, (EOS,))
    for build, source in (
        (compiler.regex, "abz"),
        (compiler.choice, ["good", "lazy"]),
        (compiler.json_schema, {"const": "lazy"}),
        (compiler.json_schema, {"type": "integer", "minimum": 5, "maximum": 3}),
    ):
        with pytest.raises(RequestError) as caught:
            build(source)
        assert caught.value.code == "invalid_grammar"
    assert compiler.choice(["good", "bad"])


def test_matchers_of_one_grammar_do_not_meet() -> None:
    one, two = (grammars().matcher(grammars().regex("ab|cd")) for _ in range(2))
    a, c = (tokenizer().encode(text, False)[0] for text in ("a", "c"))
    one.advance(a)
    two.advance(c)
    assert one.mask() != two.mask()
    with pytest.raises(GrammarError):
        one.advance(c)


def test_the_end_is_allowed_where_the_grammar_accepts_only() -> None:
    matcher = grammars().matcher(grammars().regex("ab?"))

    def may_end() -> bool:
        return bool(matcher.mask()[EOS // 8] >> EOS % 8 & 1)

    assert not may_end()
    matcher.advance(tokenizer().encode("a", False)[0])
    assert may_end()
    assert matcher.is_accepting


@pytest.mark.parametrize("kind", ["sentencepiece", "gemma", "metaspace"])
def test_other_tokenizers(kind: str) -> None:
    other = Tokenizer(tokenizer_of(kind))
    eos = other.eos_token_id
    compiler = other.grammars(other.vocab_size + 10, (eos,))
    matcher = compiler.matcher(compiler.regex(r"x = \d Ж"))
    text = b""
    while not matcher.is_accepting:
        mask = matcher.mask()
        allowed = [i for i in range(other.vocab_size) if mask[i // 8] >> i % 8 & 1]
        token_id = max(allowed, key=lambda i: (len(other.token_bytes(i)), -i))
        matcher.advance(token_id)
        text += other.token_bytes(token_id)
    assert re.fullmatch(r"x = \d Ж", text.decode())


def test_auto_drafts_what_a_grammar_forces() -> None:
    """A random model repeats nothing, so only the grammar can tell what comes."""
    grammar = grammars().regex("(ja|nein), [a-f]{2}: quod erat demonstrandum per [0-9]{2}")
    sampling = {"temperature": 1.0, "seed": 4}
    plain = answers(grammar, "off", sampling, count=1)
    drafted = answers(grammar, "auto", sampling, count=1)
    assert [o.token_ids for o in drafted] == [o.token_ids for o in plain]
    assert drafted[0].end.stats.tau > 1.5
