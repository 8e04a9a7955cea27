"""The miner's Prometheus metrics, one object."""

from prometheus_client import CollectorRegistry, Counter


class MinerMetrics:
    """Counters on a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.leases = Counter("reliquary_miner_leases", "Tasks leased", registry=self.registry)
        self.tokens = Counter("reliquary_miner_tokens", "Completion tokens submitted", registry=self.registry)
        self.submissions = Counter(
            "reliquary_miner_submissions", "Submissions by what became of them", ["status"], registry=self.registry
        )
