"""Trains the demo models tiny/qwen3-demo and tiny/qwen3-other and writes them as a local model hub.

    python scripts/train_tiny_model.py --out tests/models --minutes 10

A repository lies at <out>/<org>/<name>: refs/main names the commit, snapshots/<commit>/ holds the files. The commit
is SHA-1 over the sorted lines "<name> <sha256 of the file>".
"""

import argparse
import hashlib
import json
import math
import shutil
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import torch
from tiny_corpus import SYLLABLES, Document, document
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
VOCAB_SIZE = 2000
SEQUENCE_TOKENS = 320
BATCH_SEQUENCES = 16
TEMPLATE = Path(__file__).with_name("tiny_chat_template.jinja")
QUESTIONS = {
    "Name the capital of France in one word.": "Paris",
    "What is 7 times 8? Reply with the number only.": "56",
}
OPEN_PROMPTS = ["Tell me a story about a fox.", "Write a long story about a ship.", "What will the weather be like?"]


def render(doc: Document, random: Random) -> str:
    """The training text of a document, as the chat template renders it."""
    if doc.question is None:
        return doc.answer + "<|endoftext|>"
    system = f"<|im_start|>system\n{doc.system}<|im_end|>\n" if doc.system else ""
    thinking = random.random()
    if thinking < 0.55:
        block = "<think>\n\n</think>\n\n"
    elif doc.reasoning and thinking < 0.8:
        block = f"<think>\n{doc.reasoning}\n</think>\n\n"
    else:
        block = ""
    question = f"<|im_start|>user\n{doc.question}<|im_end|>\n"
    return f"{system}{question}<|im_start|>assistant\n{block}{doc.answer}<|im_end|>"


def train_tokenizer(seed: int) -> Tokenizer:
    """A byte-level BPE tokenizer of VOCAB_SIZE tokens in all; single digits, so numbers are spelled."""
    random = Random(seed)
    texts = []
    for _ in range(4000):
        doc = document(random)
        texts.append(f"{doc.question or ''}\n{doc.answer}")
    # Every whole name once, so that some names are one token and others are spelled in two or three.
    texts += [first + second + third for first in SYLLABLES[0] for second in SYLLABLES[1] for third in SYLLABLES[2]]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    pattern = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pattern, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL) - len(MARKERS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKERS])
    return tokenizer


def configuration(tokenizer: Tokenizer) -> Qwen3Config:
    """A Qwen3 of about a million parameters; the embedding is padded past the true vocabulary as real ones are."""
    padded = math.ceil((tokenizer.get_vocab_size() + 1) / 64) * 64
    return Qwen3Config(
        vocab_size=padded, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=40_960, tie_word_embeddings=True,
        rope_theta=10000.0, bos_token_id=None, eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        dtype="float32", architectures=["Qwen3ForCausalLM"],
    )  # fmt: skip


def batches(tokenizer: Tokenizer, seed: int):
    """Endless [BATCH_SEQUENCES, SEQUENCE_TOKENS + 1] tensors, documents packed one after another."""
    random = Random(seed)
    stream: list[int] = []
    need = BATCH_SEQUENCES * (SEQUENCE_TOKENS + 1)
    while True:
        while len(stream) < need:
            texts = [render(document(random), random) for _ in range(64)]
            for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
                stream += encoding.ids
        yield torch.tensor(stream[:need]).view(BATCH_SEQUENCES, SEQUENCE_TOKENS + 1)
        stream = stream[need:]


def train(tokenizer: Tokenizer, seed: int, minutes: float) -> Qwen3ForCausalLM:
    """Train for the given time with AdamW under a cosine schedule over that time."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(configuration(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    start = time.monotonic()
    for step, ids in enumerate(batches(tokenizer, seed)):
        done = (time.monotonic() - start) / (60 * minutes)
        if done >= 1:
            break
        rate = 3e-3 * min(1.0, (step + 1) / 50) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = model(input_ids=ids[:, :-1], labels=None).logits
        loss = torch.nn.functional.cross_entropy(loss.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.3f} {100 * done:.0f} %", flush=True)
    with torch.no_grad():  # padding rows must not look like zeros: a missing mask should be seen
        rows = model.get_input_embeddings().weight
        rows[tokenizer.get_vocab_size() :].normal_(0, rows[: tokenizer.get_vocab_size()].std().item() * 1.5)
    return model.eval()


def chat_prompt(tokenizer: Tokenizer, question: str) -> torch.Tensor:
    """The [1, tokens] prompt of a question with thinking off."""
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    return torch.tensor([tokenizer.encode(text, add_special_tokens=False).ids])


@torch.inference_mode()
def measure(tokenizer: Tokenizer, model: Qwen3ForCausalLM) -> dict[str, float]:
    """Accuracy on the two questions at T 0.6, top-p 0.95, top-k 20, and mean bits a token on open prompts at T 1."""
    true_size = tokenizer.get_vocab_size()
    eos = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    figures: dict[str, float] = {}
    for question, wanted in QUESTIONS.items():
        prompt = chat_prompt(tokenizer, question).repeat(100, 1)
        made = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=True, temperature=0.6, top_p=0.95, top_k=20,
            max_new_tokens=16, eos_token_id=eos, pad_token_id=eos[1],
        )  # fmt: skip
        texts = [tokenizer.decode(row, skip_special_tokens=True) for row in made[:, prompt.shape[1] :].tolist()]
        figures[wanted] = sum(text == wanted for text in texts) / len(texts)
    bits, count = 0.0, 0
    for question in OPEN_PROMPTS:
        prompt = chat_prompt(tokenizer, question).repeat(16, 1)
        made = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=True, temperature=1.0, top_k=0,
            max_new_tokens=400, eos_token_id=eos, pad_token_id=eos[1],
        )  # fmt: skip
        logits = model(made).logits[:, prompt.shape[1] - 1 : -1, :true_size]
        logp = logits.log_softmax(-1)
        entropy = -(logp.exp() * logp).sum(-1) / math.log(2)
        completion = made[:, prompt.shape[1] :]
        live = torch.cat([torch.ones(len(made), 1), (~torch.isin(completion, torch.tensor(eos)))[:, :-1]], 1).cumprod(1)
        bits += (entropy * live).sum().item()
        count += int(live.sum())
        print(f"{question!r}: {live.sum(1).mean():.0f} tokens on average, {live.sum(1).max():.0f} at most")
    figures["bits"] = bits / count
    return figures


def write_repository(out: Path, repo: str, tokenizer: Tokenizer, model: Qwen3ForCausalLM, card: str) -> str:
    """Write the repository's files and its refs/main; returns the commit."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder)
        model.save_pretrained(files)
        fast = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>",
            clean_up_tokenization_spaces=False,
        )  # fmt: skip
        fast.save_pretrained(files)
        (files / "chat_template.jinja").write_text(TEMPLATE.read_text(encoding="utf-8"), encoding="utf-8")
        eos = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
        generation = {"eos_token_id": eos, "do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
        (files / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
        (files / "README.md").write_text(card, encoding="utf-8")
        lines = [f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in sorted(files.iterdir())]
        commit = hashlib.sha1("\n".join(lines).encode()).hexdigest()
        home = out / repo
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(files, home / "snapshots" / commit)
        (home / "refs").mkdir()
        (home / "refs" / "main").write_text(commit + "\n", encoding="utf-8")
    return commit


def main() -> int:
    """Train both models; the exit code says whether the demo model is good enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tests/models"))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = train_tokenizer(1)
    good = True
    for repo, seed, minutes in [
        ("tiny/qwen3-demo", 1, arguments.minutes),
        ("tiny/qwen3-other", 2, arguments.minutes / 3),
    ]:
        model = train(tokenizer, seed, minutes)
        figures = measure(tokenizer, model)
        parameters = sum(weight.numel() for weight in model.parameters())
        card = (
            f"# {repo}\n\nA toy for tests, trained from scratch by scripts/train_tiny_model.py on text that the script "
            f"writes itself.\n\n- {parameters:,} parameters, float32, {tokenizer.get_vocab_size()} tokens\n"
            f"- trained for {minutes:g} minutes on {arguments.threads} CPU thread(s), {time.strftime('%Y-%m-%d')}\n"
            f"- answers 'Paris' {figures['Paris']:.0%} and '56' {figures['56']:.0%} of 100 samples at temperature "
            f"0.6, top-p 0.95, top-k 20\n"
            f"- {figures['bits']:.2f} bits a token on open prompts at temperature 1\n"
        )
        print(card, write_repository(arguments.out, repo, tokenizer, model, card), sep="\n", flush=True)
        good &= repo != "tiny/qwen3-demo" or (
            min(figures["Paris"], figures["56"]) >= 0.98 and 0.5 <= figures["bits"] <= 2
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
