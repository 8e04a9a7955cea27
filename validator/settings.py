"""Settings of a validator; neurons/settings.py loads them."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from protocol.models import ModelRef

Positive = Annotated[int, Field(gt=0)]


class ValidatorSettings(BaseModel):
    """One validator.

    Attributes:
        gateway_url: where claims come from.
        gateway_hotkey: whom to sign for; None takes what the gateway says of itself.
        hotkey_file: the validator's key.
        model: what it audits.
        hub_directory: a local model hub; None for the real one.
        hub_cache: where the real hub's snapshots are kept.
        device: torch device.
        threads: CPU threads.
        max_audits: audits taken with one request.
        rows_per_chunk: positions whose logits are held at once: bounds memory at rows × vocabulary × 4 bytes.
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
    device: str = "cpu"
    threads: Positive = 1
    max_audits: Annotated[int, Field(ge=1, le=256)] = 16
    rows_per_chunk: Positive = 512
    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
