"""The miner's loop: lease, draw, submit, keep alive, and hand back what cannot be finished."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from miner.engine import DrawJob, Engine, FinishedSample
from miner.metrics import MinerMetrics
from miner.settings import MinerSettings
from protocol.errors import PeerError, PeerRefused
from protocol.messages import (
    ClaimedSample,
    LeasedTask,
    LeaseList,
    LeaseListResponse,
    LeaseRequest,
    LeaseResponse,
    Submission,
    SubmissionReceipt,
    submission_statement,
)
from protocol.signing import Signer

log = logging.getLogger("reliquary.miner")

RETRY_SECONDS = 2.0


class GatewayClient(Protocol):
    """The gateway as a miner sees it; every call raises PeerRefused or PeerUnreachable."""

    async def lease(self, request: LeaseRequest) -> LeaseResponse:
        """Ask for tasks."""
        ...

    async def heartbeat(self, request: LeaseList) -> LeaseListResponse:
        """Keep leases alive."""
        ...

    async def release(self, request: LeaseList) -> LeaseListResponse:
        """Hand leases back."""
        ...

    async def submit(self, submission: Submission) -> SubmissionReceipt:
        """Claim a task's tokens."""
        ...


@dataclass
class _Held:
    """A leased task and the samples that are drawn so far."""

    task: LeasedTask
    renewed_at: float
    drawn: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def sample_indices(self) -> range:
        first = self.task.first_sample
        return range(first, first + len(self.task.sample_keys))

    def job_id(self, index: int) -> str:
        return f"{self.task.lease_id}/{index}"

    @property
    def job_ids(self) -> list[str]:
        return [self.job_id(index) for index in self.sample_indices]

    @property
    def is_complete(self) -> bool:
        return len(self.drawn) == len(self.task.sample_keys)


class MinerWorker:
    """Keeps an engine busy with leased work."""

    def __init__(
        self,
        client: GatewayClient,
        engine: Engine,
        signer: Signer,
        settings: MinerSettings,
        clock: Callable[[], float],
    ) -> None:
        """Put a worker together.

        Args:
            client: the gateway.
            engine: draws the tokens; its steps run in a thread.
            signer: the miner's hotkey, for the statements.
            settings: sizes and times.
            clock: monotonic seconds.
        """
        self._client = client
        self._engine = engine
        self._signer = signer
        self._settings = settings
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._idle_until = 0.0
        self.metrics = MinerMetrics()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until stop is set, then finish what is running within drain_seconds and release the rest."""
        while not stop.is_set():
            try:
                await self._turn(stop)
            except Exception:
                log.exception("turn failed", extra={"action": "mine"})
                await self._release_all()
                await self._pause(stop, RETRY_SECONDS)
        await self._drain()

    async def _turn(self, stop: asyncio.Event) -> None:
        await self._lease()
        if self._held:
            await self._advance()
            if not self._engine.unfinished and self._held:  # claims that could not be delivered yet
                await self._pause(stop, RETRY_SECONDS / 4)
        else:
            await self._pause(stop, max(0.05, self._idle_until - self._clock()))

    async def _lease(self) -> None:
        """Ask for as much as keeps one batch running and one waiting."""
        if self._engine.unfinished > self._settings.max_batch or self._clock() < self._idle_until:
            return
        request = LeaseRequest(models=self._engine.models, max_tasks=self._settings.max_tasks)
        try:
            response = await self._client.lease(request)
        except PeerError as error:
            log.warning("no lease: %s", error, extra={"action": "lease"})
            self._idle_until = self._clock() + RETRY_SECONDS
            return
        if not response.tasks:
            # Jitter, so that many idle miners do not ask in step.
            self._idle_until = self._clock() + response.retry_after_seconds * random.uniform(0.5, 1.0)  # noqa: S311
        for task in response.tasks:
            self._take(task)

    def _take(self, task: LeasedTask) -> None:
        held = _Held(task, self._clock())
        self._held[task.lease_id] = held
        self.metrics.leases.inc()
        keys = zip(held.sample_indices, task.sample_keys, strict=True)
        self._engine.add(
            [
                DrawJob(held.job_id(at), task.model, task.sampling, task.prompt_token_ids, bytes.fromhex(key))
                for at, key in keys
            ]
        )

    async def _advance(self) -> None:
        """One step of the engine, then whatever it completed, then the heartbeats that are due."""
        finished = await asyncio.to_thread(self._engine.step)
        complete = self._note(finished)
        await asyncio.gather(*(self._submit(held) for held in complete))
        await self._renew()

    def _note(self, finished: Sequence[FinishedSample]) -> list[_Held]:
        complete = []
        for sample in finished:
            lease_id, index = sample.job_id.split("/")
            held = self._held.get(lease_id)
            if held is not None:
                held.drawn[int(index)] = sample.token_ids
                if held.is_complete:
                    complete.append(held)
        return complete

    async def _submit(self, held: _Held) -> None:
        task = held.task
        claims = tuple(ClaimedSample(sample_index=i, token_ids=held.drawn[i]) for i in held.sample_indices)
        keyed = zip(task.sample_keys, claims, strict=True)
        statement = submission_statement(
            task.task_id, self._engine.name, tuple((key, claim.token_ids) for key, claim in keyed)
        )
        submission = Submission(
            task_id=task.task_id,
            lease_id=task.lease_id,
            engine=self._engine.name,
            samples=claims,
            signature=self._signer.sign(statement).hex(),
        )
        try:
            receipt = await self._client.submit(submission)
        except PeerRefused as error:
            log.warning("submission refused: %s", error, extra={"action": "submit", "task": task.task_id})
            self.metrics.submissions.labels("refused").inc()
        except PeerError as error:
            # The lease stays held and is kept alive: the same claim is sent again with the next round.
            log.warning("submission not delivered: %s", error, extra={"action": "submit", "task": task.task_id})
            return
        else:
            self.metrics.submissions.labels(receipt.status).inc()
            self.metrics.tokens.inc(sum(len(claim.token_ids) for claim in claims))
            log.info("submitted", extra={"action": "submit", "task": task.task_id, "status": receipt.status})
        self._held.pop(task.lease_id, None)

    async def _renew(self) -> None:
        """Heartbeat at a third of the lease; a lease that is not held any more is dropped with its jobs."""
        now = self._clock()
        due = [held for held in self._held.values() if now - held.renewed_at > held.task.lease_seconds / 3]
        if not due:
            return
        try:
            answer = await self._client.heartbeat(LeaseList(lease_ids=tuple(held.task.lease_id for held in due)))
        except PeerError as error:
            log.warning("no heartbeat: %s", error, extra={"action": "heartbeat"})
            return
        for held in due:
            held.renewed_at = now
            if held.task.lease_id not in answer.lease_ids:
                log.warning("lease lost", extra={"action": "heartbeat", "task": held.task.task_id})
                self._drop(held)
        await asyncio.gather(*(self._submit(held) for held in due if held.is_complete and self._holds(held)))

    def _holds(self, held: _Held) -> bool:
        return held.task.lease_id in self._held

    def _drop(self, held: _Held) -> None:
        self._engine.cancel(held.job_ids)
        self._held.pop(held.task.lease_id, None)

    async def _drain(self) -> None:
        end = self._clock() + self._settings.drain_seconds
        while self._engine.unfinished and self._held and self._clock() < end:
            try:
                await self._advance()
            except Exception:
                log.exception("drain failed", extra={"action": "drain"})
                break
        await self._release_all()

    async def _release_all(self) -> None:
        held = list(self._held.values())
        for each in held:
            self._drop(each)
        if held:
            try:
                await self._client.release(LeaseList(lease_ids=tuple(each.task.lease_id for each in held)))
            except PeerError as error:
                log.warning("leases not released, they will expire: %s", error, extra={"action": "release"})

    @staticmethod
    async def _pause(stop: asyncio.Event, seconds: float) -> None:
        try:
            await asyncio.wait_for(stop.wait(), seconds)
        except TimeoutError:
            return
