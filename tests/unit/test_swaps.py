"""Swaps of a prediction: learned once, known wherever the old tokens stand."""

from engine.spec import swaps as module
from engine.spec.swaps import Swap, Swaps

TEXT = [5, 6, 1, 5, 6, 2, 5, 7]


def test_a_swap_is_known_at_every_place_of_its_old_tokens() -> None:
    swaps = Swaps(TEXT)
    assert swaps.at(0) is None
    swaps.learn([5, 6], [9])
    assert [swaps.at(place) for place in range(len(TEXT))] == [
        Swap(2, (9,)) if place in (0, 3) else None for place in range(len(TEXT))
    ]
    swaps.learn([5, 6], [8, 8])
    assert swaps.at(3) == Swap(2, (8, 8)), "the last one counts"


def test_what_is_no_swap_is_not_learned() -> None:
    swaps = Swaps(TEXT)
    swaps.learn([], [9])
    swaps.learn([5], [])
    swaps.learn([5], [5, 9])
    swaps.learn(TEXT, [9])
    assert all(swaps.at(place) is None for place in range(len(TEXT)))


def test_memory_is_bounded() -> None:
    swaps = Swaps(TEXT)
    for token in range(100, 200):
        swaps.learn([5], [token])
    assert swaps.at(0) == Swap(1, (100 + module._MOST - 1,))
