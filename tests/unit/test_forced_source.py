"""Forced tokens are named along drafted paths, and looking ahead moves nothing."""

from engine.spec.forced_source import ForcedSource
from engine.spec.token_source import NUM_CODES, NUM_SILENT
from engine.text.grammars import Matcher
from engine.text.tokenizer import Tokenizer
from tests.engine.tiny import EOS, VOCAB
from tests.unit.tokenizer_kinds import tokenizer_of

TOKENIZER = Tokenizer(tokenizer_of("byte_level"))


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, False)


def matcher(pattern: str) -> Matcher:
    grammars = TOKENIZER.grammars(VOCAB, (EOS,))
    return grammars.matcher(grammars.regex(pattern))


def named(source: ForcedSource, path: str) -> list[int]:
    """The tokens that the source names one after the other behind `path`."""
    state = source.anchor()
    for token in ids(path):
        state = source.advance(state, token)
    tokens = []
    while True:
        silent, found = source.propose(state)
        assert silent < NUM_SILENT
        if not found:
            return tokens
        ((token, code),) = found
        assert NUM_SILENT <= code < len(source.priors) <= NUM_CODES
        tokens.append(token)
        state = source.advance(state, token)


def test_what_is_forced_is_named_and_what_is_free_is_not() -> None:
    source = ForcedSource(matcher("(yes|no), because of the [a-z]+"))
    assert named(source, "") == []
    forced = TOKENIZER.decode(named(source, "yes"))
    assert forced
    assert ", because of the ".startswith(forced)
    assert named(source, "no, because of the sea") == []


def test_a_path_out_of_the_grammar_has_nothing_behind_it() -> None:
    source = ForcedSource(matcher("(yes|no), because"))
    assert named(source, "x") == []
    assert source.propose(None) == (1, [])
    assert source.advance(None, 5) is None


def test_looking_ahead_moves_nothing() -> None:
    live = matcher("(ab|cd)-ef")
    before = live.mask()
    source = ForcedSource(live)
    assert named(source, "ab")
    assert named(source, "zz") == []
    assert live.mask() == before
    for token in ids("cd"):
        live.advance(token)
    assert TOKENIZER.decode(named(source, ""))[:1] == "-"
