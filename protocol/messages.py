"""Every message between the gateway, the miners and the validators.

All are JSON over HTTP, signed as a whole by btauth/1 (protocol/signing.py). A submission and an evidence report
also carry a signature of their own over a statement digest, because they outlive the request: anyone can later
check who claimed these tokens and who vouched for them. Unknown fields are refused.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from protocol.encoding import digest, token_ids_digest
from protocol.models import ModelRef, ModelSpec
from protocol.sampling import Sampling

TokenId = Annotated[int, Field(ge=0, lt=2**32)]
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
EngineName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._/-]{0,63}$")]
SampleKeyHex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
SignatureHex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]
Base64Text = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]*={0,2}$", max_length=2**22)]


class Message(BaseModel):
    """Base of every wire message: frozen, unknown fields refused, no coercion between types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Tokens(Message):
    token_ids: Annotated[tuple[TokenId, ...], Field(strict=False, max_length=131_072)]


# --- miner -----------------------------------------------------------------------------------------------------


class LeaseRequest(Message):
    """Ask for work: at most max_tasks tasks of any of the models."""

    models: Annotated[tuple[ModelRef, ...], Field(strict=False, min_length=1, max_length=64)]
    max_tasks: Annotated[int, Field(ge=1, le=256)]


class LeasedTask(Message):
    """Samples first_sample … first_sample + len(sample_keys) - 1 of one line, leased until lease_expires_at.

    lease_expires_at is in Unix seconds of the gateway's clock; lease_seconds is what is left of it.
    """

    task_id: Identifier
    lease_id: Identifier
    model: ModelSpec
    sampling: Sampling
    prompt_token_ids: Annotated[tuple[TokenId, ...], Field(strict=False, min_length=1)]
    first_sample: Annotated[int, Field(ge=0, lt=64)]
    sample_keys: Annotated[tuple[SampleKeyHex, ...], Field(strict=False, min_length=1)]
    lease_expires_at: int
    lease_seconds: int


class LeaseResponse(Message):
    """The leased tasks, perhaps none; ask again after retry_after_seconds when there are none."""

    tasks: Annotated[tuple[LeasedTask, ...], Field(strict=False)]
    retry_after_seconds: float


class LeaseList(Message):
    """Leases to keep alive (heartbeat) or to hand back (release)."""

    lease_ids: Annotated[tuple[Identifier, ...], Field(strict=False, min_length=1, max_length=1024)]


class LeaseListResponse(Message):
    """The leases of the request that are still held (heartbeat) or that were handed back (release)."""

    lease_ids: Annotated[tuple[Identifier, ...], Field(strict=False)]


class ClaimedSample(_Tokens):
    """The tokens a miner claims to have drawn for one sample, EOS included."""

    sample_index: Annotated[int, Field(ge=0, lt=64)]


class Submission(Message):
    """A finished task: every sample of the lease, in sample order."""

    task_id: Identifier
    lease_id: Identifier
    engine: EngineName
    samples: Annotated[tuple[ClaimedSample, ...], Field(strict=False, min_length=1, max_length=64)]
    signature: SignatureHex


class SubmissionReceipt(Message):
    """What became of a submission: "submitted" (to be audited) or "rejected" with the code of the broken rule."""

    task_id: Identifier
    status: str
    code: str | None = None


# --- validator -------------------------------------------------------------------------------------------------


class AuditRequest(Message):
    """Ask for claims to audit: at most max_audits of any of the models."""

    models: Annotated[tuple[ModelRef, ...], Field(strict=False, min_length=1, max_length=64)]
    max_audits: Annotated[int, Field(ge=1, le=256)]


class AuditedSample(_Tokens):
    """One claimed sample with the key that forces its draws."""

    sample_index: Annotated[int, Field(ge=0, lt=64)]
    sample_key: SampleKeyHex


class AuditAssignment(Message):
    """A task's claims to be replayed: samples that share one prompt."""

    audit_id: Identifier
    task_id: Identifier
    model: ModelSpec
    sampling: Sampling
    prompt_token_ids: Annotated[tuple[TokenId, ...], Field(strict=False, min_length=1)]
    samples: Annotated[tuple[AuditedSample, ...], Field(strict=False, min_length=1)]
    miner_engine: EngineName
    deadline_seconds: int


class AuditResponse(Message):
    """The assignments, perhaps none; ask again after retry_after_seconds when there are none."""

    audits: Annotated[tuple[AuditAssignment, ...], Field(strict=False)]
    retry_after_seconds: float


class SampleEvidence(Message):
    """What one teacher-forced pass showed of one sample (protocol/evidence.py).

    Attributes:
        radius_codes: base64 of the run-length encoded one-byte radius codes, one code per claimed token.
        suppressed_eos: positions at which the forced draw was an EOS and the claimed token is not one.
    """

    sample_index: Annotated[int, Field(ge=0, lt=64)]
    radius_codes: Base64Text
    suppressed_eos: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)] = ()


class EvidenceReport(Message):
    """A validator's evidence on one assignment, in the assignment's sample order."""

    audit_id: Identifier
    engine: EngineName
    samples: Annotated[tuple[SampleEvidence, ...], Field(strict=False, min_length=1, max_length=64)]
    signature: SignatureHex


class AuditReceipt(Message):
    """The verdict that the gateway drew from the evidence."""

    audit_id: Identifier
    status: str
    code: str | None = None


# --- statements that are signed on their own -------------------------------------------------------------------


def submission_statement(task_id: str, engine: str, samples: tuple[tuple[str, tuple[int, ...]], ...]) -> bytes:
    """The 32 bytes a miner signs: the task, its engine, and (sample key hex, token ids) of each sample."""
    fields: list[bytes | str] = [task_id, engine]
    for sample_key, token_ids in samples:
        fields += (bytes.fromhex(sample_key), token_ids_digest(token_ids))
    return digest("reliquary/submission/v1", *fields)


def evidence_statement(audit_id: str, engine: str, claim: bytes, samples: tuple[SampleEvidence, ...]) -> bytes:
    """The 32 bytes a validator signs: the audit, its engine, the claim's submission_statement, the evidence."""
    fields: list[bytes | str | int] = [audit_id, engine, claim]
    for sample in samples:
        fields += (
            sample.sample_index,
            sample.radius_codes,
            len(sample.suppressed_eos),
            *sample.suppressed_eos,
        )
    return digest("reliquary/evidence/v1", *fields)
