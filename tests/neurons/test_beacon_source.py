"""The development beacon tells a round only once it is due."""

from neurons.beacon import DevelopmentBeacon
from protocol.beacon import DEVELOPMENT, first_round_after, published_at, verify_pulse


async def test_a_pulse_is_told_only_once_it_is_due() -> None:
    round_number = first_round_after(DEVELOPMENT, 1000)
    due = published_at(DEVELOPMENT, round_number)
    assert await DevelopmentBeacon(lambda: due - 1).pulse(round_number) is None
    pulse = await DevelopmentBeacon(lambda: due).pulse(round_number)
    assert pulse is not None
    assert pulse.round == round_number
    assert verify_pulse(pulse)


def test_it_says_which_chain_it_is() -> None:
    assert DevelopmentBeacon(lambda: 0).chain == DEVELOPMENT
