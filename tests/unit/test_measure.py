"""How measurements are taken, on a clock that only sleeping and timed runs move."""

from __future__ import annotations

import pytest

from coexec import measure
from coexec.measure import REST_S, SETTLING_S, interleaved, settled


class Clock:
    """Time by hand; ``run`` takes 1 ms."""

    def __init__(self) -> None:
        self.now, self.runs, self.slept = 0.0, 0, 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds

    def run(self) -> float:
        self.now += 1e-3
        self.runs += 1
        return float(self.runs)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(measure, "time", made)
    return made


@pytest.mark.parametrize(("threads", "rest_s"), [(1, 0.0), (2, REST_S)])
def test_a_settled_run_follows_untimed_ones(clock: Clock, threads: int, rest_s: float) -> None:
    """Threads of what ran before get time to stop; the run that counts is the last one."""
    assert settled(clock.run, threads)() == clock.runs > SETTLING_S / 1e-3
    assert clock.slept == rest_s


def test_interleaved_runs_take_turns(clock: Clock) -> None:
    order: list[str] = []

    def timer(name: str, us: float) -> float:
        order.append(name)
        clock.run()
        return us

    a, b = interleaved([lambda: timer("a", 5.0), lambda: timer("b", 9.0)], warm_up_s=0, min_rounds=4, max_rounds=6)
    assert (a.median_us, b.median_us, a.repeats) == (5.0, 9.0, 6)
    assert all(sorted(pair) == ["a", "b"] for pair in zip(order[::2], order[1::2], strict=True))


def test_a_budget_ends_the_rounds_but_not_the_first_ones(clock: Clock) -> None:
    (timing,) = interleaved([clock.run], warm_up_s=0, min_rounds=4, max_rounds=100, budget_s=0.0)
    assert timing.repeats == 4
