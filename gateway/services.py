"""What the operations are handed: one frozen bundle, and the ports that the outside implements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.core.pricing import Rates
from gateway.db.blobs import Blobs
from gateway.db.engine import Database
from gateway.metrics import GatewayMetrics
from gateway.models import ModelHub
from gateway.rendering import RenderPool
from gateway.settings import GatewaySettings
from protocol.beacon import Chain, Pulse
from protocol.signing import Verifier
from protocol.verdict import Calibration


class BeaconSource(Protocol):
    """A public randomness beacon."""

    @property
    def chain(self) -> Chain:
        """Which beacon it is."""
        ...

    async def pulse(self, round_number: int) -> Pulse | None:
        """The pulse of a round, or None while it is not published or cannot be had."""
        ...


@dataclass(frozen=True)
class Services:
    """Everything an operation may use besides its arguments."""

    database: Database
    blobs: Blobs
    hub: ModelHub
    renderer: RenderPool
    rates: Rates
    settings: GatewaySettings
    beacon: BeaconSource
    verify_signature: Verifier
    calibrations: Sequence[Calibration]
    metrics: GatewayMetrics
