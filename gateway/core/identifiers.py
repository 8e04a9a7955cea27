"""Ids that customers send back to us."""


def can_be_id(text: str) -> bool:
    """Whether text could be one of our ids; what could not must not reach a database (PostgreSQL refuses NUL)."""
    return text.isascii() and text.isprintable() and len(text) <= 128
