"""What must be true of a gateway's database at any time; every acceptance test ends with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from gateway.core.pricing import Quote, captured
from gateway.core.states import ORDER
from gateway.db import schema
from gateway.db.engine import Database


@dataclass(frozen=True)
class Rule:
    """A query that finds what breaks a rule: no rows while it holds."""

    text: str
    query: str


RULES = [
    Rule("the ledger sums to zero", "SELECT SUM(amount_micro) FROM entries HAVING SUM(amount_micro) <> 0"),
    Rule(
        "every transfer sums to zero",
        "SELECT transfer_id FROM entries GROUP BY transfer_id HAVING SUM(amount_micro) <> 0",
    ),
    Rule(
        "no customer owes",
        "SELECT ledger_account FROM entries WHERE ledger_account LIKE 'available:%' OR ledger_account LIKE 'held:%' "
        "GROUP BY ledger_account HAVING SUM(amount_micro) < 0",
    ),
    Rule(
        "what is held is what pending holds say",
        "SELECT a.id FROM accounts a WHERE "
        "COALESCE((SELECT SUM(e.amount_micro) FROM entries e WHERE e.ledger_account = 'held:' || a.id), 0) <> "
        "COALESCE((SELECT SUM(t.amount_micro) FROM transfers t WHERE t.account_id = a.id AND t.kind = 'hold' "
        "AND t.state = 'pending'), 0)",
    ),
    Rule(
        "every order holds its price, once",
        "SELECT o.id FROM orders o WHERE o.state <> 'quoted' AND 1 <> (SELECT COUNT(*) FROM transfers t "
        "WHERE t.order_id = o.id AND t.amount_micro = o.price_micro)",
    ),
    Rule(
        "a hold is pending exactly while its order is open",
        "SELECT o.id FROM orders o JOIN transfers t ON t.order_id = o.id WHERE (t.state = 'pending') <> "
        "(o.state NOT IN ('delivered', 'expired', 'cancelled', 'failed'))",
    ),
    Rule(
        "an ended order has no open task",
        "SELECT t.id FROM tasks t JOIN orders o ON o.id = t.order_id "
        "WHERE o.state IN ('exporting', 'expiring', 'cancelling', 'delivered', 'expired', 'cancelled', 'failed') "
        "AND t.state IN ('queued', 'leased', 'submitted')",
    ),
    Rule(
        "an ended order has no open audit or claim",
        "SELECT s.id FROM submissions s JOIN orders o ON o.id = s.order_id "
        "LEFT JOIN audits a ON a.submission_id = s.id "
        "WHERE o.state IN ('delivered', 'expired', 'cancelled', 'failed') "
        "AND (s.state = 'pending' OR a.state IN ('pending', 'assigned'))",
    ),
    Rule(
        "an accepted task has an accepted claim",
        "SELECT t.id FROM tasks t LEFT JOIN submissions s ON s.id = t.submission_id "
        "WHERE t.state = 'accepted' AND COALESCE(s.state, '') <> 'accepted'",
    ),
    Rule(
        "a task has at most one accepted claim",
        "SELECT task_id FROM submissions WHERE state = 'accepted' GROUP BY task_id HAVING COUNT(*) > 1",
    ),
    Rule(
        "an accepted claim passed exactly one audit",
        "SELECT s.id FROM submissions s WHERE s.state = 'accepted' AND 1 <> "
        "(SELECT COUNT(*) FROM audits a WHERE a.submission_id = s.id AND a.state = 'judged' AND a.accepted = 1)",
    ),
    Rule(
        "a submitted task waits for one open audit",
        "SELECT t.id FROM tasks t WHERE t.state = 'submitted' AND 1 <> (SELECT COUNT(*) FROM audits a "
        "WHERE a.submission_id = t.submission_id AND a.state IN ('pending', 'assigned'))",
    ),
    Rule(
        "lines add up to the order's total",
        "SELECT o.id FROM orders o WHERE o.total_lines <> (SELECT COUNT(*) FROM lines l WHERE l.order_id = o.id) "
        "OR o.refused_lines <> (SELECT COUNT(*) FROM lines l WHERE l.order_id = o.id AND l.refusal_code IS NOT NULL)",
    ),
    Rule(
        "the delivered tokens are the accepted ones",
        "SELECT o.id FROM orders o WHERE o.state IN ('delivered', 'expired', 'cancelled') AND o.completion_tokens <> "
        "COALESCE((SELECT SUM(s.completion_tokens) FROM submissions s WHERE s.order_id = o.id "
        "AND s.state = 'accepted'), 0)",
    ),
    Rule(
        "the lines and samples noted at the end are those that were accepted",
        "SELECT o.id FROM orders o WHERE o.state IN ('delivered', 'expired', 'cancelled') AND (o.accepted_samples <> "
        "COALESCE((SELECT SUM(t.sample_count) FROM tasks t WHERE t.order_id = o.id AND t.state = 'accepted'), 0) "
        "OR o.completed_lines <> (SELECT COUNT(*) FROM lines l WHERE l.order_id = o.id AND l.refusal_code IS NULL "
        "AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.order_id = o.id AND t.line_number = l.line_number "
        "AND t.state <> 'accepted')))",
    ),
    Rule(
        "an upload is stored exactly when its file exists",
        "SELECT u.id FROM uploads u LEFT JOIN files f ON f.id = u.id WHERE (u.state = 'stored') <> (f.id IS NOT NULL)",
    ),
    Rule(
        "the last event of everything is its state",
        " UNION ALL ".join(
            f"SELECT x.{key} FROM {table} x WHERE x.state <> (SELECT e.to_state FROM events e WHERE e.id = "
            f"(SELECT MAX(f.id) FROM events f WHERE f.subject_id = x.{key} AND f.machine = '{machine}'))"
            for machine, table, key in [
                ("upload", "uploads", "id"),
                ("order", "orders", "id"),
                ("task", "tasks", "id"),
                ("submission", "submissions", "id"),
                ("audit", "audits", "id"),
                ("transfer", "transfers", "id"),
                ("miner", "miners", "hotkey"),
            ]
        ),
    ),
]


async def violations(database: Database) -> list[str]:
    """Every broken rule, with what breaks it; empty when all is well."""
    found = []
    async with database.snapshot() as conn:
        for rule in RULES:
            rows = (await conn.execute(text(rule.query))).all()
            found += [f"not true: {rule.text}: {tuple(row)}" for row in rows]
        orders = (await conn.execute(schema.orders.select())).mappings().all()
        holds = {row.order_id: row for row in await conn.execute(schema.transfers.select()) if row.order_id is not None}
    for order in orders:
        if order["state"] in ORDER.final_states:
            found += _money_faults(order, holds[order["id"]].posted_micro)
    return found


def _money_faults(order: Mapping[Any, Any], posted_micro: int) -> list[str]:
    is_free = order["in_progress_at"] is None or order["state"] == "failed"
    wanted = 0 if is_free else captured(Quote.model_validate(order["pricing"]), order["completion_tokens"])
    faults = []
    if posted_micro != wanted:
        faults.append(f"order {order['id']} was charged {posted_micro}, its price is {wanted}")
    if order["refunded_micro"] != order["price_micro"] - posted_micro:
        faults.append(f"order {order['id']} was refunded {order['refunded_micro']} of {order['price_micro']}")
    return faults
