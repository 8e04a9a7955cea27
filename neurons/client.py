"""The signed HTTP client of miners and validators: the other half of gateway/http/subnet.py.

It implements the client ports of miner/worker.py and validator/auditor.py. Every attempt is signed anew with its own
nonce, because the gateway takes a nonce once: a retry that reused it would look like a replay.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
from pydantic import BaseModel, ConfigDict, ValidationError

from protocol.errors import PeerRefused, PeerUnreachable
from protocol.messages import (
    AuditReceipt,
    AuditRequest,
    AuditResponse,
    EvidenceReport,
    LeaseList,
    LeaseListResponse,
    LeaseRequest,
    LeaseResponse,
    Message,
    Submission,
    SubmissionReceipt,
)
from protocol.params import V1
from protocol.signing import Signer, sign_request

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=BaseModel)

INFO_TARGET = "/subnet/v1/info"


class GatewayInfo(BaseModel):
    """The gateway's answer to GET /subnet/v1/info; fields that a later version adds are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    hotkey: str
    protocol_version: int


class _ErrorBody(BaseModel):
    code: str | None = None
    message: str


class _ErrorAnswer(BaseModel):
    error: _ErrorBody


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how patiently a request is tried.

    Attributes:
        attempts: tries of one request, the first included.
        first_delay_seconds: wait after the first failure; it doubles with each further one.
        longest_delay_seconds: no wait is longer, whatever Retry-After asks for.
        timeout_seconds: how long one try may take.
        sleep: waits between tries.
    """

    attempts: int = 6
    first_delay_seconds: float = 0.25
    longest_delay_seconds: float = 30.0
    timeout_seconds: float = 60.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def delay_seconds(self, failures: int, retry_after_seconds: float | None) -> float:
        """The wait after this many failures (from 1)."""
        wanted = self.first_delay_seconds * 2 ** (failures - 1) if retry_after_seconds is None else retry_after_seconds
        return min(wanted, self.longest_delay_seconds)


DEFAULT_POLICY = RetryPolicy()


class _TryAgain(Exception):
    """One try failed in a way that a later one may not."""

    def __init__(self, reason: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class SignedClient:
    """A gateway's subnet API, as one hotkey.

    Every method raises PeerRefused when the gateway says no and PeerUnreachable when no try of the policy was answered.

    Args:
        session: an open aiohttp session; the caller closes it.
        base_url: scheme, host and port of the gateway.
        signer: the hotkey that requests are signed with.
        gateway_hotkey: the hotkey that requests are addressed to, or None to take the one that the gateway names.
            A configured one is the safe choice: a gateway that names another is refused.
        policy: retries.
        clock_ns: Unix nanoseconds, for nonces.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base_url: str,
        signer: Signer,
        gateway_hotkey: str | None = None,
        *,
        policy: RetryPolicy = DEFAULT_POLICY,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._session = session
        self._base_url = base_url.rstrip("/")
        self._signer = signer
        self._configured_hotkey = gateway_hotkey
        self._receiver: str | None = None
        self._policy = policy
        self._clock_ns = clock_ns
        self._last_nonce_ns = 0

    async def info(self) -> GatewayInfo:
        """What the gateway says of itself; checked against the configured hotkey and our protocol version."""
        info = await self._retry(INFO_TARGET, None, GatewayInfo)
        if self._configured_hotkey not in (None, info.hotkey):
            raise PeerRefused(
                "wrong_gateway", f"the gateway is {info.hotkey}, not {self._configured_hotkey} as configured", 0
            )
        if info.protocol_version != V1.version:
            raise PeerRefused(
                "wrong_protocol", f"the gateway speaks version {info.protocol_version}, this is {V1.version}", 0
            )
        self._receiver = info.hotkey
        return info

    async def lease(self, request: LeaseRequest) -> LeaseResponse:
        """Take tasks."""
        return await self._post("leases", request, LeaseResponse)

    async def heartbeat(self, leases: LeaseList) -> LeaseListResponse:
        """Keep leases; the answer names those still held."""
        return await self._post("leases/heartbeat", leases, LeaseListResponse)

    async def release(self, leases: LeaseList) -> LeaseListResponse:
        """Hand leases back."""
        return await self._post("leases/release", leases, LeaseListResponse)

    async def submit(self, submission: Submission) -> SubmissionReceipt:
        """Submit a finished task; sending the same one again gives the same receipt."""
        return await self._post("submissions", submission, SubmissionReceipt)

    async def audits(self, request: AuditRequest) -> AuditResponse:
        """Take claims to audit."""
        return await self._post("audits", request, AuditResponse)

    async def report(self, report: EvidenceReport) -> AuditReceipt:
        """Report evidence; sending the same again gives the same receipt."""
        return await self._post("evidence", report, AuditReceipt)

    async def _post(self, route: str, message: Message, answer: type[Answer]) -> Answer:
        if self._receiver is None:
            await self.info()
        return await self._retry(f"/subnet/v1/{route}", message.model_dump_json().encode(), answer)

    async def _retry(self, target: str, body: bytes | None, answer: type[Answer]) -> Answer:
        failures = 0
        while True:
            try:
                return await self._try_once(target, body, answer)
            except _TryAgain as error:
                failures += 1
                if failures >= self._policy.attempts:
                    raise PeerUnreachable(f"{target}: {error.reason}") from error
                delay_seconds = self._policy.delay_seconds(failures, error.retry_after_seconds)
                logger.info(
                    "A request to the gateway failed and will be tried again.",
                    extra={"action": "retry", "target": target, "reason": error.reason, "delay_seconds": delay_seconds},
                )
                await self._policy.sleep(delay_seconds)

    async def _try_once(self, target: str, body: bytes | None, answer: type[Answer]) -> Answer:
        method = "GET" if body is None else "POST"
        headers = {} if body is None else {"Content-Type": "application/json", **self._signature(target, body)}
        timeout = aiohttp.ClientTimeout(total=self._policy.timeout_seconds)
        try:
            async with self._session.request(
                method, self._base_url + target, data=body, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _TryAgain(f"{type(error).__name__}: {error}") from error
        if response.status == 200:
            return _parse_answer(content, answer)
        raise _refusal(response.status, response.headers.get("Retry-After"), content)

    def _signature(self, target: str, body: bytes) -> dict[str, str]:
        if self._receiver is None:
            raise AssertionError("a request was signed before the gateway's hotkey was known")
        self._last_nonce_ns = max(self._clock_ns(), self._last_nonce_ns + 1)
        return sign_request(
            self._signer,
            method="POST",
            target=target,
            body=body,
            receiver=self._receiver,
            nonce_ns=self._last_nonce_ns,
        )


def _parse_answer(content: bytes, answer: type[Answer]) -> Answer:
    try:
        return answer.model_validate_json(content)
    except ValidationError as error:
        raise PeerUnreachable(f"what answers is not a gateway: no {answer.__name__}") from error


def _refusal(status: int, retry_after: str | None, content: bytes) -> Exception:
    """The exception for an answer other than 200."""
    retry_after_seconds = float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
    if status >= 500 or (status == 429 and retry_after_seconds is not None):
        return _TryAgain(f"HTTP {status}", retry_after_seconds)
    try:
        error = _ErrorAnswer.model_validate_json(content).error
    except ValidationError:
        return PeerRefused("unreadable_refusal", f"HTTP {status} without a reason", status)
    return PeerRefused(error.code or "refused", error.message, status)
