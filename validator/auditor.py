"""The validator's loop: take claims, replay them, report signed evidence."""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Protocol

from protocol.errors import PeerError, RemoteProtocolError
from protocol.messages import (
    AuditAssignment,
    AuditReceipt,
    AuditRequest,
    AuditResponse,
    EvidenceReport,
    SampleEvidence,
    evidence_statement,
    submission_statement,
)
from protocol.models import ModelRef
from protocol.signing import Signer
from validator.metrics import ValidatorMetrics
from validator.settings import ValidatorSettings

log = logging.getLogger("reliquary.validator")

RETRY_SECONDS = 2.0
Replay = Callable[[AuditAssignment], tuple[SampleEvidence, ...]]


class GatewayClient(Protocol):
    """The gateway as a validator sees it; every call raises PeerRefused or PeerUnreachable."""

    async def audits(self, request: AuditRequest) -> AuditResponse:
        """Ask for claims."""
        ...

    async def report(self, report: EvidenceReport) -> AuditReceipt:
        """Hand evidence in."""
        ...


class Auditor:
    """Audits one model's claims, one assignment after another."""

    def __init__(
        self, client: GatewayClient, replay: Replay, signer: Signer, settings: ValidatorSettings, engine_name: str
    ) -> None:
        """Put an auditor together.

        Args:
            client: the gateway.
            replay: an assignment's evidence; runs in a thread.
            signer: the validator's hotkey.
            settings: the model and the sizes.
            engine_name: what calibrations call the replaying engine, e.g. "hf/float32".
        """
        self._client = client
        self._replay = replay
        self._signer = signer
        self._models: tuple[ModelRef, ...] = (settings.model,)
        self._max_audits = settings.max_audits
        self._engine_name = engine_name
        self.metrics = ValidatorMetrics()

    async def run(self, stop: asyncio.Event) -> None:
        """Audit until stop is set; what was taken and not reported times out and goes to another validator."""
        while not stop.is_set():
            try:
                idle_seconds = await self._turn(stop)
            except Exception:
                log.exception("turn failed", extra={"action": "audit"})
                idle_seconds = RETRY_SECONDS
            if idle_seconds:
                await _pause(stop, idle_seconds)

    async def _turn(self, stop: asyncio.Event) -> float:
        try:
            response = await self._client.audits(AuditRequest(models=self._models, max_audits=self._max_audits))
        except PeerError as error:
            log.warning("no audits: %s", error, extra={"action": "audits"})
            return RETRY_SECONDS
        for assignment in response.audits:
            if stop.is_set():
                return 0.0
            await self._audit(assignment)
        return response.retry_after_seconds * random.uniform(0.5, 1.0)  # noqa: S311 - so that idle ones do not ask in step

    async def _audit(self, assignment: AuditAssignment) -> None:
        ids = {"action": "audit", "audit": assignment.audit_id}
        try:
            evidence = await asyncio.to_thread(self._replay, assignment)
            receipt = await self._client.report(self._sign(assignment, evidence))
        except RemoteProtocolError as error:
            log.error("claim cannot be replayed: %s", error, extra=ids)
            return
        except PeerError as error:
            log.warning("evidence not taken: %s", error, extra=ids)
            return
        self.metrics.audits.labels(receipt.status).inc()
        self.metrics.tokens.inc(sum(len(sample.token_ids) for sample in assignment.samples))
        log.info("audited", extra={**ids, "status": receipt.status, "code": receipt.code})

    def _sign(self, assignment: AuditAssignment, evidence: tuple[SampleEvidence, ...]) -> EvidenceReport:
        claimed = tuple((sample.sample_key, sample.token_ids) for sample in assignment.samples)
        claim = submission_statement(assignment.task_id, assignment.miner_engine, claimed)
        statement = evidence_statement(assignment.audit_id, self._engine_name, claim, evidence)
        return EvidenceReport(
            audit_id=assignment.audit_id,
            engine=self._engine_name,
            samples=evidence,
            signature=self._signer.sign(statement).hex(),
        )


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
