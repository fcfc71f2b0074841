from dataclasses import replace

from engine.config import PromptLookupConfig
from engine.spec.drafter import Needs
from engine.spec.prompt_lookup import PromptLookup
from tests.unit.toy import ROOMY, Toy, decode, plan

TEN = list(range(100, 110))


def draft(text: list[int], limits=ROOMY, **bounds: int) -> list[int]:
    drafter = PromptLookup(plan(**bounds), PromptLookupConfig())
    drafter.begin(text)
    tree = drafter.draft(limits)
    assert tree.token_ids[0] == text[-1]
    assert tree.parents == list(range(-1, len(tree) - 1))
    return tree.token_ids[1:]


def test_three_tokens_are_tried_before_two_and_one():
    text = [3, *[0] * 10, 2, 3, *[8] * 10, 1, 2, 3, *TEN, 1, 2, 3]
    assert draft(text) == TEN
    text[-3] = 7
    assert draft(text) == [8] * 10
    text[-2] = 7
    assert draft(text) == [0] * 10


def test_the_earliest_full_continuation_is_copied():
    assert draft([1, 2, 3, *TEN, 1, 2, 3, *[9] * 10, 1, 2, 3]) == TEN


def test_an_incomplete_continuation_falls_to_a_shorter_ngram():
    text = [3, *TEN, 1, 2, 3, 5, 5, 1, 2, 3]  # 1,2,3 is followed by five tokens only
    assert draft(text) == TEN


def test_no_full_continuation_drafts_nothing():
    assert draft([1, 2, 3, 4, 1, 2, 3]) == []
    assert draft([1]) == []


def test_a_continuation_may_end_with_the_text():
    assert draft([1, 2, 3, *[7] * 7, 1, 2, 3]) == [*[7] * 7, 1, 2, 3]


def test_limits_cut_the_chain_but_not_the_rule():
    text = [1, 2, 3, *TEN, 1, 2, 3]
    assert draft(text, replace(ROOMY, depth=4)) == TEN[:4]
    assert draft(text, replace(ROOMY, budget=0)) == []
    assert draft(text, budget=3, base_budget=3) == TEN[:3]


def test_output_equals_plain_decoding_and_repetition_is_found():
    drafter = PromptLookup(plan(), PromptLookupConfig())
    assert drafter.needs == Needs()
    toy = Toy(vocab=12, top_k=4)
    live, results = decode(drafter, [1, 2, 3], toy, steps=60)
    assert live[3:] == toy.continuation([1, 2, 3], len(live) - 3)
    assert len(live) - 3 > 2 * len(results)
