"""The cost table: measured, interpolated, monotone, corrected by real steps, kept on disk."""

import pytest

from engine.spec.step_cost import SIZES, StepCost


class Machine:
    """A fake clock whose passes take a known time."""

    def __init__(self, cost) -> None:
        self.now, self.runs, self._cost = 0.0, [], cost

    def run(self, rows: int) -> float:
        self.now += self._cost(rows)
        self.runs.append(rows)
        return self._cost(rows)

    def clock(self) -> float:
        return self.now


def test_it_measures_every_size_within_its_time() -> None:
    for step in (0.001, 0.03, 0.3):
        machine = Machine(lambda rows, step=step: step * (1 + rows / 100))
        cost = StepCost.measured(machine.run, machine.clock)
        assert machine.now < 10.0
        assert set(machine.runs) == set(SIZES)
        assert cost.table() == pytest.approx({n: step * (1 + n / 100) for n in SIZES})


def test_between_and_beyond_the_sizes_it_is_linear() -> None:
    cost = StepCost({1: 1.0, 2: 1.0, 4: 3.0, 8: 5.0})
    assert [cost(n) for n in (1, 2, 3, 4, 6, 8, 16)] == pytest.approx([1, 1, 2, 3, 4, 5, 9])


def test_it_never_falls() -> None:
    cost = StepCost({1: 2.0, 2: 1.0, 4: 3.0, 8: 1.0})
    table = [cost(n) for n in range(1, 20)]
    assert table == sorted(table)
    assert cost.table() == pytest.approx({1: 1.5, 2: 1.5, 4: 2.0, 8: 2.0})


def test_a_slope() -> None:
    cost = StepCost.sloped(0.1, step=2.0)
    assert [cost(n) for n in (1, 2, 11, 128)] == pytest.approx([2.0, 2.2, 4.0, 2.0 * 13.7])
    flat = StepCost.sloped(0.0)
    assert flat(1) == flat(500)


def test_real_steps_move_the_scale_then_the_shape() -> None:
    truth = StepCost.sloped(0.1, step=0.02)
    cost = StepCost.sloped(0.02, step=0.03)
    for turn in range(6000):
        rows = (1, 8, 32, 64, 128)[turn % 5]
        cost.observe(rows, truth(rows))
    for rows in (1, 8, 32, 128):
        assert cost(rows) == pytest.approx(truth(rows), rel=0.1)


def test_an_outlier_counts_for_little() -> None:
    cost = StepCost.sloped(0.02, step=0.03)
    cost.observe(16, 50.0)
    assert cost(16) < 1.2 * StepCost.sloped(0.02, step=0.03)(16)


def test_a_fixed_table_stays() -> None:
    cost = StepCost.sloped(0.5, is_fixed=True)
    before = cost.table()
    cost.observe(4, 9.0)
    assert cost.table() == before


def test_it_comes_back_from_disk(tmp_path) -> None:
    path = tmp_path / "below" / "cost.json"
    assert StepCost.load(path) is None
    StepCost.sloped(0.1).save(path)
    loaded = StepCost.load(path)
    assert loaded is not None
    assert loaded.table() == pytest.approx(StepCost.sloped(0.1).table())
    for broken in ("", "[]", "{}", '{"1": 1}', '{"a": 1, "b": 2}', '{"1": 0, "2": 1}'):
        path.write_text(broken)
        assert StepCost.load(path) is None


def test_what_is_no_table_is_refused() -> None:
    for seconds in ({}, {1: 1.0}, {1: 0.0, 2: 1.0}):
        with pytest.raises(ValueError, match="two sizes"):
            StepCost(seconds)
