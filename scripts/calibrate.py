"""Measures what honest generation looks like to the validator and writes a calibration file.

    python scripts/calibrate.py --tokens 100000

Generates with the miner's engine in batches of changing sizes, replays with the validator's, and compares the logits
that each token was drawn from on both sides. The tolerance for a radius is the largest difference seen, times a safety
factor: no honest radius can exceed the true largest difference, and the factor stands for what was not seen.
"""

import argparse
import hashlib
import platform
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer

from miner.engine import DrawJob
from miner.hf_engine import HfEngine, Row, choose_forced
from neurons.weights import engine_name, load_model
from protocol.evidence import decode_radius, unpack_codes
from protocol.messages import AuditAssignment, AuditedSample
from protocol.models import ModelSpec
from protocol.sampling import Sampling
from protocol.verdict import Calibration
from validator.forward import TeacherForced
from validator.replay import replay

SAFETY_FACTOR = 20
ROOT = Path(__file__).resolve().parent.parent
QUESTIONS = [
    "Tell me a story about a fox.", "Write a long story about a ship.", "What is 7 times 8?",
    "Name the capital of France in one word.", "Write a shopping list.", "What will the weather be like?",
    "Count from 3 to 8.", "What is the opposite of hot?", "Write a long story about a dragon.", "Qwrt zzz 99?",
]  # fmt: skip
SAMPLINGS = [
    Sampling(max_tokens=256), Sampling(temperature=0.6, top_p=0.95, top_k=20, max_tokens=256),
    Sampling(temperature=0.8, top_p=0.9, max_tokens=64), Sampling(temperature=1.5, min_p=0.05, max_tokens=128),
    Sampling(temperature=2.0, top_k=50, max_tokens=128),
]  # fmt: skip


@dataclass
class Found:
    """What has been measured so far."""

    tokens: int = 0
    mismatches: int = 0
    largest_radius: float = 0.0
    largest_error: float = 0.0
    generated: dict[str, list[torch.Tensor]] = field(default_factory=dict)


def read_model(repo: str) -> tuple[Path, ModelSpec, Tokenizer]:
    """The demo model's snapshot and what the draw needs of it."""
    home = ROOT / "tests" / "models" / repo
    revision = (home / "refs" / "main").read_text(encoding="ascii").strip()
    snapshot = home / "snapshots" / revision
    tokenizer = Tokenizer.from_file(str(snapshot / "tokenizer.json"))
    eos = sorted(tokenizer.token_to_id(token) for token in ("<|im_end|>", "<|endoftext|>"))
    spec = ModelSpec(
        repo=repo, revision=revision, architecture="Qwen3ForCausalLM", tokenizer_sha256="0" * 64,
        chat_template_sha256=None, eos_token_ids=tuple(eos), vocab_size=tokenizer.get_vocab_size(),
        context_length=2048, dtype="float32", parameter_count=1, weights_bytes=1,
    )  # fmt: skip
    return snapshot, spec, tokenizer


def jobs_of_round(round_number: int, spec: ModelSpec, tokenizer: Tokenizer) -> list[DrawJob]:
    """Jobs of several kinds and lengths with keys of their own."""
    random = Random(round_number)
    jobs = []
    for at in range(random.choice([1, 5, 16, 32, 48])):
        question, sampling = random.choice(QUESTIONS), random.choice(SAMPLINGS)
        thinking = random.choice(["", "<think>\n\n</think>\n\n"])
        text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{thinking}"
        prompt = tuple(tokenizer.encode(text, add_special_tokens=False).ids)
        key = hashlib.sha256(f"calibration {round_number} {at}".encode()).digest()
        jobs.append(DrawJob(f"{round_number}/{at}", spec, sampling, prompt, key))
    return jobs


def measure_round(found: Found, jobs: list[DrawJob], engine: HfEngine, forward: TeacherForced) -> None:
    """Generate and replay one round."""
    engine.add(jobs)
    drawn: dict[str, tuple[int, ...]] = {}
    while engine.unfinished:
        drawn.update({sample.job_id: sample.token_ids for sample in engine.step()})
    for job in jobs:
        ids = drawn[job.job_id]
        mine = torch.stack(found.generated.pop(job.job_id))
        for rows in forward.run(job.prompt_token_ids, [ids]):
            at = rows.first_position
            error = (rows.logits - mine[at : at + len(rows.logits)]).abs().max().item()
            found.largest_error = max(found.largest_error, error)
        sample = AuditedSample(sample_index=0, sample_key=job.sample_key.hex(), token_ids=ids)
        assignment = AuditAssignment(
            audit_id="calibration", task_id="calibration", model=job.model, sampling=job.sampling,
            prompt_token_ids=job.prompt_token_ids, samples=(sample,), miner_engine=engine.name, deadline_seconds=1,
        )  # fmt: skip
        codes = unpack_codes(replay(assignment, forward)[0].radius_codes, len(ids))
        found.tokens += len(codes)
        found.mismatches += sum(code != 0 for code in codes)
        found.largest_radius = max(found.largest_radius, *(decode_radius(code) for code in codes))


def main() -> int:
    """Measure and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repo", default="tiny/qwen3-demo")
    parser.add_argument("--tokens", type=int, default=100_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    snapshot, spec, tokenizer = read_model(arguments.repo)
    model = load_model(snapshot, "cpu")
    found = Found()

    def choose(logits: torch.Tensor, rows: list[Row]) -> torch.Tensor:
        for row, values in zip(rows, logits, strict=True):
            found.generated.setdefault(row.job.job_id, []).append(values.clone())
        return choose_forced(logits, rows)

    engine = HfEngine(model, spec.ref, 32, choose)
    forward = TeacherForced(model, spec.vocab_size, 512)
    round_number = 0
    while found.tokens < arguments.tokens:
        measure_round(found, jobs_of_round(round_number, spec, tokenizer), engine, forward)
        round_number += 1
        print(round_number, found.tokens, found.mismatches, found.largest_radius, found.largest_error, flush=True)
    name = engine_name(model)
    tolerance = SAFETY_FACTOR * found.largest_error
    calibration = Calibration(
        id=f"{arguments.repo.replace('/', '-')}.{name.replace('/', '-')}.{time.strftime('%Y-%m-%d')}",
        model_repo=arguments.repo,
        miner_engine=name,
        validator_engine=name,
        radius_tolerance=tolerance,
        eos_radius_tolerance=tolerance,
        mismatch_alpha=0.5 + found.mismatches,  # Jeffreys' prior and the counts
        mismatch_beta=0.5 + found.tokens - found.mismatches,
        tokens_measured=found.tokens,
        mismatches_measured=found.mismatches,
        largest_radius_measured=found.largest_radius,
        largest_logit_error_measured=found.largest_error,
        measured_on=f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, 1 CPU thread, torch {torch.__version__}",
        command=f"python scripts/calibrate.py --repo {arguments.repo} --tokens {arguments.tokens}",
    )
    path = ROOT / "neurons" / "calibrations" / f"{arguments.repo.replace('/', '-')}.{name.replace('/', '-')}.json"
    path.write_text(calibration.model_dump_json(indent=2) + "\n", encoding="utf-8")
    print(path.name, path.read_text(encoding="utf-8"), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
