"""Rows of quotes: how many an account has asked for lately."""

import secrets

from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.schema import quote_requests


async def insert_quote_request(conn: AsyncConnection, account_id: str, now: int) -> str:
    """Note that the account asks for a quote; the row's id."""
    request_id = secrets.token_hex(12)
    await conn.execute(insert(quote_requests).values(id=request_id, account_id=account_id, created_at=now))
    return request_id


async def delete_quote_request(conn: AsyncConnection, request_id: str) -> None:
    """Take it back."""
    await conn.execute(delete(quote_requests).where(quote_requests.c.id == request_id))


async def quotes_since(conn: AsyncConnection, account_id: str, since: int) -> tuple[int, int | None]:
    """How many quotes the account asked for after a time, and when the first of them was."""
    columns = quote_requests.c
    query = select(func.count(), func.min(columns.created_at)).where(
        columns.account_id == account_id, columns.created_at > since
    )
    count, first = (await conn.execute(query)).one()
    return int(count), first


async def forget_quotes(conn: AsyncConnection, before: int) -> None:
    """Drop what counts no more."""
    await conn.execute(delete(quote_requests).where(quote_requests.c.created_at < before))
