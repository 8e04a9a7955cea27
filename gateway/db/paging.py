"""Keyset pages over an account's rows, ordered by (created_at, id)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import RowMapping, Select, Table, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

Order = Literal["asc", "desc"]


@dataclass(frozen=True)
class Page:
    """A page of a list.

    Attributes:
        limit: most rows.
        after: id of the last row of the page before; None for the first page.
        order: by creation, ties by id.
        purpose: for files: only those of this purpose.
    """

    limit: int
    after: str | None = None
    order: Order = "desc"
    purpose: str | None = None


class UnknownCursor(Exception):
    """The account has no row with the id that a page should begin after."""


async def fetch_page(
    conn: AsyncConnection, table: Table, account_id: str, page: Page, query: Select[Any]
) -> Sequence[RowMapping]:
    """The rows of a page; query selects from the table and may filter further.

    Raises:
        UnknownCursor: see there.
    """
    key = tuple_(table.c.created_at, table.c.id)
    query = query.where(table.c.account_id == account_id)
    if page.after is not None:
        owned = select(table.c.created_at, table.c.id).where(table.c.account_id == account_id, table.c.id == page.after)
        start = (await conn.execute(owned)).first()
        if start is None:
            raise UnknownCursor(page.after)
        bound = tuple_(start.created_at, start.id)
        query = query.where(key < bound if page.order == "desc" else key > bound)
    columns = (table.c.created_at, table.c.id)
    ordering = [column.desc() if page.order == "desc" else column.asc() for column in columns]
    found = await conn.execute(query.order_by(*ordering).limit(page.limit))
    return list(found.mappings())
