"""The validator's Prometheus metrics, one object."""

from prometheus_client import CollectorRegistry, Counter


class ValidatorMetrics:
    """Counters on a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.tokens = Counter("reliquary_validator_tokens", "Claimed tokens replayed", registry=self.registry)
        self.audits = Counter(
            "reliquary_validator_audits", "Reports by what became of them", ["status"], registry=self.registry
        )
