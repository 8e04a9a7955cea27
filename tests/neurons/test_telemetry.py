"""Logs are JSON lines; the metrics page lives as long as its block."""

import io
import json
import logging
import socket
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from neurons.telemetry import configure_logging, metrics_page


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    stream = io.StringIO()
    configure_logging("miner", "INFO", stream)
    yield stream
    root.handlers = handlers
    root.setLevel(level)


def test_a_record_is_one_line_of_json_with_its_fields(log: io.StringIO) -> None:
    logging.getLogger("miner.worker").info("Leased %d tasks.", 3, extra={"action": "lease", "order_id": "o1"})
    (line,) = log.getvalue().splitlines()
    record = json.loads(line)
    assert record.pop("at").endswith("+00:00")
    assert record == {
        "level": "INFO",
        "role": "miner",
        "logger": "miner.worker",
        "message": "Leased 3 tasks.",
        "action": "lease",
        "order_id": "o1",
    }


def test_below_the_level_nothing_is_written(log: io.StringIO) -> None:
    logging.getLogger("miner.worker").debug("A prompt would stand here.")
    assert log.getvalue() == ""


def test_a_traceback_stays_on_the_line(log: io.StringIO) -> None:
    try:
        raise ValueError("broken\nin two")
    except ValueError:
        logging.getLogger("x").exception("It failed.")
    (line,) = log.getvalue().splitlines()
    assert "ValueError: broken" in json.loads(line)["traceback"]


def test_a_field_that_json_does_not_have_is_written_as_text(log: io.StringIO) -> None:
    logging.getLogger("x").info("Odd.", extra={"action": "odd", "value": {1}})
    assert json.loads(log.getvalue())["value"] == "{1}"


def test_the_metrics_page_is_served_while_the_block_runs() -> None:
    registry = CollectorRegistry()
    Counter("tokens", "Tokens drawn", registry=registry).inc(5)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with metrics_page(registry, "127.0.0.1", port):
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    assert "tokens_total 5.0" in page
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics")


def test_without_a_port_there_is_no_page() -> None:
    with metrics_page(CollectorRegistry(), "127.0.0.1", None):
        pass
