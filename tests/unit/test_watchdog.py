"""The watchdog: raises the price while drafting loses, and lets it down again."""

from engine.spec.watchdog import Watchdog


def feed(watchdog: Watchdog, steps: int, tokens: int, seconds: float, nodes: int = 5) -> None:
    """Steps that would give one token in one second without drafts."""
    for _ in range(steps):
        watchdog.observe(tokens, seconds, 1, 1.0, nodes)


def test_a_loss_raises_the_price_and_its_end_lets_it_down() -> None:
    watchdog = Watchdog()
    feed(watchdog, 63, 1, 1.5)
    assert watchdog.factor == 1.0
    feed(watchdog, 1, 1, 1.5)
    assert watchdog.factor == 1.5
    feed(watchdog, 640, 1, 1.5)
    assert watchdog.factor > 50
    before = watchdog.factor
    feed(watchdog, 64, 2, 1.5)
    assert 1.0 < watchdog.factor < before
    feed(watchdog, 3000, 2, 1.5)
    assert watchdog.factor < 1.01


def test_small_losses_and_gains_leave_it_alone() -> None:
    watchdog = Watchdog()
    feed(watchdog, 1000, 1, 1.01)
    feed(watchdog, 1000, 3, 2.0)
    assert watchdog.factor == 1.0


def test_without_drafts_there_is_nothing_to_blame() -> None:
    watchdog = Watchdog()
    feed(watchdog, 640, 1, 2.0, nodes=0)
    assert watchdog.factor == 1.0
