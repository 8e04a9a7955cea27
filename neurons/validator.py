"""The validator's composition root."""

import asyncio
import logging

import aiohttp
import torch

from neurons.chain import load_signer
from neurons.client import SignedClient
from neurons.hub import open_hub
from neurons.lifecycle import Ready
from neurons.telemetry import metrics_page
from neurons.weights import engine_name, load_model
from protocol.messages import AuditAssignment, SampleEvidence
from validator.auditor import Auditor
from validator.forward import TeacherForced
from validator.replay import replay
from validator.settings import ValidatorSettings

log = logging.getLogger("reliquary.validator")

METRICS_HOST = "127.0.0.1"


async def run(settings: ValidatorSettings, stop: asyncio.Event, ready: Ready) -> None:
    """Audit until stop is set; the running audit is finished."""
    signer = load_signer(settings.hotkey_file)
    torch.set_num_threads(settings.threads)
    hub = open_hub(settings.hub_directory, settings.hub_cache)
    snapshot = await hub.snapshot(settings.model.repo, settings.model.revision)
    model = await asyncio.to_thread(load_model, snapshot, settings.device)

    def replay_assignment(assignment: AuditAssignment) -> tuple[SampleEvidence, ...]:
        return replay(assignment, TeacherForced(model, assignment.model.vocab_size, settings.rows_per_chunk))

    async with aiohttp.ClientSession() as session:
        client = SignedClient(session, settings.gateway_url, signer, settings.gateway_hotkey)
        auditor = Auditor(client, replay_assignment, signer, settings, engine_name(model))
        with metrics_page(auditor.metrics.registry, METRICS_HOST, settings.metrics_port):
            log.info("auditing", extra={"action": "start", "hotkey": signer.ss58_address})
            ready()
            await auditor.run(stop)
