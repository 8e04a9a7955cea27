"""The teacher-forced pass: the model's logits at every position of a finished text, a bounded number at a time."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from protocol.errors import RemoteProtocolError


@dataclass(frozen=True)
class LogitRows:
    """Logits at consecutive completion positions of one claim.

    Attributes:
        claim: index of the claim.
        first_position: completion position of the first row.
        logits: [rows, vocab_size] float32.
    """

    claim: int
    first_position: int
    logits: Tensor


class TeacherForced:
    """Runs a prompt once and each of its claims over a copy of the prompt's cache."""

    def __init__(self, model: PreTrainedModel, vocab_size: int, rows_per_chunk: int) -> None:
        """Wrap a loaded model.

        Args:
            model: loaded, in eval mode.
            vocab_size: true vocabulary; later columns of the logits are padding.
            rows_per_chunk: positions fed, and logits held, at once.
        """
        self._model = model
        self._vocab_size = vocab_size
        self._rows = rows_per_chunk

    @torch.inference_mode()
    def run(self, prompt: Sequence[int], claims: Sequence[Sequence[int]]) -> Iterator[LogitRows]:
        """The logits that each claimed token was drawn from, claim by claim.

        Raises:
            RemoteProtocolError: token_out_of_range, empty_sample: a claim that must not reach a model.
        """
        for ids in (prompt, *claims):
            if not ids:
                raise RemoteProtocolError("empty_sample", "nothing to replay")
            if min(ids) < 0 or max(ids) >= self._vocab_size:
                raise RemoteProtocolError("token_out_of_range", "an id lies outside the vocabulary")
        cache = DynamicCache(config=self._model.config)
        for start in range(0, len(prompt), self._rows):
            last = self._feed(cache, prompt[start : start + self._rows], keep=1)
        for at, claim in enumerate(claims):
            yield LogitRows(at, 0, last)
            branch = copy.deepcopy(cache) if at + 1 < len(claims) else cache
            for start in range(0, len(claim) - 1, self._rows):
                fed = claim[start : min(start + self._rows, len(claim) - 1)]
                yield LogitRows(at, start + 1, self._feed(branch, fed, keep=0))

    def _feed(self, cache: Any, ids: Sequence[int], *, keep: int) -> Tensor:
        """[rows, vocab_size] logits after each of the ids, or after the last keep of them."""
        inputs = torch.tensor([list(ids)], device=self._model.device)
        output = self._model(input_ids=inputs, past_key_values=cache, use_cache=True, logits_to_keep=keep)
        logits: Tensor = output.logits[0, :, : self._vocab_size].float()
        return logits
