"""The official Node client, which we did not write, does everything a customer does."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from customer import MODEL, REVISION
from dropping_proxy import dropping_proxy
from invariants import violations
from served import Served, served
from specification import row

NODE_FOLDER = Path(__file__).parent / "node"
CREATE = b"POST /api/openai/v1/batches "


@pytest.fixture
def open_gateway(tmp_path: Path) -> Served:
    """A gateway that lets one account order a lot."""
    with served(tmp_path, max_quotes_per_day=1000, request_burst=5000) as made:
        yield made


@row("Clients", "Node")
@row("Cases: call sequences", "iterate both lists over 250 items")
@row("Cases: call sequences", "the first answer to POST /batches is lost")
def test_the_official_node_client_walks_through_everything(open_gateway: Served) -> None:
    node = shutil.which("node")
    assert node is not None, "Node is missing: install it, then run scripts/setup again"
    world = open_gateway.world
    with dropping_proxy(world.url, CREATE) as proxy:
        arguments = [world.openai_url, f"{proxy.url}/api/openai/v1", world.api_key, MODEL, REVISION]
        command = [node, str(NODE_FOLDER / "walkthrough.mjs"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["files"], seen["batches"]) == (250, 250)
    assert proxy.dropped == 1
    assert sum(request.encode().startswith(CREATE) for request in proxy.requests) == 2
    assert open_gateway.run(violations(world.services.database)) == []
