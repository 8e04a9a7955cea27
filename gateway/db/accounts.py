"""Accounts and API keys; of a key only its hash is stored."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.schema import accounts, api_keys

ORDERS_WRITE = "orders:write"


class Access(StrEnum):
    """What a new account may do."""

    NONE = "none"
    ORDERS = "orders"


@dataclass(frozen=True)
class ApiKey:
    """A key that was found: whose it is and what it may do.

    Attributes:
        orders_allowed_at: since when its account may order; None while it may not.
    """

    id: str
    account_id: str
    scopes: frozenset[str]
    orders_allowed_at: int | None


def _hash(plaintext: str) -> str:
    return hashlib.sha256(plaintext.encode()).hexdigest()


async def create_account(conn: AsyncConnection, name: str, now: int) -> str:
    """A new account's id; it may not order before allow_orders."""
    account_id = secrets.token_hex(12)
    await conn.execute(insert(accounts).values(id=account_id, name=name, created_at=now))
    return account_id


async def allow_orders(conn: AsyncConnection, account_id: str, now: int) -> bool:
    """Let an account order from now on; whether there is such an account."""
    change = update(accounts).where(accounts.c.id == account_id)
    return (await conn.execute(change.values(orders_allowed_at=now))).rowcount == 1


async def create_api_key(conn: AsyncConnection, account_id: str, scopes: Sequence[str], now: int) -> str:
    """A new key in plain text: the only time it can be seen."""
    plaintext = f"rk-{secrets.token_urlsafe(32)}"
    await conn.execute(
        insert(api_keys).values(
            id=secrets.token_hex(12),
            account_id=account_id,
            key_sha256=_hash(plaintext),
            scopes=list(scopes),
            created_at=now,
        )
    )
    return plaintext


async def find_api_key(conn: AsyncConnection, plaintext: str) -> ApiKey | None:
    """The key, unless it is unknown or revoked."""
    columns = api_keys.c.id, api_keys.c.account_id, api_keys.c.scopes, accounts.c.orders_allowed_at
    query = select(*columns).join(accounts).where(api_keys.c.key_sha256 == _hash(plaintext))
    row = (await conn.execute(query.where(api_keys.c.revoked_at.is_(None)))).first()
    return None if row is None else ApiKey(row.id, row.account_id, frozenset(row.scopes), row.orders_allowed_at)
