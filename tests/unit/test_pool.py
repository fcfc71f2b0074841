"""The candidate pool on hand-made tries."""

from engine.spec.pool import Pool


def pool(nodes: int = 60, keys: int = 10, depth: int = 16, refresh: bool = False) -> Pool:
    return Pool(nodes, keys, depth, refresh)


def test_an_unknown_key_has_no_continuations() -> None:
    assert pool().lookup(1) == {}


def test_paths_unite_and_the_oldest_stay_first() -> None:
    tested = pool()
    for path in ([1, 2], [3], [1, 4], [1, 2, 5]):
        tested.insert(9, path)
    assert tested.lookup(9) == {1: {2: {5: {}}, 4: {}}, 3: {}}
    assert list(tested.lookup(9)) == [1, 3]


def test_a_merged_trie_is_copied() -> None:
    tested, trie = pool(), {1: {2: {}}}
    tested.merge(9, trie)
    tested.insert(9, [1, 2, 3])
    assert trie == {1: {2: {}}}
    trie[1][8] = {}
    assert tested.lookup(9) == {1: {2: {3: {}}}}


def test_the_oldest_branches_leave_whole() -> None:
    tested = pool(nodes=4)
    for path in ([1, 2, 3], [4], [5]):
        tested.insert(9, path)
    assert tested.lookup(9) == {4: {}, 5: {}}


def test_the_only_branch_loses_its_own_oldest_branch() -> None:
    tested = pool(nodes=4)
    for path in ([1, 2, 3], [1, 4], [1, 5]):
        tested.insert(9, path)
    assert tested.lookup(9) == {1: {4: {}, 5: {}}}


def test_levels_beyond_the_depth_are_cut_and_a_chain_always_fits() -> None:
    tested = pool(depth=2)
    tested.insert(9, [1, 2, 3])
    assert tested.lookup(9) == {1: {2: {}}}
    tight = pool(nodes=2)
    tight.insert(9, [1, 2, 3])
    assert tight.lookup(9) == {1: {2: {}}}


def test_the_oldest_keys_leave() -> None:
    tested = pool(keys=2)
    for key in (1, (1, 2), 1, 3):
        tested.insert(key, [7])
    assert [key for key in (1, (1, 2), 3) if tested.lookup(key)] == [(1, 2), 3]
    assert len(tested) == 2


def test_refresh_makes_what_is_met_again_the_newest() -> None:
    tested = pool(keys=2, refresh=True)
    for path in ([1], [2], [3], [1]):
        tested.insert(9, path)
    assert list(tested.lookup(9)) == [2, 3, 1]
    tested.insert(8, [1])
    tested.insert(9, [1])
    tested.insert(7, [1])
    assert not tested.lookup(8)


def test_nothing_is_stored_for_an_empty_trie() -> None:
    tested = pool()
    tested.merge(9, {})
    assert len(tested) == 0


def test_as_many_branches_leave_as_a_large_merge_needs() -> None:
    tested = pool(nodes=4)
    for path in ([1], [2], [3], [4, 5, 6]):
        tested.insert(9, path)
    assert tested.lookup(9) == {3: {}, 4: {5: {6: {}}}}
