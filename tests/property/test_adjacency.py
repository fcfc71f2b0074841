import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.spec.adjacency import Adjacency
from engine.spec.drafter import Rows

passes = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 99)), max_size=8),
    max_size=8,
)


@given(passes, st.integers(1, 20))
def test_equals_plain_dictionaries_in_write_order(steps, max_keys: int):
    adjacency = Adjacency(2, max_keys)
    by_pair: dict[tuple[int, int], list[int]] = {}
    by_token: dict[int, list[int]] = {}
    for step in steps:
        answers = [[answer, answer + 1] for _, _, answer in step]
        for (previous, token, _), answer in zip(step, answers, strict=True):
            for table, key in ((by_pair, (previous, token)), (by_token, token)):
                table.pop(key, None)
                table[key] = answer
                while len(table) > max_keys:
                    del table[next(iter(table))]
        ids = np.array(answers, np.int64).reshape(-1, 2)
        adjacency.observe(
            [previous for previous, _, _ in step],
            [token for _, token, _ in step],
            Rows(ids, -ids.astype(np.float32)),
        )
    for previous in range(4):
        for token in range(4):
            known = adjacency.successors(previous, token)
            expected = by_pair.get((previous, token)) or by_token.get(token)
            assert (known and known[0]) == expected
            assert known is None or abs(sum(known[1]) - 1.0) < 1e-5
