"""Laws of the stop filter: it agrees with a search of the whole text, however that was cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.text.stop import StopFilter

letters = st.text("ab🙂", max_size=30)
stops = st.lists(st.text("ab🙂", min_size=1, max_size=5), max_size=4).map(tuple)
cuts = st.lists(st.integers(0, 30), max_size=10)


def in_chunks(text, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[begin:end] for begin, end in pairwise(edges)]


def search(text, stops):
    """(start, stop) of the match that ends first; of those that end there the longest."""
    ends = ((text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text)
    best = min(ends, default=None)
    return None if best is None else (best[0] + best[1], best[2])


@given(text=letters, stops=stops, cuts=cuts, shows_stop=st.booleans())
def test_any_partition_gives_what_a_search_of_the_whole_text_gives(text, stops, cuts, shows_stop):
    filter_ = StopFilter(stops, include_stop=shows_stop)
    answers = [filter_.push(chunk) for chunk in in_chunks(text, cuts)]
    shown = "".join(safe for safe, _ in answers) + filter_.flush()
    expected = search(text, stops)
    if expected is None:
        assert (shown, answers[-1][1]) == (text, None)
    else:
        start, stop = expected
        assert (shown, answers[-1][1]) == (text[:start] + (stop if shows_stop else ""), stop)


@given(text=letters, stops=stops, cuts=cuts)
def test_no_more_is_held_than_could_become_a_stop(text, stops, cuts):
    filter_ = StopFilter(stops)
    seen = shown = ""
    for chunk in in_chunks(text, cuts):
        safe, match = filter_.push(chunk)
        if match:
            break
        seen, shown = seen + chunk, shown + safe
        held = seen[len(shown) :]
        assert shown + held == seen
        longest = max(
            (n for stop in stops for n in range(len(stop)) if seen.endswith(stop[:n])), default=0
        )
        assert len(held) == longest
