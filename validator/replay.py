"""Logits and the forced draw → evidence: how far each claimed token is from being the draw."""

from collections.abc import Sequence

import numpy as np

from protocol.draw import position_seed
from protocol.evidence import encode_radius, forgiveness_radius, pack_codes
from protocol.kernels.forced_draw import forced_draw, position_seeds
from protocol.messages import AuditAssignment, AuditedSample, SampleEvidence
from validator.forward import LogitRows, TeacherForced


class _Codes:
    """The evidence of one sample as it grows."""

    def __init__(self, sample: AuditedSample) -> None:
        self.sample = sample
        self.codes: list[int] = []
        self.suppressed_eos: list[int] = []

    def finish(self) -> SampleEvidence:
        return SampleEvidence(
            sample_index=self.sample.sample_index,
            radius_codes=pack_codes(self.codes),
            suppressed_eos=tuple(self.suppressed_eos),
        )


def replay(assignment: AuditAssignment, forward: TeacherForced) -> tuple[SampleEvidence, ...]:
    """The evidence on every sample of an assignment, in its order.

    Raises:
        RemoteProtocolError: a claim that no model can be run over (TeacherForced.run).
    """
    found = [_Codes(sample) for sample in assignment.samples]
    claims = [sample.token_ids for sample in assignment.samples]
    eos = frozenset(assignment.model.eos_token_ids)
    for rows in forward.run(assignment.prompt_token_ids, claims):
        _replay_rows(rows, found[rows.claim], assignment, eos)
    return tuple(codes.finish() for codes in found)


def _replay_rows(rows: LogitRows, codes: _Codes, assignment: AuditAssignment, eos: frozenset[int]) -> None:
    """Most rows match and cost one draw; only a mismatch needs its exact radius."""
    key = bytes.fromhex(codes.sample.sample_key)
    count = rows.logits.shape[0]
    positions = range(rows.first_position, rows.first_position + count)
    seeds = position_seeds([key] * count, list(positions)).to(rows.logits.device)
    drawn: Sequence[int] = forced_draw(rows.logits, seeds, [assignment.sampling] * count).tolist()
    for row, position in enumerate(positions):
        claimed = codes.sample.token_ids[position]
        if drawn[row] == claimed:
            codes.codes.append(0)
            continue
        logits = rows.logits[row].cpu().numpy().astype(np.float32)
        radius = forgiveness_radius(logits, position_seed(key, position), claimed, assignment.sampling)
        codes.codes.append(encode_radius(radius))
        if drawn[row] in eos and claimed not in eos:
            codes.suppressed_eos.append(position)
