"""Settings of the gateway; neurons/settings.py loads them."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MIB = 1024 * 1024
Positive = Annotated[int, Field(gt=0)]


class GatewaySettings(BaseModel):
    """One gateway. Units stand last in the names.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        database_url: sqlite+aiosqlite:///PATH or postgresql+asyncpg://….
        blob_url: a folder's path, or an object store's URL.
        hub_directory: a local model hub; None for the real one.
        hub_cache: where the real hub's files are kept.
        hotkey_file: the gateway's own key: requests must be signed for it.
        hotkey: its address; read from hotkey_file by the composition root.
        miners: hotkeys that may lease work.
        validators: hotkeys that may audit.
        pricing_file: prices; None for the ones in the package.
        calibration_directory: more calibrations beside those in the package.
        beacon: where the randomness of orders without a seed comes from.
        lease_seconds: how long a miner may hold a task without a heartbeat.
        audit_seconds: how long a validator may hold an audit.
        suspension_seconds: how long a miner is out after a rejected submission.
        max_attempts: rejected submissions after which a task is given up.
        max_open_orders: open orders of one account.
        max_quotes_per_day: quotes of one account in 24 hours.
        requests_per_second: what one API key may ask in the long run, of each gateway process.
        request_burst: what it may ask at once after a pause.
        sweep_interval_seconds: pause between two sweeps.
        upload_limit_bytes: largest file on POST /files.
        node_memory_bytes: GPU memory of the largest node that miners are expected to have: the model's weights and
            caches must fit it.
        render_workers: processes that parse, render and tokenise.
        render_seconds: longest time one line may take to render.
        render_file_seconds: most CPU time that the lines of one file may take together.
        log_level: of the role's log.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    database_url: str
    blob_url: str
    hub_directory: Path | None = None
    hub_cache: Path | None = None
    hotkey_file: Path | None = None
    hotkey: str = ""
    miners: tuple[str, ...] = ()
    validators: tuple[str, ...] = ()
    pricing_file: Path | None = None
    calibration_directory: Path | None = None
    beacon: Literal["development"] = "development"
    lease_seconds: Positive = 300
    audit_seconds: Positive = 300
    suspension_seconds: Positive = 6 * 3600
    max_attempts: Positive = 5
    max_open_orders: Positive = 5
    max_quotes_per_day: Positive = 200
    requests_per_second: Annotated[float, Field(gt=0)] = 20.0
    request_burst: Positive = 200
    sweep_interval_seconds: Annotated[float, Field(gt=0)] = 1.0
    upload_limit_bytes: Positive = 32 * MIB
    node_memory_bytes: Positive = 8 * 80 * 1000**3
    render_workers: Positive = 2
    render_seconds: Annotated[float, Field(gt=0)] = 5.0
    render_file_seconds: Annotated[float, Field(gt=0)] = 600.0
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
