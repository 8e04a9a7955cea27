"""Evidence about a claim: one forgiveness radius a token, coded in one byte, packed by runs. SPEC.md §9."""

import base64
import binascii
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.draw import gumbel, scale
from protocol.errors import RemoteProtocolError
from protocol.sampling import Sampling

CODES_PER_OCTAVE = 8
SMALLEST_RADIUS = 2.0**-20
LARGEST_RADIUS = 64.0
UNREACHABLE = 255
CLIP_RADIUS = 0.3

Scaled = NDArray[np.float64]


def is_kept(scaled: Scaled, token: int, sampling: Sampling) -> bool:
    """Whether min-p, top-k and top-p leave the token; equal to draw.kept_mask at that token, without a sort."""
    value, top = scaled[token], scaled.max()
    kept = scaled
    if sampling.min_p > 0:
        bound = top + math.log(sampling.min_p)
        if value < bound:
            return False
        kept = kept[kept >= bound]
    if 0 < sampling.top_k < len(kept):
        bound = np.partition(kept, len(kept) - sampling.top_k)[len(kept) - sampling.top_k]
        if value < bound:
            return False
        kept = kept[kept >= bound]
    if sampling.top_p < 1:
        weights = np.exp(kept - top)
        return bool(weights[kept > value].sum() < sampling.top_p * weights.sum())
    return True


def _can_be_kept(scaled: Scaled, token: int, error: float, sampling: Sampling) -> bool:
    """Whether some error within ±error puts the token into the kept set.

    Best for it: itself raised, whatever stays above it lowered, the rest raised up to its own height (which adds to
    the mass that top-p divides by and pushes nothing above it).
    """
    own = scaled[token] + error
    moved = np.where(scaled - error > own, scaled - error, np.minimum(scaled + error, own))
    moved[token] = own
    return is_kept(moved, token, sampling)


def _can_be_dropped(scaled: Scaled, token: int, error: float, sampling: Sampling) -> bool:
    """Whether some error within ±error pushes the token out of the kept set.

    Best for that: itself lowered, whatever can come above it raised, the rest lowered.
    """
    own = scaled[token] - error
    moved = np.where(scaled + error > own, scaled + error, scaled - error)
    moved[token] = own
    return not is_kept(moved, token, sampling)


def _truncates(sampling: Sampling) -> bool:
    return sampling.min_p > 0 or sampling.top_k > 0 or sampling.top_p < 1


def _forgives(scaled: Scaled, noise: Scaled, claimed: int, error: float, sampling: Sampling) -> bool:
    """Whether errors of ±error on scaled logits could have made the claimed token the draw."""
    if not _can_be_kept(scaled, claimed, error, sampling):
        return False
    scores = scaled + noise
    rivals = np.flatnonzero(scores - error > scores[claimed] + error)
    if not len(rivals):
        return True
    # The most probable rival is the hardest to drop: whatever drops it has room to drop every less probable one.
    return _can_be_dropped(scaled, int(rivals[scaled[rivals].argmax()]), error, sampling)


def forgiveness_radius(logits: NDArray[np.float32], seed: int, claimed: int, sampling: Sampling) -> float:
    """The smallest uniform error on raw logits that explains the claimed token.

    Zero is not tested for: the caller knows whether the claim is the draw. Full support has the closed form
    T/2 · (best score − claimed score); under truncation the radius is bisected to 1/8 of a code.

    Args:
        logits: [V] raw float32 logits over the true vocabulary.
        seed: 64-bit position seed.
        claimed: the claimed token, not the draw.
        sampling: temperature and truncation.

    Returns:
        A radius in units of raw logits, at least SMALLEST_RADIUS; inf beyond LARGEST_RADIUS.
    """
    scaled = scale(logits, sampling).astype(np.float64)
    noise = gumbel(seed, np.arange(len(scaled)))
    if not _truncates(sampling):
        scores = scaled + noise
        radius = float(scores.max() - scores[claimed]) / 2 * sampling.temperature
        return max(radius, SMALLEST_RADIUS) if radius <= LARGEST_RADIUS else math.inf
    high = SMALLEST_RADIUS
    while not _forgives(scaled, noise, claimed, high / sampling.temperature, sampling):
        high *= 2
        if high > LARGEST_RADIUS:
            return math.inf
    if high == SMALLEST_RADIUS:
        return high
    low = high / 2
    for _ in range(6):
        middle = math.sqrt(low * high)
        if _forgives(scaled, noise, claimed, middle / sampling.temperature, sampling):
            high = middle
        else:
            low = middle
    return high


def encode_radius(radius: float) -> int:
    """One byte: 0 for exactly 0, 1…254 in eighths of an octave from 2⁻²⁰ rounded up, 255 for inf."""
    if radius == 0:
        return 0
    if math.isinf(radius):
        return UNREACHABLE
    steps = math.ceil(CODES_PER_OCTAVE * math.log2(radius / SMALLEST_RADIUS) - 1e-9)
    return 1 + min(max(steps, 0), 253)


def decode_radius(code: int) -> float:
    """The upper edge of a code's interval."""
    if code == 0:
        return 0.0
    if code == UNREACHABLE:
        return math.inf
    return float(SMALLEST_RADIUS * 2.0 ** ((code - 1) / CODES_PER_OCTAVE))


_DECODED = np.array([decode_radius(code) for code in range(256)])


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def pack_codes(codes: Sequence[int]) -> str:
    """Base64 of alternating (varint length of a run of zeros, one nonzero code); the last run stands alone."""
    out, run = bytearray(), 0
    for code in codes:
        if code == 0:
            run += 1
        else:
            out += _varint(run)
            out.append(code)
            run = 0
    out += _varint(run)
    return base64.b64encode(bytes(out)).decode()


def unpack_codes(text: str, length: int) -> bytes:
    """The inverse of pack_codes for a sample of the given number of tokens.

    Raises:
        RemoteProtocolError: malformed_evidence, when the text is not the packing of exactly that many codes. Nothing
            longer than length is ever built.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RemoteProtocolError("malformed_evidence", "radius codes are not base64") from error
    out, at = bytearray(), 0
    while at < len(data):
        run, shift = 0, 0
        while at < len(data) and data[at] & 0x80 and shift < 28:
            run |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
        if at == len(data):
            break
        run |= (data[at] & 0x7F) << shift
        at += 1
        if len(out) + run + (at < len(data)) > length:
            break
        out += bytes(run)
        if at < len(data):
            out.append(data[at])
            at += 1
    if len(out) != length or pack_codes(out) != text:
        raise RemoteProtocolError("malformed_evidence", f"radius codes do not cover {length} tokens")
    return bytes(out)


@dataclass(frozen=True)
class SampleStatistics:
    """What a sample's codes add up to; radii in units of raw logits."""

    tokens: int
    matches: int
    largest_radius: float
    mean_clipped_radius: float


def statistics(codes: bytes) -> SampleStatistics:
    """Statistics of one sample's radius codes (at least one)."""
    radii = _DECODED[np.frombuffer(codes, dtype=np.uint8)]
    return SampleStatistics(
        tokens=len(radii),
        matches=int((radii == 0).sum()),
        largest_radius=float(radii.max()),
        mean_clipped_radius=float(np.minimum(radii, CLIP_RADIUS).mean()),
    )
