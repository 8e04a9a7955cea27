"""Accounts and API keys; of a key only its hash is stored."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.schema import accounts, api_keys

ORDERS_WRITE = "orders:write"


@dataclass(frozen=True)
class ApiKey:
    """A key that was found: whose it is and what it may do."""

    id: str
    account_id: str
    scopes: frozenset[str]


def _hash(plaintext: str) -> str:
    return hashlib.sha256(plaintext.encode()).hexdigest()


async def create_account(conn: AsyncConnection, name: str, now: int) -> str:
    """A new account's id."""
    account_id = secrets.token_hex(12)
    await conn.execute(insert(accounts).values(id=account_id, name=name, created_at=now))
    return account_id


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
    query = select(api_keys.c.id, api_keys.c.account_id, api_keys.c.scopes).where(
        api_keys.c.key_sha256 == _hash(plaintext), api_keys.c.revoked_at.is_(None)
    )
    row = (await conn.execute(query)).first()
    return None if row is None else ApiKey(row.id, row.account_id, frozenset(row.scopes))
