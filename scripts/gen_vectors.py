"""Writes protocol/vectors/*.json from the reference implementation.

    python scripts/gen_vectors.py

Everything but the sr25519 signatures is deterministic; those are kept from the existing file while they verify.
"""

import json
import math
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from bittensor_core import Keypair, verify

from protocol.beacon import Pulse
from protocol.draw import (
    SampleIdentity,
    beacon_randomness,
    draw,
    gumbel,
    kept_mask,
    position_seed,
    sample_key,
    scale,
    seed_randomness,
)
from protocol.encoding import digest, encode_fields
from protocol.evidence import decode_radius, encode_radius, forgiveness_radius, pack_codes
from protocol.models import ModelRef
from protocol.sampling import Sampling
from protocol.signing import RequestParties, request_payload
from protocol.verdict import mismatch_p_value

HOME = Path(__file__).resolve().parent.parent / "protocol" / "vectors"
QUICKNET_1000 = "b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39"
SAMPLINGS: dict[str, dict[str, Any]] = {
    "full support": {},
    "cold": {"temperature": 0.6},
    "hot": {"temperature": 2.5},
    "top-k 3": {"top_k": 3},
    "top-p 0.8": {"top_p": 0.8},
    "min-p 0.1": {"min_p": 0.1},
    "top-k 20, top-p 0.95, T 0.6": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    "all four": {"temperature": 0.9, "min_p": 0.02, "top_k": 6, "top_p": 0.7},
    "top-k 1": {"top_k": 1},
}


def identity(**changes: Any) -> SampleIdentity:
    """The example of SPEC.md, with changes."""
    fields: dict[str, Any] = {
        "model": ModelRef(repo="tiny/qwen3-demo", revision="0123456789abcdef0123456789abcdef01234567"),
        "endpoint": "/v1/chat/completions",
        "sampling": Sampling(temperature=0.6, top_p=0.95, top_k=20, max_tokens=64, seed=7),
        "prompt_token_ids": [1994, 12, 7, 300],
        "custom_id": "q1",
        "randomness": seed_randomness(7),
    }
    return SampleIdentity(**{**fields, **changes})


def key_vectors() -> list[dict[str, Any]]:
    """Sample keys: the example, and one change at a time."""
    pulse = Pulse("quicknet", 1000, bytes.fromhex(QUICKNET_1000))
    cases = {
        "the example": (identity(), 0),
        "another sample": (identity(), 1),
        "another custom_id": (identity(custom_id="q2"), 0),
        "another prompt": (identity(prompt_token_ids=[1994, 12, 7, 301]), 0),
        "another endpoint": (identity(endpoint="/v1/completions"), 0),
        "another temperature": (identity(sampling=Sampling(top_p=0.95, top_k=20, max_tokens=64, seed=7)), 0),
        "another seed": (identity(randomness=seed_randomness(8)), 0),
        "a beacon round": (identity(randomness=beacon_randomness(pulse, "00112233445566778899aabb")), 0),
    }
    return [
        {
            "name": name,
            "repo": who.model.repo,
            "revision": who.model.revision,
            "endpoint": who.endpoint,
            "sampling": who.sampling.model_dump(),
            "prompt_token_ids": list(who.prompt_token_ids),
            "custom_id": who.custom_id,
            "randomness": who.randomness.hex(),
            "sample_index": index,
            "key": sample_key(who, index).hex(),
        }
        for name, (who, index) in cases.items()
    ]


def noise_vectors() -> list[dict[str, Any]]:
    """Position seeds and Gumbel noise, as hexadecimal floats."""
    key = sha256(b"noise").digest()
    tokens = np.array([0, 1, 2, 999, 151_935])
    return [
        {
            "key": key.hex(),
            "position": position,
            "seed": position_seed(key, position),
            "token_ids": tokens.tolist(),
            "gumbel": [float(value).hex() for value in gumbel(position_seed(key, position), tokens)],
        }
        for position in (0, 1, 4095, 131_071)
    ]


def draw_vectors() -> list[dict[str, Any]]:
    """Draws at full support and under each truncation; every second table of logits is full of ties."""
    random = np.random.default_rng(20_261_201)
    found = []
    for number, (name, fields) in enumerate(SAMPLINGS.items()):
        sampling = Sampling(**fields)
        for ties in (False, True):
            logits = (random.normal(size=24) * 2.5).astype(np.float32)
            logits = np.round(logits * 2) / 2 if ties else logits
            key = sha256(f"draw {number}".encode()).digest()
            found.append(
                {
                    "name": f"{name}{', with ties' if ties else ''}",
                    "sampling": fields,
                    "key": key.hex(),
                    "logits": [float(value).hex() for value in logits],
                    "kept": np.flatnonzero(kept_mask(scale(logits, sampling), sampling)).tolist(),
                    "draws": [draw(logits, key, position, sampling) for position in range(16)],
                }
            )
    return found


def encoding_vectors() -> dict[str, Any]:
    """Canonical bytes and digests; the reject cases hold one fault each."""
    fields: list[list[Any]] = [[], ["a"], ["", "a"], ["a", ""], [1, -1, 2**63 - 1], [0.5, -0.0], ["é\u2028"]]
    return {
        "fields": [{"fields": each, "bytes": encode_fields(each).hex()} for each in fields],
        "digests": [
            {"domain": "reliquary/test", "fields": each, "digest": digest("reliquary/test", *each).hex()}
            for each in fields
        ],
    }


def evidence_vectors() -> dict[str, Any]:
    """Radius codes, their packing, and radii of single tokens."""
    radii = [0.0, 2.0**-20, 1e-5, 0.02, 0.3, 1.0, 63.0, math.inf]
    codes = [[0] * 300, [0, 0, 5, 0, 255, 255, 0], [3], [0] * 200 + [9], [7, 8]]
    random = np.random.default_rng(7)
    logits = (random.normal(size=16) * 2).astype(np.float32)
    key = sha256(b"radius").digest()
    found = []
    for name, fields in SAMPLINGS.items():
        sampling = Sampling(**fields)
        drawn = draw(logits, key, 3, sampling)
        for claimed in (token for token in range(0, 16, 3) if token != drawn):
            radius = forgiveness_radius(logits, position_seed(key, 3), claimed, sampling)
            found.append({"name": name, "sampling": fields, "claimed": claimed, "code": encode_radius(radius)})
    return {
        "codes": [
            {"radius": r.hex(), "code": encode_radius(r), "edge": decode_radius(encode_radius(r)).hex()} for r in radii
        ],
        "packed": [{"codes": each, "text": pack_codes(each)} for each in codes],
        "reject": [
            {"name": "not base64", "text": "!!", "length": 3, "code": "malformed_evidence"},
            {"name": "too few codes", "text": pack_codes([0] * 3), "length": 4, "code": "malformed_evidence"},
            {"name": "too many codes", "text": pack_codes([0] * 5), "length": 4, "code": "malformed_evidence"},
            {"name": "a run longer than any sample", "text": "////f/8=", "length": 4, "code": "malformed_evidence"},
            {"name": "a zero written as a code", "text": "AAAA", "length": 1, "code": "malformed_evidence"},
        ],
        "radii": {"logits": [float(v).hex() for v in logits], "key": key.hex(), "position": 3, "tokens": found},
    }


def verdict_vectors() -> list[dict[str, Any]]:
    """Tails of the beta-binomial null."""
    cases = [(256, 1, 0.5, 100_000.5), (256, 2, 0.5, 100_000.5), (512, 14, 30.0, 1000.0), (64, 64, 30.0, 1000.0)]
    return [
        {"tokens": n, "mismatches": m, "alpha": a, "beta": b, "p_value": mismatch_p_value(n, m, a, b).hex()}
        for n, m, a, b in cases
    ]


def signing_vectors(old: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A signed request of well-known development keys."""
    sender, receiver = Keypair.create_from_uri("//Alice"), Keypair.create_from_uri("//Bob")
    parties = RequestParties(sender.ss58_address, receiver.ss58_address, 1_800_000_000_000_000_000)
    payload = request_payload("POST", "/subnet/v1/leases?x=1", b'{"max_tasks":1}', parties)
    kept = bytes.fromhex(old[0]["signature"]) if old else b""
    if not (kept and verify(payload, kept, sender.ss58_address)):
        kept = sender.sign(payload)
    return [
        {
            "method": "POST",
            "target": "/subnet/v1/leases?x=1",
            "body": '{"max_tasks":1}',
            "sender": sender.ss58_address,
            "receiver": receiver.ss58_address,
            "nonce_ns": parties.nonce_ns,
            "payload": payload.decode(),
            "signature": kept.hex(),
        }
    ]


def main() -> None:
    """Write every file."""
    HOME.mkdir(exist_ok=True)
    signing = HOME / "signing.json"
    old = json.loads(signing.read_text(encoding="utf-8")) if signing.exists() else []
    vectors: dict[str, Any] = {
        "sample_keys": key_vectors(),
        "noise": noise_vectors(),
        "draw": draw_vectors(),
        "encoding": encoding_vectors(),
        "evidence": evidence_vectors(),
        "verdict": verdict_vectors(),
        "signing": signing_vectors(old),
        "beacon": [{"chain": "quicknet", "round": 1000, "signature": QUICKNET_1000}],
    }
    for name, value in vectors.items():
        text = json.dumps(value, indent=1, ensure_ascii=True)
        (HOME / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
