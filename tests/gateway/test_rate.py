"""Token buckets: so many at once, so many a second in the long run, each key for itself."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.rate import TokenBuckets

PAUSES = st.lists(st.floats(0, 3), min_size=1, max_size=60)


@given(PAUSES, st.floats(0.5, 20), st.integers(1, 10))
def test_no_key_gets_more_than_its_burst_and_its_pace(pauses: list[float], pace: float, burst: int) -> None:
    buckets, now, taken = TokenBuckets(pace, burst), 100.0, []
    for pause in pauses:
        now += pause
        if buckets.take("a", now) == 0:
            taken.append(now)
    for first, start in enumerate(taken):
        for last, end in enumerate(taken[first:], start=first):
            assert last - first + 1 <= burst + pace * (end - start) + 1e-6


@given(PAUSES, st.floats(0.5, 20), st.integers(1, 10))
def test_who_waits_as_long_as_he_is_told_is_let_in(pauses: list[float], pace: float, burst: int) -> None:
    buckets, now = TokenBuckets(pace, burst), 100.0
    for pause in pauses:
        now += pause
        wait_seconds = buckets.take("a", now)
        if wait_seconds:
            now += wait_seconds
            assert buckets.take("a", now) == 0


def test_keys_do_not_share_and_full_buckets_are_forgotten() -> None:
    buckets = TokenBuckets(1.0, 2)
    assert [buckets.take("a", 100.0) for _ in range(3)] == [0, 0, 1]
    assert buckets.take("b", 100.0) == 0
    for number in range(100):
        buckets.take(f"key {number}", 200.0 + number)
    assert len(buckets) < 10
