"""reliquary localnet as a person or a program runs it."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytestmark = pytest.mark.acceptance


def start(folder: Path) -> tuple[subprocess.Popen[str], dict[str, str]]:
    command = [sys.executable, "-m", "neurons.cli", "localnet", "--port", "0", "--data", str(folder), "--miners", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def answers(description: dict[str, str]) -> bool:
    """Whether the gateway serves the key's owner."""
    headers = {"Authorization": f"Bearer {description['api_key']}"}
    request = urllib.request.Request(f"{description['base_url']}/batches", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as response:
        return bool(json.load(response)["data"] == [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_says_where_it_is_goes_on_with_its_folder_and_leaves_no_process(tmp_path: Path, number: int) -> None:
    keys = set()
    for _ in range(2):
        process, description = start(tmp_path)
        try:
            pids = list(json.loads(Path(description["pids_file"]).read_text()).values())
            keys.add(description["api_key"])
            assert answers(description)
            assert len(alive(pids)) == 3
        finally:
            os.kill(process.pid, number)
            status = process.wait(30)
        assert status == (0 if number == signal.SIGTERM else -signal.SIGKILL)
        end = time.monotonic() + 10
        while alive(pids) and time.monotonic() < end:
            time.sleep(0.1)
        assert alive(pids) == []
        assert process.stdout is not None
        assert process.stdout.read() == "", "one line and no more"
        process.stdout.close()
    assert len(keys) == 1
