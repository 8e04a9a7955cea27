"""All state machines of the gateway, as tables.

A machine is a dictionary from (state, event) to the next state; whatever is not in it is illegal. Time is an event
that the sweeper brings ("lease_expired", "window_passed"); nothing here reads a clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class IllegalTransition(Exception):
    """The event does not apply in this state: a bug, or a race that the caller must resolve by reading again."""

    def __init__(self, machine: str, state: str, event: str) -> None:
        super().__init__(f"{machine}: {event} does not apply in state {state}")
        self.machine = machine
        self.state = state
        self.event = event


class UploadState(StrEnum):
    """States of an upload: bytes on their way to becoming a file."""

    RECEIVING = "receiving"
    STORED = "stored"  # the file exists
    ABANDONED = "abandoned"  # nothing was kept


class OrderState(StrEnum):
    """States of an order; a batch's status is a function of it (BATCH_STATUS)."""

    QUOTED = "quoted"
    RESERVED = "reserved"  # funds held; waiting for the beacon round that fixes the draws
    QUEUED = "queued"  # tasks may be leased
    RUNNING = "running"  # at least one task was leased
    EXPORTING = "exporting"  # every task is settled
    EXPIRING = "expiring"  # the window passed; what was verified is being exported
    CANCELLING = "cancelling"  # the customer cancelled; what was verified is being exported
    DELIVERED = "delivered"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"


class TaskState(StrEnum):
    """States of a task: a range of samples of one line."""

    QUEUED = "queued"
    LEASED = "leased"
    SUBMITTED = "submitted"
    ACCEPTED = "accepted"
    FAILED = "failed"
    CANCELLED = "cancelled"


class SubmissionState(StrEnum):
    """States of a miner's claim on a task; rows are kept whatever becomes of them."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    DROPPED = "dropped"  # its task was cancelled before a verdict
    REVOKED = "revoked"  # accepted, then its miner was suspended before delivery


class AuditState(StrEnum):
    """States of an audit of one submission by one validator."""

    PENDING = "pending"
    ASSIGNED = "assigned"
    JUDGED = "judged"
    DROPPED = "dropped"


class TransferState(StrEnum):
    """States of a ledger transfer."""

    PENDING = "pending"
    POSTED = "posted"
    VOIDED = "voided"


class MinerState(StrEnum):
    """Standing of a miner's hotkey."""

    ACTIVE = "active"
    SUSPENDED = "suspended"


@dataclass(frozen=True)
class Machine:
    """A named table of transitions."""

    name: str
    initial: str
    table: Mapping[tuple[str, str], str]

    @property
    def states(self) -> frozenset[str]:
        """Every state that the table names."""
        return frozenset({self.initial, *(state for state, _ in self.table), *self.table.values()})

    @property
    def events(self) -> frozenset[str]:
        """Every event that the table names."""
        return frozenset(event for _, event in self.table)

    @property
    def final_states(self) -> frozenset[str]:
        """States that no event leaves."""
        return self.states - {state for state, _ in self.table}


_O, _T, _S, _A, _X, _M, _U = OrderState, TaskState, SubmissionState, AuditState, TransferState, MinerState, UploadState

ORDER = Machine(
    "order",
    _O.QUOTED,
    {
        (_O.QUOTED, "reserve"): _O.RESERVED,
        (_O.RESERVED, "randomness_fixed"): _O.QUEUED,
        (_O.RESERVED, "cancel"): _O.CANCELLED,
        (_O.RESERVED, "window_passed"): _O.EXPIRED,
        (_O.QUEUED, "first_lease"): _O.RUNNING,
        (_O.QUEUED, "cancel"): _O.CANCELLED,
        (_O.QUEUED, "window_passed"): _O.EXPIRED,
        (_O.RUNNING, "all_settled"): _O.EXPORTING,
        (_O.RUNNING, "cancel"): _O.CANCELLING,
        (_O.RUNNING, "window_passed"): _O.EXPIRING,
        (_O.EXPORTING, "exported"): _O.DELIVERED,
        (_O.EXPIRING, "exported"): _O.EXPIRED,
        (_O.CANCELLING, "exported"): _O.CANCELLED,
        (_O.EXPORTING, "fail"): _O.FAILED,  # nothing can ever be delivered
        (_O.EXPIRING, "fail"): _O.FAILED,
        (_O.CANCELLING, "fail"): _O.FAILED,
    },
)

TASK = Machine(
    "task",
    _T.QUEUED,
    {
        (_T.QUEUED, "lease"): _T.LEASED,
        (_T.QUEUED, "cancel"): _T.CANCELLED,
        (_T.LEASED, "lease_expired"): _T.QUEUED,
        (_T.LEASED, "release"): _T.QUEUED,
        (_T.LEASED, "submit"): _T.SUBMITTED,
        (_T.LEASED, "refuse"): _T.QUEUED,  # the submission broke a structural rule
        (_T.LEASED, "give_up"): _T.FAILED,
        (_T.LEASED, "cancel"): _T.CANCELLED,
        # A late answer to a lease that expired is still worth having while nobody else holds the task.
        (_T.QUEUED, "submit"): _T.SUBMITTED,
        (_T.SUBMITTED, "accept"): _T.ACCEPTED,
        (_T.SUBMITTED, "reject"): _T.QUEUED,
        (_T.SUBMITTED, "give_up"): _T.FAILED,
        (_T.SUBMITTED, "cancel"): _T.CANCELLED,
        (_T.ACCEPTED, "revoke"): _T.QUEUED,
    },
)

SUBMISSION = Machine(
    "submission",
    _S.PENDING,
    {
        (_S.PENDING, "accept"): _S.ACCEPTED,
        (_S.PENDING, "reject"): _S.REJECTED,
        (_S.PENDING, "drop"): _S.DROPPED,
        (_S.ACCEPTED, "revoke"): _S.REVOKED,
    },
)

AUDIT = Machine(
    "audit",
    _A.PENDING,
    {
        (_A.PENDING, "assign"): _A.ASSIGNED,
        (_A.PENDING, "drop"): _A.DROPPED,
        (_A.ASSIGNED, "time_out"): _A.PENDING,
        (_A.ASSIGNED, "judge"): _A.JUDGED,
        (_A.ASSIGNED, "drop"): _A.DROPPED,
    },
)

UPLOAD = Machine(
    "upload",
    _U.RECEIVING,
    {(_U.RECEIVING, "store"): _U.STORED, (_U.RECEIVING, "abandon"): _U.ABANDONED},
)

TRANSFER = Machine(
    "transfer",
    _X.PENDING,
    {(_X.PENDING, "post"): _X.POSTED, (_X.PENDING, "void"): _X.VOIDED},
)

MINER = Machine(
    "miner",
    _M.ACTIVE,
    {(_M.ACTIVE, "suspend"): _M.SUSPENDED, (_M.SUSPENDED, "reinstate"): _M.ACTIVE},
)

MACHINES: tuple[Machine, ...] = (UPLOAD, ORDER, TASK, SUBMISSION, AUDIT, TRANSFER, MINER)

BATCH_STATUS: Mapping[str, str] = {
    _O.RESERVED: "validating",
    _O.QUEUED: "validating",
    _O.RUNNING: "in_progress",
    _O.EXPORTING: "finalizing",
    _O.EXPIRING: "finalizing",
    _O.CANCELLING: "cancelling",
    _O.DELIVERED: "completed",
    _O.EXPIRED: "expired",
    _O.CANCELLED: "cancelled",
    _O.FAILED: "failed",
}
"""OpenAI's status of a batch, for every order state but "quoted" (a quote is not a batch)."""


def advance(machine: Machine, state: str, event: str) -> str:
    """The state that event leads to.

    Raises:
        IllegalTransition: when the table has no such pair.
    """
    try:
        return machine.table[(state, event)]
    except KeyError:
        raise IllegalTransition(machine.name, state, event) from None
