"""The calibrator: estimates that converge, keys that borrow from their parts, memory that fades."""

import random

import pytest

from engine.spec import calibrator as module
from engine.spec.calibrator import SHIFT, Calibrator
from engine.spec.drafter import DraftLimits
from engine.spec.priced_tree import PricedTree
from engine.spec.token_source import NUM_SILENT

A, B = NUM_SILENT, NUM_SILENT + 1
PRIORS = [[0.0] * NUM_SILENT + [0.5, 0.1], [0.0] * NUM_SILENT + [0.2, 0.3]]


def key(first: int, second: int) -> int:
    return first | second << SHIFT


def test_a_new_key_has_the_largest_prior_of_its_proposing_sources() -> None:
    calibrator = Calibrator(PRIORS)
    assert calibrator.probability(key(A, B)) == 0.5
    assert calibrator.probability(key(B, B)) == 0.3
    assert calibrator.probability(key(3, A)) == 0.2, "a silent code proposes nothing"
    assert calibrator.trials(key(A, B)) == 0


def test_the_formula() -> None:
    calibrator = Calibrator(PRIORS, weight=8.0, half_life=1e12)
    for hit in (True, False, True):
        calibrator.observe(key(A, 2), hit)
    alone = (2 + 8 * 0.5) / (3 + 8)
    assert calibrator.probability(key(A, 2)) == pytest.approx((2 + 8 * alone) / (3 + 8))
    assert calibrator.probability(key(A, 1)) == pytest.approx(alone), "another situation, same code"
    assert calibrator.trials(key(A, 2)) == pytest.approx(3)


@pytest.mark.parametrize("truth", [0.02, 0.3, 0.9])
def test_estimates_converge_within_three_sigma(truth: float) -> None:
    rng = random.Random(4)
    calibrator = Calibrator(PRIORS, half_life=2000.0)
    for _ in range(20000):
        calibrator.observe(key(A, A), rng.random() < truth)
    # Decayed counts amount to half_life / ln 2 observations, of variance halved once more.
    sigma = (truth * (1 - truth) / (2 * 2000.0 / 0.693)) ** 0.5
    assert abs(calibrator.probability(key(A, A)) - truth) < 3 * sigma + 8 / 2885 * 0.5


def test_a_joint_key_tells_apart_what_its_parts_cannot() -> None:
    rng = random.Random(5)
    calibrator = Calibrator(PRIORS)
    for _ in range(3000):
        calibrator.observe(key(A, A), rng.random() < 0.9)
        calibrator.observe(key(A, 1), rng.random() < 0.1)
    assert calibrator.probability(key(A, A)) == pytest.approx(0.9, abs=0.05)
    assert calibrator.probability(key(A, 1)) == pytest.approx(0.1, abs=0.05)
    assert calibrator.probability(key(A, 2)) == pytest.approx(0.5, abs=0.05)


def test_agreement_is_worth_what_it_was_worth_so_far() -> None:
    """Where two sources that agree were right more often than either, a new pair starts higher."""
    rng = random.Random(6)
    calibrator = Calibrator(PRIORS)
    for _ in range(600):
        for first, second, truth in ((A, 1, 0.3), (1, A, 0.3), (B, 1, 0.3), (1, B, 0.2)):
            calibrator.observe(key(first, second), rng.random() < truth)
        if rng.random() < 0.5:
            calibrator.observe(key(A, A), rng.random() < 0.9)
    parts = max(calibrator.probability(key(B, 2)), calibrator.probability(key(2, B)))
    assert calibrator.probability(key(B, B)) > 1.2 * parts


def test_old_observations_fade() -> None:
    calibrator = Calibrator(PRIORS, half_life=100.0)
    for _ in range(2000):
        calibrator.observe(key(A, A), True)
    for _ in range(400):
        calibrator.observe(key(A, A), False)
    assert calibrator.probability(key(A, A)) < 0.15


def test_too_many_codes_are_refused() -> None:
    with pytest.raises(ValueError, match="256"):
        Calibrator([[0.0] * 257])


def test_what_trees_promise_is_what_comes() -> None:
    """A source with wrong priors and known truths: predicted and realised tokens within 5 %."""
    rng = random.Random(9)
    truths = {1: 0.5, 2: 0.2, 3: 0.05}  # token -> probability, at every node

    class Known:
        priors = [0.0] * NUM_SILENT + [0.3, 0.3, 0.3]

        def anchor(self) -> int:
            return 0

        def advance(self, state: int, token: int) -> int:
            return state + 1

        def propose(self, state: int):
            return 0, [(token, NUM_SILENT + token - 1) for token in truths]

    calibrator = Calibrator([Known.priors])
    predicted = realised = 0.0
    for _ in range(3000):
        tree = PricedTree({0: Known()}, calibrator, DraftLimits(9, 9, 9, 20))
        while tree.peek() > 0.0:
            tree.take()
        built, _, expected = tree.build(len(tree))
        predicted += expected
        node: int | None = 0
        while node is not None:
            (truth,) = rng.choices([1, 2, 3, 9], [0.5, 0.2, 0.05, 0.25])
            for token, key in tree.candidates(node):
                calibrator.observe(key, token == truth)
            realised += 1
            node = built.child(node, truth)
    assert predicted / realised == pytest.approx(1.0, abs=0.05)
    for token, truth in truths.items():
        assert calibrator.probability(NUM_SILENT + token - 1) == pytest.approx(truth, abs=0.04)


def test_memory_is_bounded_and_what_is_well_known_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_KEYS", 40)
    calibrator = Calibrator(PRIORS)
    common, rare = (key(A, 0), key(B, 0)), [key(A, code) for code in range(4, 250)]
    for new in rare:
        calibrator.observe(common[0], is_hit=True)
        calibrator.observe(common[1], is_hit=False)
        calibrator.observe(new, is_hit=True)
    assert len(calibrator.lookup) <= 40
    assert all(calibrator.trials(known) > 4 for known in common)
    assert calibrator.probability(common[0]) > 0.9 > 0.1 > calibrator.probability(common[1])
    assert calibrator.trials(rare[0]) == 0.0 < calibrator.trials(rare[-1])


def test_room_is_made_where_everything_is_well_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_KEYS", 20)
    calibrator = Calibrator(PRIORS)
    for code in range(4, 40):
        for _ in range(20):
            calibrator.observe(key(A, code), is_hit=True)
    assert len(calibrator.lookup) == 20
    assert calibrator.trials(key(A, 39)) > 8
