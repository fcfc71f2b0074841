"""Laws of the detokenizer, for every kind of tokenizer and any partition of the tokens."""

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.text.tokenizer import Tokenizer
from engine.types import TextRules
from tests.unit.tokenizer_kinds import KINDS, tokenizer_of

TOKENIZERS = {kind: Tokenizer(tokenizer_of(kind)) for kind in KINDS}
FEWEST = min(tokenizer.vocab_size for tokenizer in TOKENIZERS.values())
anything = st.lists(st.integers(0, FEWEST + 2), max_size=40)
cuts = st.lists(st.integers(0, 40), max_size=10)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def in_blocks(items, cuts):
    edges = [0, *sorted(min(cut, len(items)) for cut in cuts), len(items)]
    return [items[begin:end] for begin, end in pairwise(edges)]


def joined(tokenizer, blocks, skip=True) -> str:
    detokenizer = tokenizer.detokenizer(TextRules(skip))
    return "".join([*(detokenizer.push(block) for block in blocks), detokenizer.flush()])


@pytest.mark.parametrize("kind", KINDS)
@given(ids=anything, cuts=cuts, skip=st.booleans())
def test_any_partition_gives_what_decode_gives(kind, ids, cuts, skip):
    tokenizer = TOKENIZERS[kind]
    assert joined(tokenizer, in_blocks(ids, cuts), skip) == tokenizer.decode(ids, skip)


@given(ids=anything, cuts=cuts, skip=st.booleans())
def test_byte_level_text_is_transformers_text_for_any_ids(ids, cuts, skip):
    blocks = in_blocks(ids, cuts)
    reference = tokenizer_of("byte_level").decode(ids, skip_special_tokens=skip)
    assert joined(TOKENIZERS["byte_level"], blocks, skip) == reference


@pytest.mark.parametrize("kind", KINDS)
@given(text=texts, cuts=cuts)
def test_encoded_text_streams_as_transformers_decodes_it(kind, text, cuts):
    ids = TOKENIZERS[kind].encode(text)
    reference = tokenizer_of(kind).decode(ids, skip_special_tokens=True)
    assert joined(TOKENIZERS[kind], in_blocks(ids, cuts)) == reference


@pytest.mark.parametrize("kind", ["sentencepiece", "gemma", "metaspace"])
@given(words=st.lists(st.integers(259, FEWEST - 3), max_size=20), cuts=cuts)
def test_words_in_any_order_stream_as_transformers_decodes_them(kind, words, cuts):
    reference = tokenizer_of(kind).decode(words, skip_special_tokens=True)
    assert joined(TOKENIZERS[kind], in_blocks(words, cuts)) == reference


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(
    before=st.lists(st.integers(259, FEWEST - 3), min_size=1, max_size=9),
    behind=st.lists(st.integers(259, FEWEST - 3), max_size=9),
)
def test_a_continued_text_is_what_the_tokens_add(kind, before, behind):
    tokenizer = TOKENIZERS[kind]
    assume(not tokenizer.decode(before).endswith("\ufffd"))  # a character in two parts
    added = tokenizer.detokenizer(TextRules(continues_text=True))
    text = tokenizer.decode(before) + added.push(behind) + added.flush()
    assert text == tokenizer.decode(before + behind)


@pytest.mark.parametrize("kind", KINDS)
@given(text=texts, cuts=cuts)
def test_valid_text_never_shows_a_replacement_character(kind, text, cuts):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text.replace("\ufffd", ""))
    detokenizer = tokenizer.detokenizer()
    assert not any("\ufffd" in detokenizer.push(block) for block in in_blocks(ids, cuts))
