# Batch API walkthrough with curl: upload a 2-line file, create a batch, poll, download the output.
#
# THIS PLACES A REAL ORDER and charges your Reliquary balance. The quote of even a tiny batch
# includes a fixed share of GPU time (about 2 USD); metadata.max_price_usd below refuses the batch
# if its worst-case price is above 3 USD. Unverified tokens are refunded at delivery.
#
# Needs: curl, jq, and RELIQUARY_API_KEY set to an API key with the orders:write scope.
set -euo pipefail
: "${RELIQUARY_API_KEY:?Set RELIQUARY_API_KEY to an orders:write API key}"
BASE=https://app.reliqua.ai/api/openai/v1
AUTH="Authorization: Bearer $RELIQUARY_API_KEY"
# Qwen/Qwen3-8B at a fixed commit. Omit metadata.revision to pin the repo's current main commit.
REVISION=b968826d9c46dd6066d109eabc6255188de91218
WORK=$(mktemp -d)
# Prints the response; stops the script on an HTTP error (the error body is printed first).
call() {
local out
if ! out=$(curl --fail-with-body --silent --show-error "$@"); then
echo "$out" >&2
exit 1
fi
echo "$out"
}
# 1. The input file: OpenAI Batch JSONL, one request per line, all lines with the same sampling.
cat > "$WORK/batch.jsonl" <<'EOF'
{"custom_id":"q1","method":"POST","url":"/v1/chat/completions","body":{"model":"Qwen/Qwen3-8B","messages":[{"role":"user","content":"Name the capital of France in one word."}],"max_tokens":64,"temperature":0.6,"top_p":0.95,"top_k":20,"seed":7,"chat_template_kwargs":{"enable_thinking":false}}}
{"custom_id":"q2","method":"POST","url":"/v1/chat/completions","body":{"model":"Qwen/Qwen3-8B","messages":[{"role":"user","content":"What is 7 times 8? Reply with the number only."}],"max_tokens":64,"temperature":0.6,"top_p":0.95,"top_k":20,"seed":7,"chat_template_kwargs":{"enable_thinking":false}}}
EOF
# 2. Upload it (multipart, up to 32 MiB on this route).
FILE=$(call -H "$AUTH" -F purpose=batch -F "file=@$WORK/batch.jsonl" "$BASE/files")
echo "$FILE" | jq .
FILE_ID=$(echo "$FILE" | jq -r .id)
# 3. Create the batch: quoted and ordered in one call. The Idempotency-Key makes a retry safe.
BATCH=$(call -H "$AUTH" -H 'Content-Type: application/json' \
-H "Idempotency-Key: doc-example-$(date +%s)-$RANDOM" \
--data "$(jq -n --arg file "$FILE_ID" --arg rev "$REVISION" '{
input_file_id: $file,
endpoint: "/v1/chat/completions",
completion_window: "24h",
metadata: {revision: $rev, max_price_usd: "3"}
}')" \
"$BASE/batches")
echo "$BATCH" | jq .
BATCH_ID=$(echo "$BATCH" | jq -r .id)
# 4. Poll until the batch ends.
while :; do
BATCH=$(call -H "$AUTH" "$BASE/batches/$BATCH_ID")
STATUS=$(echo "$BATCH" | jq -r .status)
echo "$(date -u +%H:%M:%S) $STATUS $(echo "$BATCH" | jq -c .request_counts)"
case "$STATUS" in completed | expired | cancelled | failed) break ;; esac
sleep 60
done
echo "$BATCH" | jq .
# 5. Download the output and error files when present.
OUTPUT_ID=$(echo "$BATCH" | jq -r '.output_file_id // empty')
ERROR_ID=$(echo "$BATCH" | jq -r '.error_file_id // empty')
if [ -n "$OUTPUT_ID" ]; then
call -H "$AUTH" "$BASE/files/$OUTPUT_ID/content" > output.jsonl
echo "output.jsonl:"
jq -c '{custom_id, text: .response.body.choices[0].message.content, usage: .response.body.usage}' output.jsonl
fi
if [ -n "$ERROR_ID" ]; then
call -H "$AUTH" "$BASE/files/$ERROR_ID/content" > errors.jsonl
echo "errors.jsonl:"
cat errors.jsonl
fi
