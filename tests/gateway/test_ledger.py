"""Money: double entry, never overdrawn, settled once."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select

from gateway.core.ledger import deposit_entries, hold_entries, settle_entries
from gateway.db import schema
from gateway.db.accounts import create_account
from gateway.db.engine import Database
from gateway.db.ledger import Balance, InsufficientBalance, balance, deposit, hold, settle
from gateway.db.transitions import StateConflict

AMOUNTS = st.integers(0, 2**60)


@given(AMOUNTS, AMOUNTS)
def test_the_entries_of_every_transfer_sum_to_zero(held: int, captured: int) -> None:
    captured = min(held, captured)
    for entries in (deposit_entries("a", held), hold_entries("a", held), settle_entries("a", held, captured)):
        assert sum(entry.amount_micro for entry in entries) == 0


@pytest.mark.parametrize("capture", [-1, 101])
def test_no_more_than_the_hold_and_no_less_than_nothing_is_captured(capture: int) -> None:
    with pytest.raises(ValueError, match=r"capture|negative"):
        settle_entries("a", 100, capture)


@pytest.fixture
async def account_id(database: Database) -> str:
    """An account with 1,000 micro-USD and four orders' worth of order rows to hold for."""
    async with database.transaction() as conn:
        account = await create_account(conn, "a", 1)
        await deposit(conn, account, 1_000, 1)
        file = {"id": "f", "account_id": account, "filename": "", "purpose": "batch", "bytes": 0, "sha256": ""}
        await conn.execute(schema.files.insert().values(**file, blob_key="f", created_at=1))
        order = {
            "account_id": account, "state": "reserved", "endpoint": "", "input_file_id": "f", "completion_window": "",
            "metadata": None, "model_spec": {}, "model_repo": "", "model_revision": "", "sampling": {},
            "prompts_blob_key": "", "total_lines": 0, "refused_lines": 0, "prompt_tokens": 0, "pricing": {},
            "price_micro": 0, "created_at": 1, "expires_at": 2,
        }  # fmt: skip
        await conn.execute(schema.orders.insert(), [{**order, "id": f"o{number}"} for number in range(4)])
    return account


async def balance_of(database: Database, account_id: str) -> Balance:
    async with database.snapshot() as conn:
        return await balance(conn, account_id)


async def test_a_hold_moves_money_aside_and_a_capture_returns_the_rest(database: Database, account_id: str) -> None:
    async with database.transaction() as conn:
        await hold(conn, account_id, "o0", 700, 1)
    assert await balance_of(database, account_id) == Balance(300, 700)
    async with database.transaction() as conn:
        assert await settle(conn, "o0", 250, 2) == 450
    assert await balance_of(database, account_id) == Balance(750, 0)


async def test_a_hold_that_captures_nothing_is_voided(database: Database, account_id: str) -> None:
    async with database.transaction() as conn:
        await hold(conn, account_id, "o0", 700, 1)
        await settle(conn, "o0", 0, 2)
        query = select(schema.transfers.c.state).where(schema.transfers.c.order_id == "o0")
        assert (await conn.execute(query)).scalar_one() == "voided"
    assert await balance_of(database, account_id) == Balance(1_000, 0)


async def test_a_hold_is_settled_once(database: Database, account_id: str) -> None:
    async with database.transaction() as conn:
        await hold(conn, account_id, "o0", 700, 1)
        await settle(conn, "o0", 250, 2)
    with pytest.raises(StateConflict):
        async with database.transaction() as conn:
            await settle(conn, "o0", 250, 3)
    assert await balance_of(database, account_id) == Balance(750, 0)


async def test_an_account_is_never_overdrawn_however_many_orders_come_at_once(
    database: Database, account_id: str
) -> None:
    async def order(number: int) -> bool:
        try:
            async with database.transaction() as conn:
                await hold(conn, account_id, f"o{number}", 400, 1)
        except InsufficientBalance:
            return False
        return True

    assert sorted(await asyncio.gather(*(order(number) for number in range(4)))) == [False, False, True, True]
    assert await balance_of(database, account_id) == Balance(200, 800)


async def test_a_refused_hold_leaves_no_trace(database: Database, account_id: str) -> None:
    with pytest.raises(InsufficientBalance) as refused:
        async with database.transaction() as conn:
            await hold(conn, account_id, "o0", 1_001, 1)
    assert (refused.value.available_micro, refused.value.amount_micro) == (1_000, 1_001)
    async with database.snapshot() as conn:
        count = select(func.count()).select_from(schema.transfers)
        assert (await conn.execute(count)).scalar_one() == 1  # the deposit
