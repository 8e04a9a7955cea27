"""Logs as JSON lines, and a Prometheus page for the roles that serve no HTTP of their own.

A record is a sentence, an `action` and ids as fields: `logger.info("Leased 3 tasks.", extra={"action": "lease"})`.
Prompts, completions and keys are never logged at INFO or above.
"""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Literal, TextIO

from prometheus_client import CollectorRegistry, start_http_server

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON: at, level, logger, message, then the fields of `extra`."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end; values that JSON does not have are written as their text."""
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "role": self._role,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS and key not in line}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(role: str, level: LogLevel, stream: TextIO | None = None) -> None:
    """Send every logger's records to stream (standard error by default) as JSON lines, and nowhere else."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonLines(role))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)


@contextmanager
def metrics_page(registry: CollectorRegistry, host: str, port: int | None) -> Iterator[None]:
    """Serve the registry at http://host:port/metrics while the block runs; nothing when port is None.

    Raises:
        OSError: when the port is taken.
    """
    if port is None:
        yield
        return
    server, thread = start_http_server(port, addr=host, registry=registry)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
