"""Sources of beacon pulses."""

from collections.abc import Callable
from dataclasses import dataclass

from protocol.beacon import DEVELOPMENT, Chain, Pulse, development_pulse, published_at


@dataclass(frozen=True)
class DevelopmentBeacon:
    """The development chain, for one machine: anyone can compute its pulses, but here only once they are due.

    Attributes:
        clock: gives Unix seconds.
    """

    clock: Callable[[], int]

    @property
    def chain(self) -> Chain:
        """The development chain."""
        return DEVELOPMENT

    async def pulse(self, round_number: int) -> Pulse | None:
        """The pulse of a round, or None until its time has come."""
        if published_at(DEVELOPMENT, round_number) > self.clock():
            return None
        return development_pulse(round_number)
