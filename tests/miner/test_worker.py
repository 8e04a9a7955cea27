"""The miner's loop against a gateway that does what a test says."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from small_model import SPEC

from miner.engine import DrawJob, FinishedSample
from miner.settings import MinerSettings
from miner.worker import MinerWorker
from protocol.errors import PeerRefused, PeerUnreachable
from protocol.messages import (
    LeasedTask,
    LeaseList,
    LeaseListResponse,
    LeaseRequest,
    LeaseResponse,
    Submission,
    SubmissionReceipt,
    submission_statement,
)
from protocol.models import ModelRef
from protocol.sampling import Sampling


class Signer:
    """Signs with the message itself."""

    ss58_address = "miner"

    def sign(self, message: bytes) -> bytes:
        return message + message


class StubEngine:
    """Finishes one job a step, or fails when it is told to."""

    name = "hf/float32"
    models: tuple[ModelRef, ...] = (SPEC.ref,)

    def __init__(self, failures: int = 0) -> None:
        self.jobs: list[DrawJob] = []
        self.failures = failures
        self.is_stuck = False

    @classmethod
    def stuck(cls) -> "StubEngine":
        """One that finishes nothing."""
        made = cls()
        made.is_stuck = True
        return made

    @property
    def unfinished(self) -> int:
        return len(self.jobs)

    def add(self, jobs: Sequence[DrawJob]) -> None:
        self.jobs += jobs

    def cancel(self, job_ids: Sequence[str]) -> None:
        self.jobs = [job for job in self.jobs if job.job_id not in job_ids]

    def step(self) -> list[FinishedSample]:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("broken engine")
        if self.is_stuck or not self.jobs:
            return []
        return [FinishedSample(self.jobs.pop(0).job_id, (1, 2, 7))]


class Gateway:
    """Leases the tasks it has; remembers what it was told."""

    def __init__(self, tasks: Sequence[LeasedTask] = ()) -> None:
        self.tasks = list(tasks)
        self.submissions: list[Submission] = []
        self.released: list[str] = []
        self.beats: list[str] = []
        self.lost: set[str] = set()
        self.failures: list[Exception] = []

    async def lease(self, request: LeaseRequest) -> LeaseResponse:
        given, self.tasks = self.tasks[: request.max_tasks], self.tasks[request.max_tasks :]
        return LeaseResponse(tasks=tuple(given), retry_after_seconds=0.01)

    async def heartbeat(self, request: LeaseList) -> LeaseListResponse:
        self.beats += request.lease_ids
        return LeaseListResponse(lease_ids=tuple(each for each in request.lease_ids if each not in self.lost))

    async def release(self, request: LeaseList) -> LeaseListResponse:
        self.released += request.lease_ids
        return LeaseListResponse(lease_ids=request.lease_ids)

    async def submit(self, submission: Submission) -> SubmissionReceipt:
        if self.failures:
            raise self.failures.pop(0)
        self.submissions.append(submission)
        return SubmissionReceipt(task_id=submission.task_id, status="submitted")


class Clock:
    """Seconds that pass a little with every look."""

    def __init__(self, step_seconds: float = 0.0) -> None:
        self.now = 0.0
        self.step_seconds = step_seconds

    def __call__(self) -> float:
        self.now += self.step_seconds
        return self.now


def task(number: int, samples: int = 2) -> LeasedTask:
    return LeasedTask(
        task_id=f"task{number}",
        lease_id=f"lease{number}",
        model=SPEC,
        sampling=Sampling(max_tokens=16),
        prompt_token_ids=(1, 2),
        first_sample=8,
        sample_keys=tuple(f"{number:032x}{at:032x}" for at in range(samples)),
        lease_expires_at=0,
        lease_seconds=30,
    )


def worker(gateway: Gateway, engine: StubEngine, clock: Clock | None = None) -> MinerWorker:
    settings = MinerSettings(
        gateway_url="http://127.0.0.1", hotkey_file=Path("unused"), model=SPEC.ref, max_tasks=4, drain_seconds=5
    )
    return MinerWorker(gateway, engine, Signer(), settings, clock or Clock(0.001))


async def run_until(made: MinerWorker, done: Callable[[], bool]) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(made.run(stop))
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0.005)
        stop.set()
        await running


async def test_leased_tasks_are_drawn_and_submitted_with_a_signed_statement() -> None:
    gateway = Gateway([task(1), task(2)])
    await run_until(worker(gateway, StubEngine()), lambda: len(gateway.submissions) == 2)
    made = next(each for each in gateway.submissions if each.task_id == "task1")
    assert [sample.sample_index for sample in made.samples] == [8, 9]
    keys = task(1).sample_keys
    statement = submission_statement("task1", "hf/float32", tuple((key, (1, 2, 7)) for key in keys))
    assert made.signature == (statement + statement).hex()
    assert gateway.released == []


async def test_a_claim_that_could_not_be_delivered_is_sent_again() -> None:
    gateway = Gateway([task(1)])
    gateway.failures = [PeerUnreachable("down")]
    await run_until(worker(gateway, StubEngine(), Clock(1.0)), lambda: len(gateway.submissions) == 1)


async def test_a_claim_that_is_refused_is_dropped() -> None:
    gateway = Gateway([task(1), task(2)])
    gateway.failures = [PeerRefused("lease_lost", "too late", 409)]
    await run_until(worker(gateway, StubEngine()), lambda: len(gateway.submissions) == 1)
    assert gateway.released == []


async def test_leases_are_kept_alive_while_their_samples_are_drawn() -> None:
    gateway = Gateway([task(1)])
    engine = StubEngine.stuck()
    await run_until(worker(gateway, engine, Clock(1.0)), lambda: len(gateway.beats) >= 2)
    assert set(gateway.beats) == {"lease1"}
    assert gateway.released == ["lease1"]


async def test_a_lost_lease_is_dropped_with_its_jobs() -> None:
    gateway = Gateway([task(1)])
    gateway.lost = {"lease1"}
    engine = StubEngine.stuck()
    await run_until(worker(gateway, engine, Clock(1.0)), lambda: bool(gateway.beats) and not engine.jobs)
    assert gateway.released == []


async def test_a_stop_finishes_what_is_running() -> None:
    gateway = Gateway([task(1, samples=6)])
    engine = StubEngine.stuck()

    def is_running() -> bool:
        engine.is_stuck = not engine.jobs  # it goes on just when the stop comes
        return bool(engine.jobs)

    await run_until(worker(gateway, engine), is_running)
    assert len(gateway.submissions) == 1
    assert gateway.released == []


async def test_a_stop_hands_back_what_does_not_finish_in_time() -> None:
    gateway = Gateway([task(1)])
    engine = StubEngine.stuck()
    await run_until(worker(gateway, engine, Clock(0.5)), lambda: engine.unfinished > 0)
    assert gateway.released == ["lease1"]


async def test_a_broken_engine_hands_its_leases_back_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway([task(1)])
    engine = StubEngine(failures=1)
    made = worker(gateway, engine, Clock(1.0))
    await run_until(made, lambda: gateway.released == ["lease1"])
    assert any("turn failed" in record.message for record in caplog.records)
