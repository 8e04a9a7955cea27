"""The Hugging Face engine: batched, with a KV cache, every token the forced draw. The obvious one, for any machine."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from miner.engine import DrawJob, FinishedSample
from protocol.kernels.forced_draw import forced_draw, position_seeds
from protocol.models import ModelRef

PREFILL_TOKENS = 16_384
"""Most prompt tokens of one group, padding included: bounds the memory of its prefill."""


@dataclass
class Row:
    """A sample that is being drawn."""

    job: DrawJob
    token_ids: list[int] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        """Whether the last token ended the sample."""
        ended = bool(self.token_ids) and self.token_ids[-1] in self.job.model.eos_token_ids
        return ended or len(self.token_ids) >= self.job.sampling.max_tokens


Chooser = Callable[[Tensor, Sequence[Row]], Tensor]
"""choose([B, V] float32 logits over the true vocabulary, the rows) → [B] token ids."""


def choose_forced(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """The protocol's choice: the forced draw at each row's next position."""
    seeds = position_seeds([row.job.sample_key for row in rows], [len(row.token_ids) for row in rows])
    return forced_draw(logits, seeds.to(logits.device), [row.job.sampling for row in rows])


@dataclass
class _Group:
    """Rows that run together: left-padded prompts of one length, one cache."""

    rows: list[Row]
    cache: Any
    mask: Tensor
    logits: Tensor


class HfEngine:
    """Runs one group at a time; a finished row leaves it at once, new jobs form the next group when it is empty.

    Samples of one prompt share its prefill. Groups are simple, and the forced draw makes a sample's tokens the same
    whatever the group, up to ties within the float error of the logits.
    """

    def __init__(self, model: PreTrainedModel, ref: ModelRef, max_batch: int, choose: Chooser = choose_forced) -> None:
        """Wrap a loaded model.

        Args:
            model: loaded, in eval mode.
            ref: the pinned repository and commit that it was loaded from.
            max_batch: most rows of a group.
            choose: how a token is chosen; anything but the default is for tests of cheats.
        """
        self._model = model
        self._ref = ref
        self._max_batch = max_batch
        self._choose = choose
        self._waiting: deque[DrawJob] = deque()
        self._group: _Group | None = None

    @property
    def name(self) -> str:
        """hf/ and the precision."""
        return f"hf/{str(self._model.dtype).removeprefix('torch.')}"

    @property
    def models(self) -> tuple[ModelRef, ...]:
        """The one model."""
        return (self._ref,)

    @property
    def unfinished(self) -> int:
        """Waiting and running jobs."""
        return len(self._waiting) + (len(self._group.rows) if self._group is not None else 0)

    def add(self, jobs: Sequence[DrawJob]) -> None:
        """Queue jobs for the next group."""
        self._waiting.extend(jobs)

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Forget jobs, waiting or running."""
        gone = frozenset(job_ids)
        self._waiting = deque(job for job in self._waiting if job.job_id not in gone)
        if self._group is not None:
            self._keep([at for at, row in enumerate(self._group.rows) if row.job.job_id not in gone])

    @torch.inference_mode()
    def step(self) -> list[FinishedSample]:
        """One token for every row of the group; a new group starts if there is none."""
        if self._group is None:
            if not self._waiting:
                return []
            self._group = self._start(self._next_jobs())
        group = self._group
        vocab_size = group.rows[0].job.model.vocab_size
        chosen = self._choose(group.logits[:, :vocab_size].float(), group.rows)
        for row, token in zip(group.rows, chosen.tolist(), strict=True):
            row.token_ids.append(token)
        finished = [FinishedSample(r.job.job_id, tuple(r.token_ids)) for r in group.rows if r.is_finished]
        going = [at for at, row in enumerate(group.rows) if not row.is_finished]
        self._keep(going)
        if self._group is not None:
            self._feed(self._group, chosen[going])
        return finished

    def _next_jobs(self) -> list[DrawJob]:
        jobs: list[DrawJob] = []
        longest = 0
        while self._waiting and len(jobs) < self._max_batch:
            longest = max(longest, len(self._waiting[0].prompt_token_ids))
            if jobs and longest * (len(jobs) + 1) > PREFILL_TOKENS:
                break
            jobs.append(self._waiting.popleft())
        return jobs

    def _start(self, jobs: Sequence[DrawJob]) -> _Group:
        """Prefill each distinct prompt once and give every job its row of the cache."""
        prompts = list(dict.fromkeys(job.prompt_token_ids for job in jobs))
        width = max(len(prompt) for prompt in prompts)
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        ids, mask = ids.to(self._model.device), mask.to(self._model.device)
        cache = DynamicCache(config=self._model.config)
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        rows_of = torch.tensor([prompts.index(job.prompt_token_ids) for job in jobs], device=ids.device)
        cache.reorder_cache(rows_of)
        return _Group([Row(job) for job in jobs], cache, mask[rows_of], output.logits[rows_of, -1])

    def _feed(self, group: _Group, tokens: Tensor) -> None:
        """Run the model over the tokens just chosen."""
        group.mask = torch.cat([group.mask, torch.ones_like(group.mask[:, :1])], 1)
        output = self._model(
            input_ids=tokens[:, None],
            attention_mask=group.mask,
            position_ids=group.mask.sum(1, keepdim=True) - 1,
            past_key_values=group.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        group.logits = output.logits[:, -1]

    def _keep(self, going: Sequence[int]) -> None:
        """Drop every other row of the group, or the group."""
        group = self._group
        if group is None or len(going) == len(group.rows):
            return
        if not going:
            self._group = None
            return
        at = torch.tensor(going, device=group.mask.device)
        group.cache.reorder_cache(at)
        group.rows = [group.rows[index] for index in going]
        group.mask, group.logits = group.mask[at], group.logits[at]
