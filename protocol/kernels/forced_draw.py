"""The forced draw over a batch, in torch and without a sort; equal to protocol.draw given equal float32 logits."""

from collections.abc import Sequence

import torch
from torch import Tensor

from protocol.draw import position_seed
from protocol.sampling import Sampling


def _signed(value: int) -> int:
    """The int64 with the bit pattern of a uint64: torch has no unsigned 64-bit arithmetic."""
    return value - 2**64 if value >= 2**63 else value


GOLDEN = _signed(0x9E3779B97F4A7C15)
MIX_1 = _signed(0xBF58476D1CE4E5B9)
MIX_2 = _signed(0x94D049BB133111EB)


def position_seeds(keys: Sequence[bytes], positions: Sequence[int]) -> Tensor:
    """[B] int64 with the bit patterns of the 64-bit position seeds."""
    return torch.tensor([_signed(position_seed(key, at)) for key, at in zip(keys, positions, strict=True)])


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: the arithmetic one with the copied sign bits cleared."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _finalise(x: Tensor) -> Tensor:
    """SplitMix64's finaliser; int64 multiplication wraps as uint64's does."""
    x = (x ^ _shift(x, 30)) * MIX_1
    x = (x ^ _shift(x, 27)) * MIX_2
    return x ^ _shift(x, 31)


def gumbel_noise(seeds: Tensor, vocab_size: int) -> Tensor:
    """[B, vocab_size] float64 noise of every token under each seed."""
    tokens = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=seeds.device) * GOLDEN
    z = _finalise(_finalise(seeds)[:, None] + tokens)
    u = (_shift(z, 11).double() + 0.5) * 2.0**-53
    return -torch.log(-torch.log(u))


def _column(values: Sequence[float], like: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=like.device)[:, None]


def _mask_truncated(scaled: Tensor, scores: Tensor, samplings: Sequence[Sampling]) -> None:
    """Put −inf at what min-p and top-k drop: min-p needs the maximum only, top-k its k-th value."""
    if any(sampling.min_p > 0 for sampling in samplings):
        logs = torch.log(_column([sampling.min_p for sampling in samplings], scaled, torch.float64))
        scores.masked_fill_(scaled < scaled.amax(1, keepdim=True) + logs, -torch.inf)
    ks = [sampling.top_k if 0 < sampling.top_k < scaled.shape[1] else 0 for sampling in samplings]
    if any(ks):
        left = scaled.masked_fill(torch.isneginf(scores), -torch.inf)
        largest = left.topk(max(ks), dim=1).values
        bounds = largest.gather(1, torch.tensor(ks, device=scaled.device).sub(1).clamp(min=0)[:, None])
        bounds.masked_fill_(_column(ks, scaled, torch.int64) == 0, -torch.inf)
        scores.masked_fill_(left < bounds, -torch.inf)


def forced_draw(logits: Tensor, seeds: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """The forced token of every row.

    Top-p is not sorted for: draw over everything that is left, test the winner's membership, and where it is out,
    everything no more probable than it is out too; mask that and repeat. Exact, ties included.

    Args:
        logits: [B, V] raw float32 logits over the true vocabulary.
        seeds: [B] from position_seeds.
        samplings: one a row; rows may differ.

    Returns:
        [B] int64 token ids.
    """
    temperatures = _column([sampling.temperature for sampling in samplings], logits, torch.float32)
    scaled = (logits.float() / temperatures).double()
    scores = scaled + gumbel_noise(seeds, logits.shape[1])
    _mask_truncated(scaled, scores, samplings)
    winners = scores.argmax(1)
    top_ps = [sampling.top_p for sampling in samplings]
    open_rows = torch.tensor([row for row, top_p in enumerate(top_ps) if top_p < 1], device=logits.device)
    if not len(open_rows):
        return winners
    weights = torch.exp(scaled - scaled.amax(1, keepdim=True)).masked_fill_(torch.isneginf(scores), 0.0)
    allowed = weights.sum(1) * _column(top_ps, logits, torch.float64)[:, 0]
    while len(open_rows):
        values = scaled[open_rows].gather(1, winners[open_rows, None])
        more_probable = (weights[open_rows] * (scaled[open_rows] > values)).sum(1)
        out = more_probable >= allowed[open_rows]
        open_rows, values = open_rows[out], values[out]
        scores[open_rows] = scores[open_rows].masked_fill(scaled[open_rows] <= values, -torch.inf)
        winners[open_rows] = scores[open_rows].argmax(1)
    return winners
