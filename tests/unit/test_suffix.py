from dataclasses import replace

import pytest

from engine.config import SuffixConfig
from engine.spec.drafter import DraftLimits, Needs
from engine.spec.suffix import Suffix
from engine.spec.suffix_tree import SuffixTree
from tests.unit.toy import ROOMY, Toy, assert_tree_is_sound, decode, plan

CONFIG = SuffixConfig()
TREE = SuffixConfig(as_tree=True)


def suffix(text: list[int], config: SuffixConfig = CONFIG, shared: SuffixTree | None = None):
    drafter = Suffix(plan(), config, shared)
    drafter.begin(text)
    return drafter


def holding(*texts: list[int], max_tokens: int | None = None) -> SuffixTree:
    tree = SuffixTree(CONFIG.max_depth, max_tokens)
    for tokens in texts:
        text = tree.new_text()
        for token in tokens:
            tree.append(text, token)
    return tree


def test_nothing_repeated_drafts_nothing():
    assert suffix([1, 2, 3]).draft(ROOMY).token_ids == [3]


def test_a_match_of_three_drafts_at_most_three_tokens():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    assert suffix(text).draft(ROOMY).token_ids == [3, 4, 5, 6]
    config = replace(CONFIG, factor=0.5, offset=2.5)
    assert suffix(text, config).draft(ROOMY).token_ids == [3, 4, 5, 6, 7]
    assert suffix(text, replace(CONFIG, offset=-3.0)).draft(ROOMY).token_ids == [3]


def test_match_and_draft_together_stay_within_the_depth():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    config = replace(CONFIG, max_depth=5, factor=9.0)
    # Every token's share is 1/2: three matched leave two (1.0), two leave three, one leaves four.
    assert suffix(text, config).draft(ROOMY).token_ids == [3, 4, 5, 6, 7]


def test_the_most_frequent_child_is_followed_and_equal_ones_by_smallest_id():
    assert suffix([7, 9, 0, 7, 8, 1, 7, 9, 2, 7]).draft(ROOMY).token_ids == [7, 9]
    assert suffix([7, 9, 0, 7, 8, 1, 7]).draft(ROOMY).token_ids == [7, 8]


def test_unlikely_tokens_are_left_out():
    followers = list(range(100, 111))  # eleven, once each, and the match at the end: 1 / 12
    text = [token for follower in followers for token in (7, follower)]
    assert suffix([*text, 7]).draft(ROOMY).token_ids == [7]
    assert suffix([*text[6:], 7]).draft(ROOMY).token_ids == [7, 103]  # 1 / 9


def test_equal_scores_prefer_the_longer_match():
    # After 1,2: 5 (of two occurrences). After 2: 5 and 6 (of three). Draft sizes made equal.
    text = [1, 2, 5, 0, 2, 6, 0, 2, 6, 1, 2]
    config = replace(CONFIG, factor=0.0, offset=1.0)
    assert suffix(text, config).draft(ROOMY).token_ids == [2, 5]  # 1/2 = 2/4


def naive_best(text: list[int], config: SuffixConfig) -> float:
    """The best score over all match lengths, by counting substrings, path mode."""

    def times(gram: list[int]) -> int:
        n = len(gram)
        return sum(text[i : i + n] == gram for i in range(len(text) - n + 1))

    best = 0.0
    for length in range(1, min(len(text), config.max_depth)):
        gram, score, share = text[-length:], 0.0, 1.0
        for _ in range(min(length, config.max_depth - length)):
            followers = {token: times([*gram, token]) for token in set(text)}
            token = min(followers, key=lambda t: (-followers[t], t))
            share *= followers[token] / times(gram)
            if share < config.min_probability:
                break
            score += share
            gram = [*gram, token]
        best = max(best, score)
    return best


@pytest.mark.parametrize("seed", range(12))
def test_the_score_equals_naive_counting_over_all_match_lengths(seed: int):
    text = Toy(vocab=4, top_k=2, order=3, seed=seed).continuation([seed % 4, 1], 40)
    drafter = suffix(text)
    limits = replace(ROOMY, width=1)
    draft = drafter._best_match(drafter._targets[0][0], limits)
    assert draft.score == pytest.approx(naive_best(text, CONFIG))
    assert len(drafter.draft(limits)) == len(draft.nodes) + 1


def test_tree_mode_takes_the_likeliest_nodes_first():
    text = [1, 2, 5, 6, 20, 1, 2, 5, 7, 21, 1, 2, 8, 9, 22, 1, 2, 5, 6, 23, 1, 2]
    tree = suffix(text, replace(TREE, offset=2.0)).draft(ROOMY)
    # Of five occurrences: 5 three times, then 6 twice; 8 once; 5 and 7 once.
    assert tree.token_ids == [2, 5, 6, 8, 7]
    assert tree.parents == [-1, 0, 1, 0, 1]
    narrow = suffix(text, replace(TREE, offset=2.0)).draft(replace(ROOMY, width=1))
    assert narrow.token_ids == [2, 5, 6, 20, 1]


@pytest.mark.parametrize("config", [CONFIG, TREE])
@pytest.mark.parametrize(
    "limits",
    [
        DraftLimits(10, 0, 0, 100),
        DraftLimits(10, 3, 0, 100),
        DraftLimits(1, 9, 0, 5),
        DraftLimits(10, 9, 0, 0),
    ],
)
def test_limits_are_hard(config: SuffixConfig, limits: DraftLimits):
    tree = suffix([1, 2, 3, 4] * 9, config).draft(limits)
    assert_tree_is_sound(tree, limits)
    assert len(tree) - 1 == min(limits.depth, limits.budget)


def test_other_answers_are_drafted_from_where_the_own_text_has_nothing_better():
    shared = holding([1, 2, 3, 4, 5, 6])
    assert suffix([1, 2, 3], shared=shared).draft(ROOMY).token_ids == [3, 4, 5, 6]
    own = [1, 2, 3, 9, 9, 9, 1, 2, 3]
    assert suffix(own, shared=holding([3, 4])).draft(ROOMY).token_ids == [3, 9, 9, 9]


def test_equal_scores_prefer_the_own_text():
    assert suffix([3, 8, 3], shared=holding([3, 4], [3])).draft(ROOMY).token_ids == [3, 8]


def test_prompts_are_never_shared_and_answers_are():
    shared = holding()
    toy = Toy(vocab=9, top_k=2)
    prompt = [100, 101, 102, 1, 2]
    live, _ = decode(Suffix(plan(), CONFIG, shared), prompt, toy, steps=10)
    assert shared.find([101]) is None
    assert shared.find(live[5:9]) is not None
    other = Suffix(plan(), CONFIG, shared)
    _, [first] = decode(other, [50, 51, *live[5:9]], toy, steps=1)
    assert len(first.path) >= 1


@pytest.mark.parametrize("config", [CONFIG, TREE])
def test_output_equals_plain_decoding(config: SuffixConfig):
    drafter = Suffix(plan(), config)
    assert drafter.needs == Needs()
    toy = Toy(vocab=12, top_k=4)
    live, results = decode(drafter, [1, 2, 3], toy, steps=40)
    assert live[3:] == toy.continuation([1, 2, 3], len(live) - 3)
    assert len(live) - 3 > 3 * len(results)
