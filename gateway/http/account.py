"""The account's own routes: its balance."""

from aiohttp import web

from gateway.db.ledger import balance
from gateway.http.keys import account_of, services_of
from gateway.quotes import usd


async def get_balance(request: web.Request) -> web.Response:
    """What the account can spend and what its open orders hold."""
    async with services_of(request).database.snapshot() as connection:
        found = await balance(connection, account_of(request))
    return web.json_response(
        {
            "available_usd": usd(found.available_micro),
            "held_usd": usd(found.held_micro),
            "available_micro": found.available_micro,
            "held_micro": found.held_micro,
        }
    )
