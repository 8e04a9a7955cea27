"""The gateway's Prometheus metrics, one object."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class GatewayMetrics:
    """Counters and gauges on a registry of their own, so that two gateways can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.transitions = Counter(
            "reliquary_transitions",
            "State transitions carried out (a transaction that rolls back afterwards is counted too)",
            ["machine", "event"],
            registry=self.registry,
        )
        self.verdicts = Counter(
            "reliquary_verdicts", "Verdicts on submissions, by reason code", ["code"], registry=self.registry
        )
        self.queued_tasks = Gauge(
            "reliquary_queued_tasks", "Tasks waiting for a miner at the last sweep", registry=self.registry
        )
        self.pending_audits = Gauge(
            "reliquary_pending_audits", "Audits waiting for a validator at the last sweep", registry=self.registry
        )
        self.sweep_failures = Counter(
            "reliquary_sweep_failures",
            "Steps of the sweeper that failed and will be tried again",
            registry=self.registry,
        )

    def observe_transition(self, machine: str, event: str) -> None:
        """Count one transition."""
        self.transitions.labels(machine, event).inc()
