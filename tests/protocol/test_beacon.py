"""Public randomness: rounds, times and verification."""

from dataclasses import replace

import pytest
from vectors import load

from protocol.beacon import (
    DEVELOPMENT,
    QUICKNET,
    Pulse,
    development_pulse,
    first_round_after,
    published_at,
    verify_pulse,
)

VECTOR = load("beacon")[0]
PULSE = Pulse(VECTOR["chain"], VECTOR["round"], bytes.fromhex(VECTOR["signature"]))


def test_quicknets_round_1000_verifies() -> None:
    assert verify_pulse(PULSE)


@pytest.mark.parametrize(
    "pulse",
    [
        replace(PULSE, round=1001),
        replace(PULSE, round=0),
        replace(PULSE, signature=bytes(48)),
        replace(PULSE, signature=PULSE.signature[:-1] + b"\x38"),
        replace(PULSE, signature=b""),
        replace(PULSE, chain="development"),
        replace(PULSE, chain="nobody"),
        replace(development_pulse(5), round=6),
    ],
)
def test_a_pulse_with_one_fault_does_not_verify(pulse: Pulse) -> None:
    assert not verify_pulse(pulse)


def test_the_development_beacon_says_what_it_is() -> None:
    assert development_pulse(5).chain == "development"
    assert verify_pulse(development_pulse(5))


@pytest.mark.parametrize("chain", [QUICKNET, DEVELOPMENT], ids=lambda chain: chain.name)
@pytest.mark.parametrize("seconds", range(1_800_000_000, 1_800_000_007))
def test_the_round_after_a_second_is_the_first_that_is_not_published_then(chain, seconds: int) -> None:
    number = first_round_after(chain, seconds)
    assert published_at(chain, number) > seconds >= published_at(chain, number - 1)
