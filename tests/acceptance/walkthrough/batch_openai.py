"""Batch API walkthrough with the official openai SDK (pip install openai).
THIS PLACES A REAL ORDER and charges your Reliquary balance. The quote of even a tiny batch
includes a fixed share of GPU time (about 2 USD); metadata.max_price_usd below refuses the batch
if its worst-case price is above 3 USD. Unverified tokens are refunded at delivery.
Needs RELIQUARY_API_KEY set to an API key with the orders:write scope.
"""
import json
import os
import pathlib
import sys
import tempfile
import time
import uuid
import openai
client = openai.OpenAI(
    base_url="https://app.reliqua.ai/api/openai/v1",
    api_key=os.environ["RELIQUARY_API_KEY"],
)
# Qwen/Qwen3-8B at a fixed commit. Omit metadata.revision to pin the repo's current main commit.
REVISION = "b968826d9c46dd6066d109eabc6255188de91218"
def line(custom_id: str, question: str) -> dict:
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "Qwen/Qwen3-8B",
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 64,
            "temperature": 0.6,
            "top_p": 0.95,
            "top_k": 20,
            "seed": 7,
            "chat_template_kwargs": {"enable_thinking": False},
        },
    }
try:
    # 1. The input file: one request per line, all lines with the same sampling.
    path = pathlib.Path(tempfile.mkdtemp()) / "batch.jsonl"
    path.write_text(
        "".join(
            json.dumps(row) + "\n"
            for row in [
                line("q1", "Name the capital of France in one word."),
                line("q2", "What is 7 times 8? Reply with the number only."),
            ]
        )
    )
    # 2. Upload it.
    with path.open("rb") as handle:
        file = client.files.create(file=handle, purpose="batch")
    print(file.model_dump_json(indent=2))
    # 3. Create the batch. The Idempotency-Key makes the SDK's automatic retries safe.
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"revision": REVISION, "max_price_usd": "3"},
        extra_headers={"Idempotency-Key": "doc-example-" + uuid.uuid4().hex},
    )
    print(batch.model_dump_json(indent=2))
    # 4. Poll until the batch ends.
    while batch.status not in ("completed", "expired", "cancelled", "failed"):
        time.sleep(60)
        batch = client.batches.retrieve(batch.id)
        print(time.strftime("%H:%M:%S"), batch.status, batch.request_counts)
    print(batch.model_dump_json(indent=2))
    # 5. Download the output and error files when present.
    if batch.output_file_id:
        output = client.files.content(batch.output_file_id).text
        for row in map(json.loads, output.splitlines()):
            body = row["response"]["body"]
            print(row["custom_id"], repr(body["choices"][0]["message"]["content"]), body["usage"])
    if batch.error_file_id:
        print(client.files.content(batch.error_file_id).text)
except openai.APIStatusError as error:
    print(error.status_code, error.response.text, file=sys.stderr)
    sys.exit(1)
