"""Public randomness: drand quicknet rounds and their verification, and the development beacon.

quicknet (https://docs.drand.love) publishes round r at genesis + 3·(r − 1) seconds; its pulse is a BLS signature that
nobody can know before.
"""

from dataclasses import dataclass

import drand_verify

from protocol.encoding import digest


@dataclass(frozen=True)
class Chain:
    """A beacon: its name, the Unix second of its first round and the seconds between rounds."""

    name: str
    genesis_unix: int
    period_seconds: int


@dataclass(frozen=True)
class Pulse:
    """One round's value: 48 bytes for quicknet, 32 for the development beacon."""

    chain: str
    round: int
    signature: bytes


QUICKNET = Chain("quicknet", genesis_unix=1_692_803_367, period_seconds=3)
DEVELOPMENT = Chain("development", genesis_unix=0, period_seconds=1)
"""No source of fairness: anybody can compute its rounds ahead. For localnet and tests only."""

CHAINS = {chain.name: chain for chain in (QUICKNET, DEVELOPMENT)}


def published_at(chain: Chain, round_number: int) -> int:
    """The Unix second at which a round (from 1) is published."""
    return chain.genesis_unix + chain.period_seconds * (round_number - 1)


def first_round_after(chain: Chain, unix_seconds: int) -> int:
    """The first round published strictly after the given second, so nobody knows it yet."""
    return max(1, (unix_seconds - chain.genesis_unix) // chain.period_seconds + 2)


def development_pulse(round_number: int) -> Pulse:
    """The development beacon's value of a round."""
    return Pulse(DEVELOPMENT.name, round_number, digest("reliquary/development-beacon/v1", round_number))


def verify_pulse(pulse: Pulse) -> bool:
    """Whether the pulse is what its chain published for its round."""
    if pulse.round < 1:
        return False
    if pulse.chain == DEVELOPMENT.name:
        return pulse == development_pulse(pulse.round)
    if pulse.chain != QUICKNET.name or len(pulse.signature) != 48:
        return False
    try:
        return bool(drand_verify.verify_quicknet(pulse.round, pulse.signature.hex()))
    except ValueError:  # not a point of the curve
        return False
