// The official Node client through everything a customer does. Prints one JSON object with what it saw; any failure
// ends it with a status other than 0.
//
//   node walkthrough.mjs BASE_URL PROXY_URL API_KEY MODEL REVISION
import assert from "node:assert/strict";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { createWriteStream, mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import OpenAI, { toFile, APIError, ConflictError } from "openai";

const [baseURL, proxyURL, apiKey, model, revision] = process.argv.slice(2);
const MANY = 250;
const client = new OpenAI({ baseURL, apiKey });

const line = (customId, question, seed = 7) => ({
  custom_id: customId,
  method: "POST",
  url: "/v1/chat/completions",
  body: {
    model,
    messages: [{ role: "user", content: question }],
    max_tokens: 64,
    temperature: 0.6,
    top_p: 0.95,
    top_k: 20,
    seed,
    chat_template_kwargs: { enable_thinking: false },
  },
});

const jsonl = (...lines) => lines.map((each) => JSON.stringify(each) + "\n").join("");
const upload = (through, text, name = "batch.jsonl") =>
  toFile(Buffer.from(text), name).then((file) => through.files.create({ file, purpose: "batch" }));
const order = (through, fileId, options = {}) =>
  through.batches.create(
    { input_file_id: fileId, endpoint: "/v1/chat/completions", completion_window: "24h", metadata: { revision, max_price_usd: "3" } },
    options,
  );

// Upload, order, poll, download.
const text = jsonl(line("q1", "Name the capital of France in one word."), line("q2", "What is 7 times 8?"), { custom_id: "q3" });
const file = await upload(client, text, "Ж \"quoted\".jsonl");
assert.equal(file.filename, "Ж \"quoted\".jsonl");
assert.equal((await client.files.retrieve(file.id)).bytes, Buffer.byteLength(text));
assert.equal(await (await client.files.content(file.id)).text(), text);
let batch = await order(client, file.id, { headers: { "Idempotency-Key": "node-walkthrough-0001" } });
assert.equal(batch.object, "batch");
while (!["completed", "expired", "cancelled", "failed"].includes(batch.status)) {
  await new Promise((resolve) => setTimeout(resolve, 50));
  batch = await client.batches.retrieve(batch.id);
}
assert.equal(batch.status, "completed");
assert.deepEqual(batch.request_counts, { total: 3, completed: 2, failed: 1 });

// A download as a stream, to a file.
const path = join(mkdtempSync(join(tmpdir(), "node-client-")), "output.jsonl");
const response = await client.files.content(batch.output_file_id);
await pipeline(Readable.fromWeb(response.body), createWriteStream(path));
const output = readFileSync(path, "utf8").trimEnd().split("\n").map((row) => JSON.parse(row));
assert.deepEqual(output.map((row) => row.custom_id), ["q1", "q2"]);
for (const row of output) assert.equal(row.response.body.object, "chat.completion");
const errors = (await (await client.files.content(batch.error_file_id)).text()).trimEnd().split("\n").map((row) => JSON.parse(row));
assert.deepEqual(errors.map((row) => [row.custom_id, row.line, row.error.code]), [["q3", 3, "invalid_line"]]);

// Without a seed a batch waits for its beacon round, which does not come here: nobody works on it.
const waiting = await upload(client, jsonl(line("q1", "What is 7 times 8?", null)));

// A lost answer: the client retries by itself with the same key, and there is one batch.
const throughProxy = new OpenAI({ baseURL: proxyURL, apiKey });
const key = { headers: { "Idempotency-Key": "node-lost-answer-0001" } };
const retried = await order(throughProxy, waiting.id, key);
assert.equal((await order(client, waiting.id, key)).id, retried.id);

// Cancelling, which cannot be done again.
const doomed = await order(client, waiting.id);
assert.equal((await client.batches.cancel(doomed.id)).status, "cancelled");
let refused;
try {
  await client.batches.cancel(batch.id);
} catch (error) {
  refused = error;
}
assert.ok(refused instanceof ConflictError && refused instanceof APIError);
assert.equal(refused.code, "batch_not_cancellable");

// Lists to their end.
for (let count = 0; count < MANY - 2; count += 1) {
  await upload(client, text);
}
const fileIds = [];
for await (const each of client.files.list({ purpose: "batch" })) fileIds.push(each.id);
assert.equal(fileIds.length, MANY);
assert.equal(new Set(fileIds).size, MANY);
const before = [];
for await (const each of client.batches.list()) before.push(each.id);
for (let count = before.length; count < MANY; count += 1) {
  await client.batches.cancel((await order(client, waiting.id)).id);
}
const batchIds = [];
for await (const each of client.batches.list({ limit: 100 })) batchIds.push(each.id);
assert.equal(batchIds.length, MANY);
assert.equal(new Set(batchIds).size, MANY);

// Deleting.
assert.equal((await client.files.delete(file.id)).deleted, true);
await assert.rejects(client.files.retrieve(file.id), { status: 404, code: "file_not_found" });

console.log(JSON.stringify({ batch: batch.id, retried: retried.id, files: fileIds.length, batches: batchIds.length }));
