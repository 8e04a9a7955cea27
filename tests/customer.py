"""A gateway on loopback as its customers see it, with miners and validators that do what a test says.

Everything is the real thing (SQLite, blob store, rendering processes, routes) but the hub, which is a folder, the
clock, which is a number, and signatures, which are always right.
"""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from gateway.audits import assign_audits, report_evidence
from gateway.core.pricing import parse_rates
from gateway.db.accounts import allow_orders, create_account, create_api_key
from gateway.db.blobs import Blobs
from gateway.db.engine import LOCK_SECONDS, Database
from gateway.db.ledger import deposit
from gateway.dispatch import lease_tasks, submit
from gateway.http.app import build_app
from gateway.metrics import GatewayMetrics
from gateway.rendering import RenderPool
from gateway.services import Services
from gateway.settings import GatewaySettings
from gateway.sweeper import sweep
from protocol.beacon import DEVELOPMENT, Chain, Pulse, development_pulse
from protocol.errors import HubUnavailable, ModelNotFound, ModelPrivate
from protocol.evidence import pack_codes
from protocol.messages import (
    AuditRequest,
    ClaimedSample,
    EvidenceReport,
    LeasedTask,
    LeaseRequest,
    SampleEvidence,
    Submission,
)
from protocol.models import MAIN, ModelRef, RepositoryFile
from protocol.verdict import Calibration

MODELS = Path(__file__).parent / "models"
MODEL = "tiny/qwen3-demo"
REVISION = (MODELS / MODEL / "refs" / "main").read_text().strip()
EOS = json.loads((MODELS / MODEL / "snapshots" / REVISION / "config.json").read_text())["eos_token_id"]
ENGINE = "hf/float32"
SIGNATURE = "0" * 128
START = 1_800_000_000
DEPOSIT_MICRO = 100_000_000

Answer = Callable[[LeasedTask, int], Sequence[int]]
"""The token ids that a miner claims for a sample of a task."""


class FolderHub:
    """A model hub in a folder; down while is_down, and without answers about what is private."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.is_down = False
        self.private: set[str] = set()

    async def resolve_main(self, repo: str) -> str:
        self._existing(repo, self._root / repo)
        return self._existing(repo, self._root / repo / "refs" / MAIN, MAIN).read_text().strip()

    async def list_files(self, repo: str, revision: str) -> tuple[RepositoryFile, ...]:
        snapshot = self._existing(repo, self._root / repo / "snapshots" / revision)
        return tuple(RepositoryFile(path.name, path.stat().st_size) for path in sorted(snapshot.iterdir()))

    async def read_file(self, repo: str, revision: str, name: str) -> bytes:
        return self._existing(repo, self._root / repo / "snapshots" / revision / name).read_bytes()

    def _existing(self, repo: str, path: Path, revision: str | None = None) -> Path:
        if self.is_down:
            raise HubUnavailable("down")
        if repo in self.private:
            raise ModelPrivate(repo)
        if not path.exists():
            raise ModelNotFound(repo, revision)
        return path


class DevelopmentBeacon:
    """The development beacon."""

    @property
    def chain(self) -> Chain:
        return DEVELOPMENT

    async def pulse(self, round_number: int) -> Pulse | None:
        return development_pulse(round_number)


def calibration() -> Calibration:
    return Calibration(
        id="test",
        model_repo="*",
        miner_engine=ENGINE,
        validator_engine=ENGINE,
        radius_tolerance=0.01,
        eos_radius_tolerance=0.01,
        mismatch_alpha=1.0,
        mismatch_beta=1000.0,
        tokens_measured=1,
        mismatches_measured=0,
        largest_radius_measured=0.0,
        largest_logit_error_measured=0.0,
        measured_on="never",
        command="none",
    )


@dataclass
class World:
    """A running gateway, its clock and the key of one account with money."""

    services: Services
    url: str
    api_key: str
    account_id: str
    now: int = START

    @property
    def openai_url(self) -> str:
        return f"{self.url}/api/openai/v1"

    @property
    def hub(self) -> FolderHub:
        assert isinstance(self.services.hub, FolderHub)
        return self.services.hub

    async def open_account(self, deposit_micro: int = DEPOSIT_MICRO, scopes: Sequence[str] = ("orders:write",)) -> str:
        """The key of another account."""
        async with self.services.database.transaction() as conn:
            account_id = await create_account(conn, "other", self.now)
            await allow_orders(conn, account_id, self.now)
            await deposit(conn, account_id, deposit_micro, self.now)
            return await create_api_key(conn, account_id, scopes, self.now)

    async def credit(self, amount_micro: int) -> None:
        """More money for the account."""
        async with self.services.database.transaction() as conn:
            await deposit(conn, self.account_id, amount_micro, self.now)

    def client(self, api_key: str | None = None, **options: Any) -> openai.AsyncOpenAI:
        """The official client."""
        return openai.AsyncOpenAI(base_url=self.openai_url, api_key=api_key or self.api_key, **options)

    def session(self, api_key: str | None = None) -> ClientSession:
        """Plain HTTP with the account's key, for what the official client would not send."""
        return ClientSession(self.url, headers={"Authorization": f"Bearer {api_key or self.api_key}"})

    async def sweep(self) -> None:
        """One pass of the sweeper."""
        await sweep(self.services, self.now)

    async def work(self, answer: Answer, miner: str = "miner", max_tasks: int = 256) -> int:
        """Lease, answer and audit everything that can be leased; how many tasks that was."""
        served = (ModelRef(repo=MODEL, revision=REVISION),)
        leased = await lease_tasks(self.services, miner, LeaseRequest(models=served, max_tasks=max_tasks), self.now)
        for task in leased.tasks:
            indices = range(task.first_sample, task.first_sample + len(task.sample_keys))
            claims = tuple(ClaimedSample(sample_index=index, token_ids=tuple(answer(task, index))) for index in indices)
            claim = Submission(
                task_id=task.task_id, lease_id=task.lease_id, engine=ENGINE, samples=claims, signature=SIGNATURE
            )
            await submit(self.services, miner, claim, self.now)
        assigned = await assign_audits(
            self.services, "validator", AuditRequest(models=served, max_audits=256), self.now
        )
        for audit in assigned.audits:
            evidence = tuple(
                SampleEvidence(sample_index=sample.sample_index, radius_codes=pack_codes([0] * len(sample.token_ids)))
                for sample in audit.samples
            )
            report = EvidenceReport(audit_id=audit.audit_id, engine=ENGINE, samples=evidence, signature=SIGNATURE)
            await report_evidence(self.services, "validator", report, self.now)
        return len(leased.tasks)

    async def finish(self, answer: Answer) -> None:
        """Work until nothing is left, then let the sweeper end what is done."""
        await self.sweep()
        while await self.work(answer):
            pass
        await self.sweep()


def five_tokens(task: LeasedTask, sample_index: int) -> list[int]:
    """Four ids that differ between lines and samples, and the end."""
    start = 300 + 7 * len(task.prompt_token_ids) + 10 * sample_index
    return [*range(start, start + 4), EOS]


@asynccontextmanager
async def running_world(
    folder: Path,
    database_url: str | None = None,
    models: Path = MODELS,
    lock_seconds: float = LOCK_SECONDS,
    **settings: Any,
) -> AsyncIterator[World]:
    """A gateway with its data in a folder, its database there too unless a URL says otherwise."""
    metrics = GatewayMetrics()
    url = database_url or f"sqlite+aiosqlite:///{folder / 'gateway.db'}"
    database = Database.connect(url, metrics.observe_transition, lock_seconds)
    renderer = RenderPool(workers=1, line_seconds=5.0)
    await database.migrate()
    services = Services(
        database=database,
        blobs=Blobs(str(folder / "blobs")),
        hub=FolderHub(models),
        renderer=renderer,
        rates=parse_rates((Path(__file__).parent.parent / "gateway" / "pricing.toml").read_text()),
        settings=GatewaySettings(database_url="unused", blob_url="unused", hotkey="gateway", **settings),
        beacon=DevelopmentBeacon(),
        verify_signature=lambda _message, _signature, _hotkey: True,
        calibrations=(calibration(),),
        metrics=metrics,
    )
    async with database.transaction() as conn:
        account_id = await create_account(conn, "customer", START)
        await allow_orders(conn, account_id, START)
        await deposit(conn, account_id, DEPOSIT_MICRO, START)
        api_key = await create_api_key(conn, account_id, ["orders:write"], START)
    world = World(services, "", api_key, account_id)
    server = TestServer(build_app(services, lambda: world.now))
    await server.start_server()
    try:
        world.url = str(server.make_url("")).rstrip("/")
        yield world
    finally:
        await server.close()
        await renderer.close()
        await database.close()


def chat_line(custom_id: str, text: str = "What is 7 times 8?", **body: Any) -> dict[str, Any]:
    """A line of /v1/chat/completions for the demo model."""
    sampling = {"max_tokens": 64, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "seed": 7}
    request = {"model": MODEL, "messages": [{"role": "user", "content": text}], **sampling, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": request}


def jsonl(*lines: dict[str, Any]) -> bytes:
    """The lines as a file."""
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
