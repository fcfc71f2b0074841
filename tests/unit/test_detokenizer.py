"""The detokenizer on the texts that streams of other servers have spoiled."""

import pytest

from engine.text.pieces import BYTE_OF_CHARACTER
from engine.text.tokenizer import Tokenizer
from engine.types import TextRules
from tests.unit.tokenizer_kinds import KINDS, tokenizer_of

HARD_TEXTS = ("你是谁？", "🙂Ж€", "🙂🙂🙂", "The meaning of life is", "x\n\n  y ", "a\u200db")


def stream(tokenizer: Tokenizer, blocks, skip_special_tokens: bool = True) -> list[str]:
    detokenizer = tokenizer.detokenizer(TextRules(skip_special_tokens))
    return [*(detokenizer.push(block) for block in blocks), detokenizer.flush()]


def ids_of(kind: str, *tokens: str) -> list[int]:
    return tokenizer_of(kind).convert_tokens_to_ids(list(tokens))


def byte_ids(kind: str, data: bytes) -> list[int]:
    """One token for each byte."""
    stand_ins = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}
    names = (stand_ins[byte] if kind == "byte_level" else f"<0x{byte:02X}>" for byte in data)
    return ids_of(kind, *names)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", HARD_TEXTS)
def test_token_by_token_nothing_is_spoiled(kind, text):
    tokenizer = Tokenizer(tokenizer_of(kind))
    ids = tokenizer.encode(text)
    pieces = stream(tokenizer, [[id_] for id_ in ids])
    assert "".join(pieces) == text
    assert pieces[-1] == ""


@pytest.mark.parametrize("kind", KINDS)
def test_a_character_comes_with_the_token_that_completes_it(kind):
    tokenizer = Tokenizer(tokenizer_of(kind))
    ids = byte_ids(kind, "🙂€".encode())
    detokenizer = tokenizer.detokenizer()
    assert [detokenizer.push([id_]) for id_ in ids] == ["", "", "", "🙂", "", "", "€"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_ends_inside_a_character(kind):
    tokenizer = Tokenizer(tokenizer_of(kind))
    ids = tokenizer.encode("ok", False) + byte_ids(kind, "€🙂".encode()[:-1])
    assert stream(tokenizer, [ids]) == ["ok€", "\ufffd"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_invalid_byte_spoils_no_neighbour(kind):
    tokenizer = Tokenizer(tokenizer_of(kind))
    good, bad = "🙂".encode(), "🙂".encode()[:2]
    ids = tokenizer.encode("ok", False) + byte_ids(kind, good + bad + good)
    assert "".join(stream(tokenizer, [ids])) == "ok🙂\ufffd🙂"


def test_leading_space_is_stripped_once_and_no_other():
    for kind in ("sentencepiece", "metaspace"):
        ids = ids_of(kind, "▁", "▁The", "x")
        tokenizer = Tokenizer(tokenizer_of(kind))
        expected = tokenizer_of(kind).decode(ids)
        assert expected == " Thex"
        assert "".join(stream(tokenizer, [[id_] for id_ in ids])) == expected
        assert "".join(stream(tokenizer, [ids])) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_continues_another_keeps_its_first_space(kind):
    tokenizer = Tokenizer(tokenizer_of(kind))
    ids = tokenizer.encode("The lazy dog", False)
    for cut in range(1, len(ids)):
        before, behind = ids[:cut], ids[cut:]
        detokenizer = tokenizer.detokenizer(TextRules(continues_text=True))
        assert tokenizer.decode(before) + detokenizer.push(behind) == "The lazy dog"


def test_a_control_token_can_be_kept():
    tokenizer = Tokenizer(tokenizer_of("byte_level"))
    ids = tokenizer.encode("<|im_start|>a</s>", False)
    detokenizer = tokenizer.detokenizer(TextRules(kept_token_ids=(ids[0],)))
    assert detokenizer.push(ids) == "<|im_start|>a"


def test_spaces_inside_a_stream_belong_to_their_tokens():
    tokenizer = Tokenizer(tokenizer_of("sentencepiece"))
    ids = tokenizer.encode("The meaning of life", False)
    pieces = stream(tokenizer, [[id_] for id_ in ids])
    assert pieces[0] == "The"
    assert sum(piece.startswith(" ") for piece in pieces) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_control_tokens_are_left_out_or_spelled(kind):
    tokenizer = Tokenizer(tokenizer_of(kind))
    ids = tokenizer.encode("<|im_start|>a</s>", False)
    spelled = tokenizer_of(kind).decode(ids, skip_special_tokens=False)
    assert "".join(stream(tokenizer, [ids])).strip() == "a"
    assert "".join(stream(tokenizer, [ids], skip_special_tokens=False)) == spelled
    assert "<|im_start|>" in spelled


def test_an_added_token_in_plain_text_keeps_its_spaces():
    tokenizer = Tokenizer(tokenizer_of("byte_level"))
    ids = tokenizer.encode("a<tool call>b", False)
    assert len(ids) == 3
    assert "".join(stream(tokenizer, [ids])) == "a<tool call>b"


def test_nothing_in_nothing_out():
    assert stream(Tokenizer(tokenizer_of("sentencepiece")), [[], []]) == ["", "", ""]
