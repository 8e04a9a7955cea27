"""The command line: reliquary gateway | miner | validator | localnet | admin."""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel

from gateway.db.accounts import Access, allow_orders
from gateway.db.engine import Database
from gateway.metrics import GatewayMetrics
from gateway.settings import GatewaySettings
from miner.settings import MinerSettings
from neurons.chain import KeyfileUnusable, create_hotkey
from neurons.lifecycle import end_with_parent, run_until_signal, touch_when_ready
from neurons.settings import SettingsError, load
from neurons.supervision import UNUSABLE, ChildUnusable
from neurons.telemetry import configure_logging
from protocol.errors import HubError
from validator.settings import ValidatorSettings

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
admin = typer.Typer(no_args_is_help=True, help="What an operator does to a gateway's database.")
app.add_typer(admin, name="admin")

SettingsModel = TypeVar("SettingsModel", bound=BaseModel)
Result = TypeVar("Result")
Config = Annotated[Path | None, typer.Option(help="TOML file; the environment goes over it.")]
ReadyFile = Annotated[Path | None, typer.Option(help="Made once the role can do its work.")]
Parent = Annotated[int | None, typer.Option("--end-with-parent", help="End when this process does.", hidden=True)]
USD_MICRO = 1_000_000


class EngineKind(StrEnum):
    """Inference engines that a localnet's miners can use."""

    HF = "hf"


def _fail(message: str) -> typer.Exit:
    sys.stderr.write(f"reliquary: {message}\n")
    return typer.Exit(UNUSABLE)


def _read(model: type[SettingsModel], config: Path | None, role: str) -> SettingsModel:
    try:
        return load(model, config, f"RELIQUARY_{role.upper()}__")
    except SettingsError as error:
        raise _fail(str(error)) from error


def _serve(role: str, level: str, start: Callable[[asyncio.Event], Awaitable[None]], parent: int | None) -> None:
    """Run a role until a signal; what starting again would not mend ends with its own exit status."""
    if parent is not None:
        end_with_parent(parent)
    configure_logging(role, level)  # type: ignore[arg-type]
    try:
        asyncio.run(run_until_signal(start))
    except (SettingsError, KeyfileUnusable, HubError) as error:
        raise _fail(str(error)) from error


@app.command()
def gateway(config: Config = None, ready_file: ReadyFile = None, parent: Parent = None) -> None:
    """Serve customers, miners and validators."""
    from neurons.gateway import run  # noqa: PLC0415 - each role loads only what it needs

    settings = _read(GatewaySettings, config, "gateway")
    ready = touch_when_ready(ready_file)
    _serve("gateway", settings.log_level, lambda stop: run(settings, stop, ready), parent)


@app.command()
def miner(
    config: Config = None,
    ready_file: ReadyFile = None,
    parent: Parent = None,
    cheat: Annotated[str | None, typer.Option(hidden=True, help="For tests: depart from the protocol.")] = None,
) -> None:
    """Draw tokens for a gateway."""
    from neurons.cheats import CHEATS  # noqa: PLC0415 - as above
    from neurons.miner import HONEST, run  # noqa: PLC0415 - as above

    settings = _read(MinerSettings, config, "miner")
    if cheat is not None and cheat not in CHEATS:
        raise _fail(f"no cheat {cheat}; there are {', '.join(sorted(CHEATS))}")
    kind = HONEST if cheat is None else CHEATS[cheat]
    ready = touch_when_ready(ready_file)
    _serve("miner", settings.log_level, lambda stop: run(settings, stop, ready, kind), parent)


@app.command()
def validator(config: Config = None, ready_file: ReadyFile = None, parent: Parent = None) -> None:
    """Check what miners claim."""
    from neurons.validator import run  # noqa: PLC0415 - as above

    settings = _read(ValidatorSettings, config, "validator")
    ready = touch_when_ready(ready_file)
    _serve("validator", settings.log_level, lambda stop: run(settings, stop, ready), parent)


@app.command()
def localnet(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the gateway; 0 takes a free one.")] = 8080,
    data: Annotated[Path, typer.Option(help="Folder for everything; used again, it goes on.")] = Path("data"),
    miners: Annotated[int, typer.Option(min=0, help="Honest miners.")] = 2,
    cheat: Annotated[list[str] | None, typer.Option(help="A cheating miner of this kind; may be repeated.")] = None,
    validators: Annotated[int, typer.Option(min=0)] = 1,
    engine: Annotated[str, typer.Option(help="The miners' inference engine: hf.")] = EngineKind.HF,
) -> None:
    """Run a whole network on this machine until SIGTERM; one JSON line says when it is ready."""
    from neurons import localnet as network  # noqa: PLC0415 - as above
    from neurons.cheats import CHEATS  # noqa: PLC0415 - as above

    if engine != EngineKind.HF:
        raise _fail(f"engine {engine}: this version has the hf engine only")
    unknown = sorted(set(cheat or ()) - set(CHEATS))
    if unknown:
        raise _fail(f"no cheat {unknown[0]}; there are {', '.join(sorted(CHEATS))}")
    plan = network.Plan(port, data, miners, tuple(cheat or ()), validators)

    def announce(description: network.Description) -> None:
        sys.stdout.write(network.as_json(description) + "\n")
        sys.stdout.flush()

    configure_logging("localnet", "INFO")
    try:
        asyncio.run(run_until_signal(lambda stop: network.run(plan, stop, announce)))
    except* (ChildUnusable, SettingsError, KeyfileUnusable, HubError) as group:
        raise _fail("; ".join(str(error) for error in _leaves(group))) from group


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The exceptions in a group of groups."""
    nested = [_leaves(each) if isinstance(each, BaseExceptionGroup) else [each] for each in group.exceptions]
    return [error for errors in nested for error in errors]


AccountWork = Callable[[Database], Awaitable[Result]]


def _with_database(config: Path | None, work: AccountWork[Result]) -> Result:
    """What an operator's work on the gateway's database comes to."""
    from neurons.gateway import open_database  # noqa: PLC0415 - as above

    settings = _read(GatewaySettings, config, "gateway")

    async def run() -> Result:
        database = open_database(settings, GatewayMetrics())
        try:
            await database.migrate()
            return await work(database)
        finally:
            await database.close()

    return asyncio.run(run())


@admin.command("create-account")
def create_account(
    name: str,
    config: Config = None,
    credit_usd: Annotated[float, typer.Option(min=0, max=1e9)] = 0.0,
    without_orders: Annotated[bool, typer.Option("--without-orders", help="It may order only once allowed.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Open an account with credit and print its API key: the only time it can be seen."""
    from neurons.localnet import open_account  # noqa: PLC0415 - as above

    access = Access.NONE if without_orders else Access.ORDERS
    credit_micro = round(credit_usd * USD_MICRO)
    account_id, api_key = _with_database(config, lambda database: open_account(database, name, credit_micro, access))
    sys.stdout.write(json.dumps({"account_id": account_id, "api_key": api_key}) + "\n")


@admin.command("allow-orders")
def permit_orders(account_id: str, config: Config = None) -> None:
    """Let an account order from now on."""

    async def work(database: Database) -> bool:
        async with database.transaction() as conn:
            return await allow_orders(conn, account_id, int(time.time()))

    if not _with_database(config, work):
        raise _fail(f"there is no account {account_id}")


@admin.command("create-hotkey")
def new_hotkey(path: Path) -> None:
    """Make a hotkey file with mode 0600 and print its address."""
    try:
        sys.stdout.write(create_hotkey(path).ss58_address + "\n")
    except KeyfileUnusable as error:
        raise _fail(str(error)) from error


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
