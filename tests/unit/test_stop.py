"""Stop strings, on the cases that other servers have got wrong."""

import time

import pytest

from engine.text.stop import StopFilter, StopScanner
from engine.text.tokenizer import Tokenizer
from engine.types import TextRules
from tests.unit.tokenizer_kinds import KINDS, tokenizer_of


def shown(stops, chunks, **options) -> tuple[list[str], str | None]:
    """(texts shown after each chunk and at the end, the match)."""
    filter_ = StopFilter(tuple(stops), **options)
    texts, match = [], None
    for chunk in chunks:
        text, match = filter_.push(chunk)
        texts.append(text)
    return [*texts, filter_.flush()], match


def test_whatever_could_become_a_stop_is_held_back():
    assert shown(["DEFGHIJ"], ["ABC", "DEF", "G", "HI", "J", "K"]) == (
        ["ABC", "", "", "", "", "", ""],
        "DEFGHIJ",
    )


def test_a_stop_that_begins_and_ends_inside_chunks():
    assert shown(["own fox"], ["The quick br", "own", " fox jumps"]) == (
        ["The quick br", "", "", ""],
        "own fox",
    )
    assert shown(["Pari"], ["in Pa", "ris"]) == (["in ", "", ""], "Pari")


def test_held_text_is_released_when_the_match_fails_or_the_stream_ends():
    assert shown(["Observation:"], ["so Obs", "erve", " Obs"]) == (
        ["so ", "Observe", " ", "Obs"],
        None,
    )


def test_a_failed_match_may_contain_the_start_of_another():
    assert shown(["aab"], ["aa", "a", "b!"]) == (["", "a", "", ""], "aab")
    assert shown(["abab"], ["aba", "cab", "ab"]) == (["", "abac", "", ""], "abab")


def test_the_stop_that_is_complete_first_wins_and_of_two_the_longer():
    assert shown(["abcd", "bc"], ["xabcd"]) == (["xa", ""], "bc")
    assert shown(["c", "abc"], ["xabc"]) == (["x", ""], "abc")
    assert shown(["late", "x"], ["a x late"]) == (["a ", ""], "x")


def test_the_stop_can_be_shown():
    assert shown(["STOP"], ["a ST", "OP b"], include_stop=True) == (["a ", "STOP", ""], "STOP")


def test_no_stops_pass_everything():
    assert shown([], ["a", "b"]) == (["a", "b", ""], None)


def test_an_empty_stop_is_an_error():
    with pytest.raises(ValueError, match="empty"):
        StopFilter(("a", ""))


def test_an_adversarial_stop_costs_linear_time():
    begin = time.perf_counter()
    texts, match = shown(["a" * 20_000 + "b"], ["a" * 100] * 1000)
    assert match is None
    assert sum(map(len, texts)) == 100_000
    assert time.perf_counter() - begin < 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_scanner_names_the_token_that_completes_a_stop(kind):
    tokenizer = Tokenizer(tokenizer_of(kind))
    ids = tokenizer.encode("The lazy 🙂🙂 dog", False)
    detokenizer = tokenizer.detokenizer()
    texts = [detokenizer.push([id_]) for id_ in ids]
    for stop in ("az", "🙂", "🙂 d", "The"):
        scanner = StopScanner(tokenizer, (stop, "never"))
        found = [scanner.push(id_) for id_ in ids]
        first = next(n for n in range(len(ids)) if stop in "".join(texts[: n + 1]))
        assert found[:first] == [None] * first
        assert found[first] == stop


def test_the_scanner_sees_control_tokens_only_if_they_are_shown():
    tokenizer = Tokenizer(tokenizer_of("byte_level"))
    (end,) = tokenizer.encode("</s>", False)
    assert StopScanner(tokenizer, ("</s>",)).push(end) is None
    assert StopScanner(tokenizer, ("</s>",), TextRules(skips_special=False)).push(end) == "</s>"
