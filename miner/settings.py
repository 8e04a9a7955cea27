"""Settings of a miner; neurons/settings.py loads them."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from protocol.models import ModelRef

Positive = Annotated[int, Field(gt=0)]


class MinerSettings(BaseModel):
    """One miner.

    Attributes:
        gateway_url: where work comes from, e.g. http://127.0.0.1:8080.
        gateway_hotkey: whom to sign for; None takes what the gateway says of itself.
        hotkey_file: the miner's key.
        model: what it serves.
        hub_directory: a local model hub; None for the real one.
        hub_cache: where the real hub's snapshots are kept.
        engine: inference engine.
        device: torch device.
        threads: CPU threads of the engine.
        max_batch: samples drawn at once.
        max_tasks: tasks leased with one request.
        drain_seconds: how long running work may go on after a stop.
        metrics_port: Prometheus on this port; None for none.
        log_level: of the role's log.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gateway_url: str
    gateway_hotkey: str | None = None
    hotkey_file: Path
    model: ModelRef
    hub_directory: Path | None = None
    hub_cache: Path | None = None
    engine: Literal["hf"] = "hf"
    device: str = "cpu"
    threads: Positive = 1
    max_batch: Positive = 32
    max_tasks: Annotated[int, Field(ge=1, le=256)] = 16
    drain_seconds: Annotated[float, Field(ge=0)] = 30.0
    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
