"""A whole network on one machine: a gateway, miners (honest and cheating) and validators as separate processes."""

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gateway.db.accounts import ORDERS_WRITE, Access, allow_orders, create_account, create_api_key
from gateway.db.engine import Database
from gateway.db.ledger import deposit
from neurons.chain import Hotkey, create_hotkey, load_signer
from neurons.hub import LocalHub
from neurons.supervision import Program, Supervisor

MODEL = "tiny/qwen3-demo"
CREDIT_MICRO = 1_000_000_000
POLL_SECONDS = 0.1
DEMO_HUB = Path(__file__).resolve().parent.parent / "tests" / "models"


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        port: of the gateway; 0 takes a free one.
        data: folder for keys, settings, the database, blobs and logs; used again, it goes on where it was.
        miners: honest miners.
        cheats: kinds of cheating miners, one each (neurons/cheats.py).
        validators: validators.
        hub: a local model hub.
        database_url: None for a SQLite file in data.
        gateway_settings: more settings of the gateway, over the ones below.
    """

    port: int
    data: Path
    miners: int = 2
    cheats: Sequence[str] = ()
    validators: int = 1
    hub: Path = DEMO_HUB
    database_url: str | None = None
    gateway_settings: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Description:
    """What a user of the network needs; printed as one JSON line once it is ready."""

    base_url: str
    api_key: str
    model: str
    revision: str
    native_url: str
    pids_file: str


@dataclass(frozen=True)
class _Role:
    """One process: its command line's words and its settings."""

    name: str
    command: tuple[str, ...]
    settings: Mapping[str, Any]


async def run(plan: Plan, stop: asyncio.Event, announce: Any) -> None:
    """Run the network until stop is set; announce(Description) is called once everything is ready."""
    for folder in ("keys", "settings", "logs", "ready"):
        (plan.data / folder).mkdir(parents=True, exist_ok=True)
    port = plan.port or _free_port()
    revision = await LocalHub(plan.hub).resolve_main(MODEL)
    database_url = plan.database_url or f"sqlite+aiosqlite:///{plan.data.resolve() / 'gateway.db'}"
    api_key = await _api_key(plan.data / "keys" / "customer.json", database_url)
    roles = _roles(plan, port, revision, database_url)
    programs = [_program(plan.data, role) for role in roles]
    for program in programs:
        program.ready_file.unlink(missing_ok=True)  # of an earlier run on the same folder
    url = f"http://127.0.0.1:{port}"
    description = Description(
        base_url=f"{url}/api/openai/v1",
        api_key=api_key,
        model=MODEL,
        revision=revision,
        native_url=f"{url}/api/v1",
        pids_file=str(plan.data / "pids.json"),
    )
    # The gateway is ended last, so that miners and validators can hand back what they hold.
    supervisor = Supervisor([programs[:1], programs[1:]], plan.data / "pids.json")
    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run(stop))
        if await _all_ready(programs, stop):
            announce(description)


async def _all_ready(programs: Sequence[Program], stop: asyncio.Event) -> bool:
    while not all(program.ready_file.exists() for program in programs):
        if stop.is_set():
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True


def _roles(plan: Plan, port: int, revision: str, database_url: str) -> list[_Role]:
    """The gateway first."""
    keys = plan.data / "keys"
    miners = [f"miner-{number + 1}" for number in range(plan.miners)]
    cheats = [f"cheat-{kind}" for kind in plan.cheats]
    validators = [f"validator-{number + 1}" for number in range(plan.validators)]
    addresses = {name: _hotkey(keys / f"{name}.json").ss58_address for name in (*miners, *cheats, *validators)}
    gateway_hotkey = _hotkey(keys / "gateway.json").ss58_address
    hub = str(plan.hub.resolve())
    gateway = {
        "port": port,
        "database_url": database_url,
        "blob_url": str((plan.data / "blobs").resolve()),
        "hub_directory": hub,
        "hotkey_file": str(keys / "gateway.json"),
        "miners": [addresses[name] for name in (*miners, *cheats)],
        "validators": [addresses[name] for name in validators],
        "render_workers": 1,
        "lease_seconds": 60,
        "audit_seconds": 60,
        "sweep_interval_seconds": 0.5,
        **(plan.gateway_settings or {}),
    }
    worker = {
        "gateway_url": f"http://127.0.0.1:{port}",
        "gateway_hotkey": gateway_hotkey,
        "model": {"repo": MODEL, "revision": revision},
        "hub_directory": hub,
    }
    roles = [_Role("gateway", ("gateway",), gateway)]
    for name in (*miners, *cheats):
        cheat = ("--cheat", name.removeprefix("cheat-")) if name in cheats else ()
        # Small leases, so that several miners share even a small batch.
        settings = {**worker, "hotkey_file": str(keys / f"{name}.json"), "max_tasks": 4, "max_batch": 16}
        roles.append(_Role(name, ("miner", *cheat), settings))
    own_key = {name: {**worker, "hotkey_file": str(keys / f"{name}.json")} for name in validators}
    return roles + [_Role(name, ("validator",), settings) for name, settings in own_key.items()]


def _program(data: Path, role: _Role) -> Program:
    settings = data / "settings" / f"{role.name}.toml"
    settings.write_text(_toml(role.settings), encoding="utf-8")
    return Program(
        name=role.name,
        arguments=(*role.command, "--config", str(settings)),
        log_file=data / "logs" / f"{role.name}.log",
        ready_file=data / "ready" / role.name,
    )


def _toml(settings: Mapping[str, Any]) -> str:
    """Settings as TOML: JSON's texts, numbers and lists are TOML too; a table of texts is written inline."""
    lines = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            inner = ", ".join(f"{name} = {json.dumps(each)}" for name, each in value.items())
            lines.append(f"{key} = {{{inner}}}")
        else:
            lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def _hotkey(path: Path) -> Hotkey:
    return load_signer(path) if path.exists() else create_hotkey(path)


async def _api_key(path: Path, database_url: str) -> str:
    """The customer's key, made with an account and credit the first time."""
    known = await asyncio.to_thread(_known_key, path)
    if known is not None:
        return known
    database = Database.connect(database_url)
    try:
        await database.migrate()
        account_id, api_key = await open_account(database, "localnet", CREDIT_MICRO)
    finally:
        await database.close()
    unfinished = path.with_suffix(".tmp")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        json.dump({"account_id": account_id, "api_key": api_key}, handle)
    unfinished.rename(path)  # whole or not at all: dying in between makes another account, not a broken file
    return api_key


def _known_key(path: Path) -> str | None:
    return str(json.loads(path.read_text(encoding="utf-8"))["api_key"]) if path.exists() else None


async def open_account(
    database: Database, name: str, credit_micro: int, access: Access = Access.ORDERS
) -> tuple[str, str]:
    """A new account with credit, in one transaction: its id and its API key."""
    now = int(time.time())
    async with database.transaction() as conn:
        account_id = await create_account(conn, name, now)
        if access is Access.ORDERS:
            await allow_orders(conn, account_id, now)
        await deposit(conn, account_id, credit_micro, now)
        return account_id, await create_api_key(conn, account_id, [ORDERS_WRITE], now)


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def as_json(description: Description) -> str:
    """The line that tells a program where the network is."""
    return json.dumps(asdict(description))
