"""The watchdog: raises the price while drafting loses, and lets it down again."""

from engine.spec.watchdog import LONGEST_REST, REST, Clock, Watchdog


def feed(watchdog: Watchdog, steps: int, tokens: int, seconds: float, nodes: int = 5) -> None:
    """Steps that would give one token in one second without drafts, rests between them."""
    for _ in range(steps):
        while watchdog.is_resting:
            watchdog.pass_by()
        watchdog.observe(tokens, 1, Clock(seconds, 1.0), Clock(seconds, 1.0), nodes)


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


def test_gains_leave_it_alone_and_so_does_nothing_lost() -> None:
    watchdog = Watchdog()
    feed(watchdog, 1000, 1, 1.0)
    feed(watchdog, 1000, 3, 2.0)
    assert watchdog.factor == 1.0
    assert not watchdog.is_resting


def test_small_losses_count_where_passes_take_what_they_usually_do() -> None:
    for real, usual, is_resting in ((1.01, 1.0, False), (1.0, 1.01, True), (1.06, 1.0, True)):
        watchdog = Watchdog()
        for _ in range(64):
            watchdog.observe(1, 1, Clock(real, 1.0), Clock(usual, 1.0), 5)
        assert watchdog.is_resting is is_resting


def test_a_rest_is_over_with_half_the_company() -> None:
    watchdog = Watchdog()
    for _ in range(22):
        watchdog.observe(8, 8, Clock(1.5, 1.0), Clock(1.5, 1.0), 4)
    assert not watchdog.is_resting
    watchdog.observe(8, 8, Clock(1.5, 1.0), Clock(1.5, 1.0), 4)
    for company, is_resting in ((8, True), (12, True), (5, True), (4, False)):
        watchdog.meet(company)
        assert watchdog.is_resting is is_resting
    assert watchdog.factor == 1.0


def test_without_drafts_there_is_nothing_to_blame() -> None:
    watchdog = Watchdog()
    feed(watchdog, 640, 1, 2.0, nodes=0)
    assert watchdog.factor == 1.0


def rest_of(watchdog: Watchdog) -> int:
    steps = 0
    while watchdog.is_resting:
        watchdog.pass_by()
        steps += 1
    return steps


def test_a_loss_is_followed_by_a_rest_and_repeated_losses_by_longer_ones() -> None:
    watchdog = Watchdog()
    rests = []
    for _ in range(6):
        feed(watchdog, 64, 1, 1.5)
        rests.append(rest_of(watchdog))
    assert rests == [REST, 4 * REST, 16 * REST, *[LONGEST_REST] * 3]
    feed(watchdog, 64, 2, 1.5)
    assert rest_of(watchdog) == 0
    feed(watchdog, 64, 1, 1.5, nodes=0)
    assert rest_of(watchdog) == REST, "drafting takes its time even where it buys nothing"


def test_many_requests_at_once_are_judged_by_fewer_steps() -> None:
    watchdog = Watchdog()
    for _ in range(11):
        watchdog.observe(32, 32, Clock(1.5, 1.0), Clock(1.5, 1.0), 5)
    assert not watchdog.is_resting
    watchdog.observe(32, 32, Clock(1.5, 1.0), Clock(1.5, 1.0), 5)
    assert watchdog.is_resting


def test_a_rest_ends_under_steps_that_say_nothing_too() -> None:
    watchdog = Watchdog()
    feed(watchdog, 64, 1, 1.5)
    assert watchdog.is_resting
    for _ in range(REST):
        watchdog.pass_by()
    assert not watchdog.is_resting
    watchdog.pass_by()
    assert not watchdog.is_resting
