"""The main job on this machine: a batch goes in, verified completions come out, and a cheat goes home empty-handed.

Run it as scripts/demo. Exit status 0 only if every completion was delivered, the questions with one right answer are
answered right, and not one token of the cheat was delivered or charged.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import openai
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

RIGHT_ANSWERS = {
    "Name the capital of France in one word.": "Paris",
    "What is 7 times 8? Reply with the number only.": "56",
    "Name the capital of Japan in one word.": "Tokyo",
    "What is 9 times 6? Reply with the number only.": "54",
}
OPEN_QUESTIONS = [
    "Tell me a story about a fox.",
    "Tell me a story about a robot.",
    "Write a long story about a ship.",
    "Write a long story about a dragon.",
    "Write a shopping list.",
    "What will the weather be like?",
]
LINES = 36
SAMPLES = 2
START_SECONDS = 60
RUN_SECONDS = 100
ENDED = ("completed", "expired", "cancelled", "failed")

console = Console(highlight=False)


def questions() -> list[str]:
    """The demo's prompts: the ones with right answers once, then open ones."""
    fixed = list(RIGHT_ANSWERS)
    return fixed + [OPEN_QUESTIONS[at % len(OPEN_QUESTIONS)] for at in range(LINES - len(fixed))]


def input_file(model: str) -> bytes:
    """The batch as JSONL."""
    lines = []
    for number, question in enumerate(questions(), 1):
        body = {
            "model": model, "messages": [{"role": "user", "content": question}], "max_tokens": 256,
            "temperature": 0.6, "top_p": 0.95, "top_k": 20, "seed": 7, "n": SAMPLES,
            "chat_template_kwargs": {"enable_thinking": False},
        }  # fmt: skip
        lines.append({"custom_id": f"q{number}", "method": "POST", "url": "/v1/chat/completions", "body": body})
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def start_network(data: Path, cheat: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """A gateway, two honest miners, a cheat and a validator; the network's description once it is ready."""
    command = [sys.executable, "-m", "neurons.cli", "localnet", "--port", "0", "--data", str(data), "--cheat", cheat]
    log = (data / "localnet.log").open("w", encoding="utf-8")
    network = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    line = network.stdout.readline() if network.stdout is not None else ""
    if not line:
        raise RuntimeError(f"the network did not start; see {data}")
    return network, json.loads(line)


def get_json(url: str, api_key: str) -> Any:
    """A GET of the gateway's own routes."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {api_key}"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def follow(client: openai.OpenAI, batch: openai.types.Batch) -> openai.types.Batch:
    """Wait for the batch to end, showing how many lines are verified."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    end = time.monotonic() + RUN_SECONDS
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(batch.status, total=LINES)
        while batch.status not in ENDED and time.monotonic() < end:
            time.sleep(0.3)
            batch = client.batches.retrieve(batch.id)
            done = batch.request_counts.completed if batch.request_counts else 0
            progress.update(bar, completed=done, description=batch.status)
    return batch


def show_completions(rows: list[dict[str, Any]], verification: dict[str, Any]) -> None:
    """Each completion with its verification line; of the open ones, the first few words."""
    verified = {line["custom_id"]: line["samples"] for line in verification["lines"]}
    for row, question in zip(rows, questions(), strict=False):
        console.print(f"[bold]{row['custom_id']}[/bold] {question}", markup=True)
        for choice, sample in zip(row["response"]["body"]["choices"], verified[row["custom_id"]], strict=True):
            text = " ".join(choice["message"]["content"].split())
            console.print(f"   {text[:96]}{'…' if len(text) > 96 else ''}", markup=False)
            again = f", drawn again after {sample['attempts']} refused claim(s)" if sample["attempts"] else ""
            console.print(
                f"   verified: {sample['tokens']} tokens drawn, {sample['matching']} matching, largest radius "
                f"{sample['largest_radius']:.2g}{again}",
                style="green",
            )


def faults_of(rows: list[dict[str, Any]], batch: openai.types.Batch) -> list[str]:
    """What is wrong with the delivery."""
    faults = [] if batch.status == "completed" else [f"the batch ended {batch.status}"]
    if batch.error_file_id is not None:
        faults.append("there is an error file")
    if [row["custom_id"] for row in rows] != [f"q{number}" for number in range(1, LINES + 1)]:
        faults.append("not every line was delivered in order")
    for row, question in zip(rows, questions(), strict=False):
        texts = [choice["message"]["content"] for choice in row["response"]["body"]["choices"]]
        if len(texts) != SAMPLES:
            faults.append(f"{row['custom_id']} has {len(texts)} samples")
        if question in RIGHT_ANSWERS and set(texts) != {RIGHT_ANSWERS[question]}:
            faults.append(f"{row['custom_id']} is answered {texts}")
    return faults


def show_cheat(description: dict[str, str]) -> list[str]:
    """What became of the cheat; what is wrong with that."""
    status = get_json(description["base_url"].replace("/api/openai/v1", "/subnet/v1/status"), description["api_key"])
    faults, caught = [], 0
    for miner in status["miners"]:
        counts = ", ".join(f"{count} {state}" for state, count in sorted(miner["submissions"].items()))
        line = f"miner {miner['hotkey'][:8]}…: {miner['state']}; claims: {counts or 'none'}"
        if miner["state"] == "suspended":
            caught += 1
            line += f"; suspended for {miner['suspension_code']}"
            if miner["submissions"].get("accepted"):
                faults.append("a suspended miner's claim was delivered")
        console.print(line, style="red" if miner["state"] == "suspended" else None)
    if caught != 1:
        faults.append(f"{caught} miners were suspended instead of the one cheat")
    return faults


def run_batch(description: dict[str, str]) -> list[str]:
    """Upload, order, follow, download, show; the faults found."""
    client = openai.OpenAI(base_url=description["base_url"], api_key=description["api_key"])
    model = description["model"]
    file = client.files.create(file=("demo.jsonl", input_file(model)), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h",
        metadata={"revision": description["revision"], "max_price_usd": "3"},
    )  # fmt: skip
    console.print(f"batch {batch.id} on {model}@{description['revision'][:12]}: {LINES} lines, {SAMPLES} samples each")
    batch = follow(client, batch)
    if batch.output_file_id is None:
        return [f"the batch ended {batch.status} without an output"]
    rows = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    order_url = f"{description['native_url']}/dataset-orders/{batch.id.removeprefix('batch_')}"
    show_completions(rows, get_json(f"{order_url}/verification", description["api_key"]))
    order = get_json(order_url, description["api_key"])
    charged = float(order["price_usd"]) - float(order["refunded_usd"])
    console.print(f"reserved {order['price_usd']} USD, refunded {order['refunded_usd']} USD, charged {charged:.6f} USD")
    return faults_of(rows, batch) + show_cheat(description)


def main() -> int:
    """Run the demo; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cheat", default="temperature", help="what the cheating miner does")
    arguments = parser.parse_args()
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the network is ended on the way out
    with tempfile.TemporaryDirectory(prefix="reliquary-demo-") as folder:
        console.print("starting a gateway, two honest miners, one cheating miner and a validator …")
        network, description = start_network(Path(folder), arguments.cheat)
        try:
            faults = run_batch(description)
        finally:
            network.send_signal(signal.SIGTERM)
            network.wait(START_SECONDS)
    for fault in faults:
        console.print(f"wrong: {fault}", style="bold red")
    verdict = "everything is as it should be" if not faults else "something is wrong"
    console.print(f"{verdict} ({time.monotonic() - started:.0f} s)")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
