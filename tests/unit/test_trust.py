"""What promises are worth: learned from both sides, and forgotten without evidence."""

import pytest

from engine.spec.trust import Trust


@pytest.mark.parametrize("ratio", [0.6, 1.0, 1.5])
def test_it_finds_the_ratio(ratio: float) -> None:
    trust = Trust()
    assert trust.factor == 1.0
    for _ in range(2000):
        trust.observe(2.0, 2.0 * ratio)
    assert trust.factor == pytest.approx(ratio, abs=0.02)


def test_without_promises_it_fades_to_one() -> None:
    trust = Trust()
    for _ in range(300):
        trust.observe(1.0, 0.0)
    low = trust.factor
    assert low < 0.3
    for _ in range(3000):
        trust.observe(0.0, 0.0)
    assert trust.factor == pytest.approx(1.0, abs=0.02)
