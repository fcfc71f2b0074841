"""The prediction is followed, lost at an edit, and found again."""

import pytest

from engine.spec.prediction_source import PredictionSource
from engine.spec.token_source import NUM_CODES, NUM_SILENT

PROMPT = [900, 901]


def follow(prediction: list[int], text: list[int]) -> tuple[int, PredictionSource]:
    """How many tokens of `text` the source named first, and the source behind it."""
    tokens = list(PROMPT)
    source = PredictionSource(prediction, tokens)
    named = 0
    for token in text:
        _, found = source.propose(source.anchor())
        named += bool(found) and found[0][0] == token
        tokens.append(token)
    return named, source


def counts(source: PredictionSource) -> tuple[int, int]:
    return source.num_accepted, source.num_rejected


def test_a_right_prediction_is_named_token_by_token() -> None:
    text = [5, 6, 5, 7, 5, 6, 9]
    named, source = follow(text, text)
    assert named == len(text)
    assert counts(source) == (7, 0)


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ([1, 2, 3, 50, 5, 6, 7, 8, 9], 8),  # 4 became 50
        ([1, 2, 3, 50, 51, 52, 5, 6, 7, 8, 9], 8),  # 4 became three tokens
        ([1, 2, 3, 6, 7, 8, 9], 7),  # 4 and 5 left out
        ([1, 2, 3, 50, 51, 4, 5, 6, 7, 8, 9], 9),  # two tokens inserted
        ([50, 51, 1, 2, 3, 4, 5, 6, 7, 8, 9], 9),  # text before it
    ],
)
def test_it_is_found_again_behind_an_edit(text: list[int], accepted: int) -> None:
    prediction = list(range(1, 10))
    named, source = follow(prediction, text)
    assert counts(source) == (accepted, 9 - accepted)
    assert named >= accepted - 3


def test_after_an_edit_every_near_place_is_named() -> None:
    tokens = list(PROMPT)
    source = PredictionSource([1, 2, 3, 4, 5, 6, 7, 8], tokens)
    tokens += [1, 2, 3, 70]
    silent, found = source.propose(source.anchor())
    assert [token for token, _ in found] == [4, 5, 6, 7, 8]
    assert silent < NUM_SILENT
    assert len({code for _, code in found}) == 5


def renamed(text: list[int], old: list[int], new: list[int]) -> list[int]:
    """`text` with every `old` replaced."""
    done: list[int] = []
    while text:
        hit = text[: len(old)] == old
        done += new if hit else text[:1]
        text = text[len(old) :] if hit else text[1:]
    return done


@pytest.mark.parametrize(
    ("old", "new"), [([7], [70]), ([7], [70, 71, 72]), ([7, 8, 9], [70]), ([7, 8], [70, 71])]
)
def test_what_was_changed_once_is_changed_again(old: list[int], new: list[int]) -> None:
    prediction = [1, 2, 3, 4, *old, 20, 21, 22, 23, *old, 30, 31, 32, 33, *old, 40, 41, 42, *old]
    text = renamed(prediction, old, new)
    named, source = follow(prediction, text)
    # The first time costs the new tokens and up to three more until the text is found again.
    assert named >= len(text) - len(new) - 3
    assert source.num_accepted == len(prediction) - 4 * len(old)


def test_a_change_that_is_not_made_again_is_offered_beside_the_old_text() -> None:
    prediction = [1, 2, 3, 4, 7, 20, 21, 22, 23, 7, 30, 31, 32, 33]
    text = [1, 2, 3, 4, 70, 20, 21, 22, 23]
    _, source = follow(prediction, text)
    _, found = source.propose(source.anchor())
    assert [token for token, _ in found] == [70, 7]
    assert source.advance(source.anchor(), 7).next == 10
    assert source.advance(source.anchor(), 70).next == 10
    _, source = follow(prediction, [*text, 7, 30, 31, 32, 33])
    assert source.num_accepted == 13


def test_long_edits_are_no_swaps() -> None:
    prediction = [1, 2, 3, 4, *range(50, 60), 20, 21, 22, 23, 50, 51]
    _, source = follow(prediction, [1, 2, 3, 4, 70, 20, 21, 22, 23])
    assert [token for token, _ in source.propose(source.anchor())[1]] == [50]


def test_a_wrong_prediction_is_rejected_whole() -> None:
    _, source = follow([1, 2, 3, 4], [60, 3, 61, 4, 62, 2, 63])
    assert counts(source) == (0, 4)


def test_a_path_changes_nothing() -> None:
    tokens = list(PROMPT)
    source = PredictionSource([1, 2, 3], tokens)
    before = source.anchor()
    assert source.advance(source.advance(before, 1), 2).next == 2
    assert source.anchor() == before
    assert source.num_accepted == 0


def test_repeats_go_to_the_nearest_place() -> None:
    prediction = [1, 2, 3, 10, 1, 2, 3, 20, 1, 2, 3, 30]
    _, source = follow(prediction, [1, 2, 3, 99, 1, 2, 3, 20])
    assert source.anchor().next == 8


def test_the_end_of_the_prediction_is_silent() -> None:
    _, source = follow([1, 2, 3], [1, 2, 3])
    assert source.propose(source.anchor()) == (0, [])


def test_codes_have_priors() -> None:
    assert len(PredictionSource.priors) <= NUM_CODES
    tokens = list(PROMPT)
    source = PredictionSource(list(range(1, 40)), tokens)
    for token in [*range(1, 20), 99, 98, 25, 26]:
        silent, found = source.propose(source.anchor())
        assert PredictionSource.priors[silent] == 0.0
        assert all(PredictionSource.priors[code] > 0 for _, code in found)
        tokens.append(token)
