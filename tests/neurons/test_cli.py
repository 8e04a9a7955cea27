"""The command line: what it refuses, and with which status."""

import json
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from neurons.cli import app

UNUSABLE = 2


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("localnet", "--engine", "vllm"), "engine vllm"),
        (("localnet", "--cheat", "banana"), "no cheat banana"),
        (("gateway", "--config", "nowhere.toml"), "nowhere.toml"),
        (("miner",), "gateway_url"),
        (("validator",), "gateway_url"),
        (("gateway",), "database_url"),
    ],
)
def test_what_cannot_run_says_why_and_that_starting_again_is_no_use(words: tuple[str, ...], named: str) -> None:
    status, _, said = run(*words)
    assert status == UNUSABLE
    assert named in said


def test_an_unknown_setting_is_refused_by_name(tmp_path: Path) -> None:
    config = tmp_path / "miner.toml"
    config.write_text('gateway_url = "http://127.0.0.1:1"\nbanana = 1\n')
    status, _, said = run("miner", "--config", str(config))
    assert status == UNUSABLE
    assert "banana: unknown key" in said


def test_an_operator_opens_an_account_with_credit(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(f'database_url = "sqlite+aiosqlite:///{tmp_path / "a" / "g.db"}"\nblob_url = "{tmp_path}"\n')
    status, printed, _ = run("admin", "create-account", "somebody", "--credit-usd", "5", "--config", str(config))
    assert status == 0
    made = json.loads(printed)
    assert made["api_key"].startswith("rk-")
    assert made["account_id"]


def test_an_account_made_without_orders_is_allowed_them_later(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(f'database_url = "sqlite+aiosqlite:///{tmp_path}/gateway.db"\nblob_url = "{tmp_path}/blobs"\n')
    status, printed, _ = run("admin", "create-account", "me", "--without-orders", "--config", str(config))
    assert status == 0
    account_id = json.loads(printed)["account_id"]

    def allowed_at() -> int | None:
        with closing(sqlite3.connect(tmp_path / "gateway.db")) as conn:
            return conn.execute("SELECT orders_allowed_at FROM accounts WHERE id = ?", [account_id]).fetchone()[0]

    assert allowed_at() is None
    assert run("admin", "allow-orders", account_id, "--config", str(config))[0] == 0
    assert allowed_at() is not None
    assert run("admin", "allow-orders", "nobody", "--config", str(config))[0] == UNUSABLE


def test_a_hotkey_file_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "hotkey.json"
    status, printed, _ = run("admin", "create-hotkey", str(path))
    assert status == 0
    assert printed.strip().startswith("5")
    assert path.stat().st_mode & 0o077 == 0
    assert run("admin", "create-hotkey", str(path))[0] == UNUSABLE


def test_a_network_whose_port_is_taken_says_so_and_ends(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "neurons.cli",
                "localnet",
                "--data",
                str(tmp_path),
                "--port",
                str(port),
                "--miners",
                "0",
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == UNUSABLE
    assert "gateway cannot run" in done.stderr
    assert "cannot listen on" in (tmp_path / "logs" / "gateway.log").read_text()
