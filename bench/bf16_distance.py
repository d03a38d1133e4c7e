# SPDX-License-Identifier: Apache-2.0
"""Compares how far quire and transformers are from float32 when both run in bfloat16, for every golden family.

Usage: python bench/bf16_distance.py [--quire build/quire_logits] [--device auto|cpu|cuda] [--tokens 333] [--cases A,B...]

Needs torch, transformers and safetensors (tools/goldens/requirements.txt). Each golden model is run by transformers in
float32, by transformers in bfloat16 (eager attention) and by quire in bfloat16, on the same prompt and the same random
weights. The table shows the mean KL divergence from float32 and how often the best token is float32's.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from accuracy import log_softmax

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def distance(reference: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Mean KL(reference || other) and the share of equal best tokens."""
    p, q = log_softmax(reference), log_softmax(other)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean()), float((p.argmax(axis=1) == q.argmax(axis=1)).mean())


def transformers_logits(folder: pathlib.Path, max_model_len: int, listed: bool, tokens: list[int], device: str) -> tuple:
    """The logits of all positions in float32 and in bfloat16."""
    import torch

    from tools.goldens import reference
    with torch.inference_mode(), tempfile.TemporaryDirectory() as scratch:
        copy = pathlib.Path(scratch) / folder.name  # loading writes tensors.json
        copy.mkdir()
        (copy / "config.json").write_bytes((folder / "config.json").read_bytes())
        model = reference.load_model(copy, max_model_len, listed=listed).to(device)
        ids = torch.tensor([tokens], device=device)
        exact = model(input_ids=ids).logits[0].float().cpu().numpy()
        rounded = model.to(torch.bfloat16)(input_ids=ids).logits[0].float().cpu().numpy()
    return exact, rounded


def quire_logits(options, folder: pathlib.Path, max_model_len: int, tokens: list[int], scratch: pathlib.Path) -> np.ndarray:
    (scratch / "tokens.json").write_text(json.dumps(tokens))
    subprocess.run([options.quire, "--model", folder, "--tokens", scratch / "tokens.json", "--out", scratch / "logits.f32",
                    "--load-format", "dummy", "--dtype", "bfloat16", "--device", options.device,
                    "--max-model-len", str(max_model_len)], check=True)
    return np.fromfile(scratch / "logits.f32", dtype="<f4").reshape(len(tokens), -1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", default=ROOT / "build" / "quire_logits", type=pathlib.Path)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--reference-device", default="cpu", help="where transformers runs")
    parser.add_argument("--tokens", type=int, default=333, help="the golden prompt of this length")
    parser.add_argument("--cases", default="", help="names, separated by commas; all if empty")
    options = parser.parse_args()
    from tools.goldens.cases import find_case
    wanted = [name for name in options.cases.split(",") if name]
    folders = sorted(p.parent for p in (ROOT / "tests" / "goldens").glob("*/expected.json"))
    print(f"{'family':<22}{'quire KL':>12}{'transformers':>14}{'ratio':>8}{'same best':>12}{'transformers':>14}", flush=True)
    further = []
    for folder in folders:
        if wanted and folder.name not in wanted:
            continue
        try:
            case = find_case(folder.name)
        except ValueError:
            continue  # no model of transformers, such as the real one in smollm2
        expected = json.loads((folder / "expected.json").read_text())
        tokens = next(p["tokens"] for p in expected["prompts"] if len(p["tokens"]) == options.tokens)
        length = expected["max_model_len"]
        try:
            exact, rounded = transformers_logits(folder, length, case.listed, tokens, options.reference_device)
        except Exception as error:  # noqa: BLE001 - a family that this version of transformers lacks
            print(f"{folder.name:<22}transformers cannot run it: {type(error).__name__}: {str(error)[:80]}", flush=True)
            continue
        with tempfile.TemporaryDirectory() as scratch:
            ours = quire_logits(options, folder, length, tokens, pathlib.Path(scratch))
        (kl, same), (their_kl, their_same) = distance(exact, ours), distance(exact, rounded)
        if kl > their_kl:
            further.append(folder.name)
        print(f"{folder.name:<22}{kl:>12.2e}{their_kl:>14.2e}{kl / max(their_kl, 1e-30):>8.2f}{same:>12.1%}{their_same:>14.1%}",
              flush=True)
    print("further from float32 than transformers: " + (", ".join(further) if further else "none"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
