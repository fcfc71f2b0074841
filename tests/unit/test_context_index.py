from engine.spec.context_index import ContextIndex


def test_first_is_the_position_after_the_earliest_occurrence():
    index = ContextIndex([1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3], (3,))
    assert index.first((1, 2, 3)) == 3
    assert index.first((2, 3, 9)) == 4
    assert index.first((3, 2, 1)) is None


def test_a_query_never_finds_itself():
    text = [1, 2, 3]
    index = ContextIndex(text, (3, 2))
    assert index.first((1, 2, 3)) is None
    assert index.first((2, 3)) is None
    text.append(4)
    index.update()
    assert index.first((1, 2, 3)) == 3


def test_consensus_needs_two_witnesses_that_agree():
    assert not ContextIndex([1, 2, 7], (2,)).agrees((1, 2))
    assert ContextIndex([1, 2, 7, 1, 2, 7], (2,)).agrees((1, 2))
    assert not ContextIndex([1, 2, 7, 1, 2, 8], (2,)).agrees((1, 2))


def test_one_dissenter_ends_a_consensus_for_good():
    text = [1, 2, 7, 1, 2, 7]
    index = ContextIndex(text, (2,))
    text += [1, 2, 8, 1, 2, 7]
    index.update()
    assert not index.agrees((1, 2))


def test_a_text_shorter_than_every_length_has_no_entries():
    index = ContextIndex([], (3, 2))
    index.update()
    assert index.first(()) is None


def test_work_per_token_does_not_grow_with_the_context():
    class Counting(list[int]):
        reads = 0

        def __getitem__(self, key):
            Counting.reads += 1
            return super().__getitem__(key)

    def reads_for_one_more_token(length: int) -> int:
        text = Counting(i % 7 for i in range(length))
        index = ContextIndex(text, (5, 4, 3))
        text.append(3)
        Counting.reads = 0
        index.update()
        return Counting.reads

    assert reads_for_one_more_token(1_000) == reads_for_one_more_token(16_000) <= 9
