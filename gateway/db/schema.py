"""The tables: the durable specification of the gateway.

Times are Unix seconds, money is integer micro-USD, ids are opaque text. State columns are checked against the
machines of gateway/core/states.py, so an unknown state cannot be stored.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from gateway.core import states

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _state(machine: states.Machine) -> tuple[Column[str], CheckConstraint]:
    names = ", ".join(f"'{name}'" for name in sorted(machine.states))
    return Column("state", String(16), nullable=False), CheckConstraint(f"state IN ({names})", name="state")


accounts = Table(
    "accounts",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("name", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("orders_allowed_at", BigInteger),  # null: the account may not order yet
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("account_id", ForeignKey("accounts.id"), nullable=False),
    Column("key_sha256", String(64), nullable=False, unique=True),  # the key itself is never stored
    Column("scopes", JSON, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("revoked_at", BigInteger),
)

uploads = Table(
    "uploads",
    metadata,
    Column("id", String(64), primary_key=True),  # the id of the file that it becomes
    Column("account_id", ForeignKey("accounts.id"), nullable=False),
    *_state(states.UPLOAD),
    Column("blob_key", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "state", "created_at"),
)

files = Table(
    "files",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("account_id", ForeignKey("accounts.id"), nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", String(32), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("blob_key", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("deleted_at", BigInteger),
    CheckConstraint("bytes >= 0", name="bytes"),
    Index(None, "account_id", "created_at", "id"),
)

orders = Table(
    "orders",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("account_id", ForeignKey("accounts.id"), nullable=False),
    *_state(states.ORDER),
    Column("endpoint", String(32), nullable=False),
    Column("input_file_id", ForeignKey("files.id"), nullable=False),
    Column("completion_window", String(8), nullable=False),
    Column("metadata", JSON),  # exactly as it was sent
    Column("model_spec", JSON, nullable=False),  # protocol.models.ModelSpec
    Column("model_repo", Text, nullable=False),
    Column("model_revision", String(40), nullable=False),
    Column("sampling", JSON, nullable=False),  # protocol.sampling.Sampling
    Column("prompts_blob_key", Text, nullable=False),  # encode_token_ids of every usable line, one after another
    Column("total_lines", Integer, nullable=False),
    Column("refused_lines", Integer, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("pricing", JSON, nullable=False),  # gateway.core.pricing.Quote
    Column("price_micro", BigInteger, nullable=False),
    Column("refunded_micro", BigInteger),  # set when the order ends
    Column("completed_lines", Integer),  # lines that have all their samples; set when the order ends
    Column("accepted_samples", BigInteger),  # verified and delivered; set when the order ends
    Column("completion_tokens", BigInteger),  # of these; set when the order ends
    Column("beacon_round", BigInteger),  # the round that will fix the randomness; null with a seed
    Column("randomness", LargeBinary),  # protocol.draw randomness bytes; null until fixed
    Column("output_file_id", ForeignKey("files.id")),
    Column("error_file_id", ForeignKey("files.id")),
    Column("output_expires_after_seconds", BigInteger),
    Column("failure_code", String(64)),
    Column("failure_message", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("in_progress_at", BigInteger),
    Column("finalizing_at", BigInteger),
    Column("completed_at", BigInteger),
    Column("failed_at", BigInteger),
    Column("expired_at", BigInteger),
    Column("cancelling_at", BigInteger),
    Column("cancelled_at", BigInteger),
    CheckConstraint("price_micro >= 0", name="price"),
    CheckConstraint("refunded_micro BETWEEN 0 AND price_micro", name="refund"),
    CheckConstraint("refused_lines BETWEEN 0 AND total_lines", name="lines"),
    Index(None, "account_id", "created_at", "id"),
    Index(None, "state", "expires_at"),
)

lines = Table(
    "lines",
    metadata,
    Column("order_id", ForeignKey("orders.id"), primary_key=True),
    Column("line_number", Integer, primary_key=True),  # physical, from 1
    Column("custom_id", Text),  # null when the line had none that could be read
    Column("prompt_offset", BigInteger),  # in tokens, into prompts_blob_key; null for a refused line
    Column("prompt_tokens", Integer),
    Column("refusal_code", String(64)),
    Column("refusal_message", Text),
    CheckConstraint("(refusal_code IS NULL) = (prompt_offset IS NOT NULL)", name="fate"),
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("order_id", ForeignKey("orders.id"), nullable=False),
    Column("line_number", Integer, nullable=False),
    Column("first_sample", Integer, nullable=False),
    Column("sample_count", Integer, nullable=False),
    *_state(states.TASK),
    Column("attempts", Integer, nullable=False),  # rejected or refused submissions so far
    Column("miner", String(64)),  # who holds the lease or made the submission
    Column("lease_id", String(64)),
    Column("lease_expires_at", BigInteger),
    Column("submission_id", String(64)),  # the pending or accepted one
    UniqueConstraint("order_id", "line_number", "first_sample"),
    CheckConstraint("sample_count > 0", name="samples"),
    CheckConstraint("(state = 'leased') = (lease_expires_at IS NOT NULL)", name="lease"),
    CheckConstraint("(state IN ('submitted', 'accepted')) = (submission_id IS NOT NULL)", name="submission"),
    Index(None, "state", "lease_expires_at"),
    Index(None, "order_id", "state"),
)

task_exclusions = Table(
    "task_exclusions",
    metadata,
    Column("task_id", ForeignKey("tasks.id"), primary_key=True),
    Column("miner", String(64), primary_key=True),
)

submissions = Table(
    "submissions",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("task_id", ForeignKey("tasks.id"), nullable=False),
    Column("order_id", ForeignKey("orders.id"), nullable=False),
    Column("lease_id", String(64), nullable=False, unique=True),  # one answer a lease
    Column("miner", String(64), nullable=False),
    *_state(states.SUBMISSION),
    Column("engine", String(64), nullable=False),
    Column("token_counts", JSON, nullable=False),  # tokens of each sample, in sample order
    Column("token_ids", LargeBinary, nullable=False),  # encode_token_ids of all samples, one after another
    Column("completion_tokens", BigInteger, nullable=False),
    Column("signature", LargeBinary, nullable=False),
    Column("code", String(64)),  # verdict's reason code; null while pending
    Column("submitted_at", BigInteger, nullable=False),
    Index(None, "task_id"),
    Index(None, "miner", "state"),
)

audits = Table(
    "audits",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("submission_id", ForeignKey("submissions.id"), nullable=False),
    Column("order_id", ForeignKey("orders.id"), nullable=False),
    *_state(states.AUDIT),
    Column("validator", String(64)),
    Column("deadline_at", BigInteger),
    Column("engine", String(64)),
    Column("evidence", JSON),  # list of protocol.messages.SampleEvidence
    Column("signature", LargeBinary),
    Column("calibration_id", String(128)),
    Column("accepted", Integer),  # 1 or 0 once judged
    Column("code", String(64)),
    Column("created_at", BigInteger, nullable=False),
    CheckConstraint("(state = 'assigned') = (deadline_at IS NOT NULL)", name="deadline"),
    CheckConstraint("(state = 'judged') = (accepted IS NOT NULL)", name="verdict"),
    Index(None, "state", "deadline_at"),
    Index(None, "submission_id"),
    Index(None, "order_id", "state"),
)

miners = Table(
    "miners",
    metadata,
    Column("hotkey", String(64), primary_key=True),
    *_state(states.MINER),
    Column("first_seen_at", BigInteger, nullable=False),
    Column("suspended_until", BigInteger),
    Column("suspension_code", String(64)),
)

transfers = Table(
    "transfers",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("kind", String(16), nullable=False),  # deposit, hold
    *_state(states.TRANSFER),
    Column("account_id", ForeignKey("accounts.id"), nullable=False),
    Column("order_id", ForeignKey("orders.id")),
    Column("amount_micro", BigInteger, nullable=False),
    Column("posted_micro", BigInteger),  # what of a hold was captured
    Column("created_at", BigInteger, nullable=False),
    CheckConstraint("amount_micro >= 0", name="amount"),
    CheckConstraint("posted_micro BETWEEN 0 AND amount_micro", name="posted"),
    UniqueConstraint("order_id"),  # an order has one hold, so it cannot be reserved twice
    Index(None, "account_id"),
)

entries = Table(
    "entries",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("transfer_id", ForeignKey("transfers.id"), nullable=False),
    Column("ledger_account", String(80), nullable=False),  # core.ledger: available:…, held:…, world, revenue
    Column("amount_micro", BigInteger, nullable=False),  # the entries of a transfer sum to zero
    Column("at", BigInteger, nullable=False),
    Index(None, "ledger_account"),
    Index(None, "transfer_id"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("account_id", ForeignKey("accounts.id"), primary_key=True),
    Column("key", String(80), primary_key=True),
    Column("body_sha256", String(64), nullable=False),
    Column("order_id", ForeignKey("orders.id"), nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

quote_requests = Table(
    "quote_requests",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("account_id", ForeignKey("accounts.id"), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index(None, "account_id", "created_at"),
)

nonces = Table(
    "nonces",
    metadata,
    Column("hotkey", String(64), primary_key=True),
    Column("nonce_ns", BigInteger, primary_key=True),
    Column("seen_at", BigInteger, nullable=False),
    Index(None, "seen_at"),
)

events = Table(
    "events",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("machine", String(16), nullable=False),
    Column("subject_id", String(64), nullable=False),
    Column("event", String(32), nullable=False),
    Column("from_state", String(16)),
    Column("to_state", String(16), nullable=False),
    Column("at", BigInteger, nullable=False),
    Index(None, "subject_id"),
)
