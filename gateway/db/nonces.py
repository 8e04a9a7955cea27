"""Nonces of signed requests, each taken once from each hotkey."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

# The same words on SQLite and PostgreSQL; the primary key decides between two requests at once.
_TAKE = text(
    "INSERT INTO nonces (hotkey, nonce_ns, seen_at) VALUES (:hotkey, :nonce_ns, :seen_at) ON CONFLICT DO NOTHING"
)


async def take_nonce(conn: AsyncConnection, hotkey: str, nonce_ns: int, now: int) -> bool:
    """Remember a nonce; False when this hotkey has used it before."""
    result = await conn.execute(_TAKE, {"hotkey": hotkey, "nonce_ns": nonce_ns, "seen_at": now})
    return result.rowcount == 1
