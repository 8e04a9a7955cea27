"""Every kind of cheat as a miner process: caught, suspended, and nothing of it delivered or charged."""

import asyncio
import signal
from pathlib import Path

import pytest
from network import running, story_lines

from neurons.cheats import CHEATS
from neurons.localnet import Plan

pytestmark = pytest.mark.acceptance

GROUPS = [sorted(CHEATS)[start::2] for start in range(2)]
"""Two networks, so that not every process starts at once."""


@pytest.mark.parametrize("kinds", GROUPS, ids=", ".join)
async def test_no_token_of_a_cheat_is_delivered_or_charged(kinds: list[str], tmp_path: Path) -> None:
    plan = Plan(0, tmp_path, miners=1, cheats=kinds, gateway_settings={"max_attempts": 50})
    lines = story_lines(40, n=2, max_tokens=48, temperature=0.9, top_p=0.9, seed=11)
    async with running(plan) as network:
        network.send("miner-1", signal.SIGSTOP)  # the cheats go first
        batch_id = await network.place(lines)
        async with asyncio.timeout(90):
            while True:
                standings = await network.miners()
                cheats = [standings.get(f"cheat-{kind}", {"state": "unseen"}) for kind in kinds]
                if all(cheat["state"] == "suspended" for cheat in cheats):
                    break
                await asyncio.sleep(0.2)
        network.send("miner-1", signal.SIGCONT)
        batch = await network.wait(batch_id)
        assert batch.status == "completed"
        assert batch.request_counts.completed == 40
        standings = await network.miners()
        for kind in kinds:
            claims = standings[f"cheat-{kind}"]["submissions"]
            assert claims.get("rejected", 0) > 0
            assert claims.get("accepted", 0) == 0, f"{kind} got something through"
        assert standings["miner-1"]["submissions"] == {"accepted": 40}
        delivered = await network.output(batch)
        again = await network.wait(await network.place(lines))
        assert await network.output(again) == delivered, "what was delivered is what an honest miner draws"
        order = await network.get(f"/api/v1/dataset-orders/{batch_id.removeprefix('batch_')}")
        rerun = await network.get(f"/api/v1/dataset-orders/{again.id.removeprefix('batch_')}")
        assert order["refunded_usd"] == rerun["refunded_usd"], "the cheats' tokens cost the customer nothing"
