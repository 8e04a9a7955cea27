"""Prompt ids and sample keys of tasks: read and computed when needed, never stored twice."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.db.orders import OrderRecord
from gateway.db.tasks import PromptRecord, TaskRecord
from gateway.services import Services
from protocol.draw import SampleIdentity, sample_keys
from protocol.encoding import BYTES_PER_TOKEN_ID, decode_token_ids
from protocol.models import ModelRef, ModelSpec
from protocol.sampling import Sampling


@dataclass(frozen=True)
class Prompted:
    """A task with what its draws depend on."""

    task: TaskRecord
    model: ModelSpec
    sampling: Sampling
    prompt_token_ids: list[int]
    sample_keys: list[bytes]


def blob_key_of(order_id: str) -> str:
    """Where the prompt ids of an order's usable lines lie, one line after another."""
    return f"prompts/{order_id}"


async def prompted(
    services: Services, order: OrderRecord, tasks: Sequence[TaskRecord], prompts: Sequence[PromptRecord]
) -> list[Prompted]:
    """Read the prompts of tasks of one order and compute their sample keys.

    Args:
        services: whose blob store holds the prompts.
        order: the order, its randomness fixed.
        tasks: tasks of that order.
        prompts: the prompt record of each task's line, in the tasks' order.
    """
    if order.randomness is None:
        raise LookupError(f"the draws of order {order.id} are not fixed yet")
    lines = {prompt.line_number: prompt for prompt in prompts}
    ranges = list(lines.values())
    chunks = await services.blobs.get_ranges(
        order.prompts_blob_key,
        [BYTES_PER_TOKEN_ID * prompt.prompt_offset for prompt in ranges],
        [BYTES_PER_TOKEN_ID * prompt.prompt_tokens for prompt in ranges],
    )
    ids = {prompt.line_number: decode_token_ids(chunk) for prompt, chunk in zip(ranges, chunks, strict=True)}
    model, sampling = ModelSpec.model_validate(order.model_spec), Sampling.model_validate(order.sampling)
    found = []
    for task in tasks:
        identity = SampleIdentity(
            model=ModelRef(repo=model.repo, revision=model.revision),
            endpoint=order.endpoint,
            sampling=sampling,
            prompt_token_ids=ids[task.line_number],
            custom_id=lines[task.line_number].custom_id,
            randomness=order.randomness,
        )
        keys = sample_keys(identity, task.sample_indices)
        found.append(Prompted(task, model, sampling, ids[task.line_number], keys))
    return found
