"""Token buckets: how fast one caller may ask."""

import math
from dataclasses import dataclass


@dataclass
class _Bucket:
    tokens: float
    at: float


class TokenBuckets:
    """A bucket for each key: burst requests at once, per_second in the long run.

    Buckets that have filled up again are forgotten, so memory follows the callers of the last moments.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: dict[str, _Bucket] = {}
        self._forget_at = 0.0

    def __len__(self) -> int:
        """Buckets that are kept."""
        return len(self._buckets)

    def take(self, key: str, now: float) -> int:
        """Take one token; 0, or the seconds after which there is one again.

        Args:
            key: whose bucket.
            now: seconds on any clock that only goes forward.
        """
        self._forget(now)
        bucket = self._buckets.setdefault(key, _Bucket(float(self._burst), now))
        bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.at) * self._per_second)
        bucket.at = now
        if bucket.tokens < 1:
            return math.ceil((1 - bucket.tokens) / self._per_second)
        bucket.tokens -= 1
        return 0

    def _forget(self, now: float) -> None:
        """Now and then, drop the buckets that are full."""
        if now < self._forget_at:
            return
        fills = self._burst / self._per_second
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if now - bucket.at < fills}
        self._forget_at = now + fills
