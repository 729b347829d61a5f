"""Histograms: what is read off them is near what was put in, however much that was."""

import random

import pytest

from ucfuse.latency import BOUNDS_S, Histogram, quantile
from ucfuse.store.metered import Timed


def test_quantiles_are_right_within_a_fifth() -> None:
    rng = random.Random(7)
    durations = sorted(rng.lognormvariate(-6, 1.5) for _ in range(5000))
    histogram = Histogram()
    for seconds in durations:
        histogram.add(seconds)

    for share in (0.5, 0.9, 0.99):
        exact = durations[int(share * len(durations)) - 1]
        assert quantile(histogram.counts, share) == pytest.approx(exact, rel=0.2)
    assert histogram.sum_s == pytest.approx(sum(durations))


def test_nothing_has_no_duration_and_what_is_longer_than_all_has_the_longest() -> None:
    histogram = Histogram()
    assert quantile(histogram.counts, 0.5) == 0
    histogram.add(1e6)
    assert quantile(histogram.counts, 0.5) == BOUNDS_S[-1]
    assert sum(histogram.counts) == 1


async def test_a_block_that_fails_counts_too() -> None:
    histogram = Histogram()
    with pytest.raises(KeyError), Timed(histogram):
        raise KeyError
    assert sum(histogram.counts) == 1
