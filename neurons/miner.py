"""The miner's composition root."""

import asyncio
import logging
import time

import aiohttp
import torch

from miner.engine import Engine
from miner.hf_engine import HfEngine
from miner.settings import MinerSettings
from miner.worker import MinerWorker
from neurons.chain import load_signer
from neurons.cheats import Cheat, CheatingEngine
from neurons.client import SignedClient
from neurons.hub import open_hub
from neurons.lifecycle import Ready
from neurons.telemetry import metrics_page
from neurons.weights import load_model

log = logging.getLogger("reliquary.miner")

METRICS_HOST = "127.0.0.1"
HONEST = Cheat()


async def load_engine(settings: MinerSettings, cheat: Cheat) -> Engine:
    """The engine with its model loaded; a cheat's departs from the protocol."""
    torch.set_num_threads(settings.threads)
    hub = open_hub(settings.hub_directory, settings.hub_cache)
    repo, revision = settings.model.repo, settings.model.revision
    if cheat.repo is not None:
        repo, revision = cheat.repo, await hub.resolve_main(cheat.repo)
    snapshot = await hub.snapshot(repo, revision)
    model = await asyncio.to_thread(load_model, snapshot, settings.device)
    engine = HfEngine(model, settings.model, settings.max_batch, cheat.choose)
    return engine if cheat is HONEST else CheatingEngine(engine, cheat, settings.model)


async def run(settings: MinerSettings, stop: asyncio.Event, ready: Ready, cheat: Cheat = HONEST) -> None:
    """Mine until stop is set, then drain."""
    signer = load_signer(settings.hotkey_file)
    engine = await load_engine(settings, cheat)
    async with aiohttp.ClientSession() as session:
        client = SignedClient(session, settings.gateway_url, signer, settings.gateway_hotkey)
        worker = MinerWorker(client, engine, cheat.sign(signer), settings, time.monotonic)
        with metrics_page(worker.metrics.registry, METRICS_HOST, settings.metrics_port):
            log.info("mining", extra={"action": "start", "hotkey": signer.ss58_address, "engine": engine.name})
            ready()
            await worker.run(stop)
