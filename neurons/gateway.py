"""The gateway's composition root."""

import asyncio
import gc
import logging
import time
from importlib import resources
from pathlib import Path

from aiohttp import web

from gateway.core.pricing import Rates, parse_rates
from gateway.db.blobs import Blobs
from gateway.db.engine import Database
from gateway.http.app import build_app
from gateway.metrics import GatewayMetrics
from gateway.rendering import RenderPool
from gateway.services import Services
from gateway.settings import GatewaySettings
from gateway.sweeper import Sweeper
from neurons.beacon import DevelopmentBeacon
from neurons.chain import load_signer, verify_signature
from neurons.hub import open_hub
from neurons.lifecycle import Ready
from neurons.settings import SettingsError
from protocol.verdict import Calibration

log = logging.getLogger("reliquary.gateway")


def clock() -> int:
    """Unix seconds, now."""
    return int(time.time())


def load_rates(path: Path | None) -> Rates:
    """The operator's price list, or the one in the package.

    Raises:
        SettingsError: it cannot be read.
    """
    try:
        source = resources.files("gateway") / "pricing.toml" if path is None else path
        return parse_rates(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path or 'gateway/pricing.toml'}: {error}") from error


def load_calibrations(directory: Path | None) -> tuple[Calibration, ...]:
    """The package's calibrations, and after them the operator's.

    Raises:
        SettingsError: one of them cannot be read.
    """
    packaged = [item for item in (resources.files("neurons") / "calibrations").iterdir() if item.name.endswith(".json")]
    own = sorted(directory.glob("*.json")) if directory is not None else []
    found = []
    for item in [*own, *sorted(packaged, key=lambda item: item.name)]:
        try:
            found.append(Calibration.model_validate_json(item.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise SettingsError(f"{item.name}: {error}") from error
    return tuple(found)


def open_database(settings: GatewaySettings, metrics: GatewayMetrics) -> Database:
    """The database that the settings name; the folder of a SQLite file is made."""
    _, separator, path = settings.database_url.partition("sqlite+aiosqlite:///")
    if separator:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    return Database.connect(settings.database_url, metrics.observe_transition)


async def _listen(runner: web.AppRunner, settings: GatewaySettings) -> None:
    try:
        await web.TCPSite(runner, settings.host, settings.port).start()
    except OSError as error:  # starting again would not free the port
        raise SettingsError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}") from error


async def run(settings: GatewaySettings, stop: asyncio.Event, ready: Ready) -> None:
    """Serve until stop is set: HTTP and the sweeper; requests and the running sweep are finished."""
    if settings.hotkey_file is None:
        raise SettingsError("hotkey_file: missing key")
    signer = load_signer(settings.hotkey_file)
    settings = settings.model_copy(update={"hotkey": signer.ss58_address})
    metrics = GatewayMetrics()
    services = Services(
        database=open_database(settings, metrics),
        blobs=Blobs(settings.blob_url),
        hub=open_hub(settings.hub_directory, settings.hub_cache),
        renderer=RenderPool(settings.render_workers, settings.render_seconds, settings.render_file_seconds),
        rates=load_rates(settings.pricing_file),
        settings=settings,
        beacon=DevelopmentBeacon(clock),
        verify_signature=verify_signature,
        calibrations=load_calibrations(settings.calibration_directory),
        metrics=metrics,
    )
    await services.database.migrate()
    runner = web.AppRunner(build_app(services, clock), handle_signals=False, access_log=None)
    try:
        await runner.setup()
        await _listen(runner, settings)
        log.warning(
            "the beacon is the development one: orders without a seed are not fair against the operator",
            extra={"action": "start", "beacon": services.beacon.chain.name},
        )
        # What was loaded so far stays: looking through it for garbage, again and again, would hold up every request.
        gc.collect()
        gc.freeze()
        log.info("serving", extra={"action": "start", "host": settings.host, "port": settings.port})
        ready()
        await Sweeper(services, clock).run(stop)
    finally:
        await runner.cleanup()
        await services.renderer.close()
        await services.database.close()
