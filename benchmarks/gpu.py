"""Every method and backbone on a GPU at the size of Flickr30K, on synthetic features, and how far from the floor.

    python benchmarks/gpu.py --work /tmp/bench-gpu
    python benchmarks/gpu.py --methods crcl,infonce --backbones vse_inf --work /tmp/bench-gpu
    python benchmarks/gpu.py --device cpu --images 60 --regions 3 --width 16 --dim 8 --work /tmp/try     # does it run?

29,000 images of 36 regions, 2,048-d, five captions each (145,000 pairs), 1,024-d embeddings, batches of 128; two
epochs, of which the second is timed (the first warms up, and compiles). Printed: pairs/s, seconds an epoch, peak memory
of the GPU, and the floor of a training epoch, which is

    FLOPs of a step (counted by PyTorch, the recurrent network's added) / FLOP/s of a product of 8192 x 8192
    + features read, and parameters, gradients and moments read and written / bytes/s of a copy,

both measured first, in the precision that the trainer takes. The goals are an epoch of CRCL within 3 times the floor
with VSE infinity, within 5 times with SGR. Where there is no GPU it says so, and ends.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from cleanpairs import load_pairs
from cleanpairs.core.errors import CleanpairsError
from cleanpairs.core.registry import METHODS
from cleanpairs.encoders.tokenizer import pack

LEFT_OUT = {"clip-score": "trains nothing"}
GOALS = {("crcl", "vse_inf"): 3.0, ("crcl", "sgr"): 5.0}  # times the floor
FEW_EPOCHS: dict[str, dict[str, Any]] = {"crcl": {"refine_epochs": (1,), "epochs": 1, "freeze": 1}}
WORDS = 12


def write_features(work: Path, images: int, regions: int, width: int) -> Path:
    """The research layout, in float16: {train,dev}_ims.npy and {train,dev}_caps.txt, five captions an image."""
    folder = work / f"features-{images}-{regions}-{width}"
    if (folder / "train_caps.txt").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for split, n in (("dev", max(20, images // 29)), ("train", images)):
        shape = (n, regions, width)
        out = np.lib.format.open_memmap(folder / f"{split}_ims.npy", "w+", np.float16, shape)
        for start in range(0, n, 256):
            part = out[start : start + 256]
            part[:] = rng.standard_normal(part.shape, np.float32)
        out.flush()
        words = rng.integers(0, 8000, (5 * n, WORDS))
        text = "\n".join(" ".join(f"w{k}" for k in row) for row in words) + "\n"
        (folder / f"{split}_caps.txt").write_text(text, encoding="utf-8")
    return folder


def elapsed(device: torch.device, call: Any, rounds: int) -> float:
    """Seconds of the fastest call."""
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return best


def floors(device: torch.device) -> tuple[float, float]:
    """FLOP/s of the trainer's precision and bytes/s of a copy."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a = torch.randn(size, size, device=device).to(dtype)
    flops = 2 * size**3 / elapsed(device, lambda: a @ a, 10)
    x = torch.empty(1 << (30 if device.type == "cuda" else 26), dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    return flops, 2 * x.numel() / elapsed(device, lambda: y.copy_(x), 10)


def floor_of(fitted: Any, data: Path, pairs: int, most: int, flops: float, bandwidth: float) -> float:
    """Seconds that an epoch of training takes at the least."""
    models = getattr(fitted.model_, "members", None) or [fitted.model_]
    some = load_pairs(data, limit=most // 5 + 1)
    features = np.asarray(some.images.array(), np.float32)
    batch = min(most, len(some))
    tokens, _ = pack(fitted.tokenizer_.encode(some.captions[:batch]), np.arange(batch))
    device = next(models[0].parameters()).device
    at, x = some.image_index[:batch], torch.from_numpy(features).to(device)
    total = 0.0
    for model in models:
        with torch.no_grad(), FlopCounterMode(display=False) as counted:
            states = model.encode_images(x[torch.from_numpy(at).to(device)]), model.encode_texts(tokens.to(device))
            model.similarity(*states)
        forward = float(counted.get_total_flops())
        # On a CPU it is made of products, which are counted already.
        recurrent = [m for m in model.modules() if isinstance(m, torch.nn.GRU) and device.type == "cuda"]
        for gru in recurrent:  # 3 gates, 2 directions
            forward += 2 * 2 * 3 * (gru.input_size + gru.hidden_size) * gru.hidden_size * WORDS * batch
        size = sum(p.numel() for p in model.parameters())
        moved = (
            7 * 4 * size + 2 * features[0].size * batch
        )  # weight, gradient, two moments: read, and all but one written
        total += pairs / batch * (3 * forward / flops + moved / bandwidth)
    return total


def train(name: str, backbone: str, data: Path, args: argparse.Namespace, rates: tuple[float, float]) -> str:
    cuda = args.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(args.device)
    method = METHODS.load(name)
    known = method().get_params()
    settings: dict[str, Any] = {
        "backbone": backbone,
        "dim": args.dim,
        "batch_size": args.batch,
        "device": str(args.device),
    }
    settings |= {"epochs": 2, "warmup": 1, "require_dependence": False}  # noise tells nothing of the pairs
    settings |= FEW_EPOCHS.get(name, {})
    if name == "mscn":
        settings["meta"] = load_pairs(data, split="dev")
    fitted = method(**{k: v for k, v in settings.items() if k in known}).fit(data)
    last = fitted.history_[-1]
    pairs = 5 * args.images
    seconds = pairs / last["pairs_per_second"]
    floor = floor_of(fitted, data, pairs, args.batch, *rates)
    goal = GOALS.get((name, backbone))
    aim = "" if goal is None else f" (goal {goal:g}: {'reached' if seconds <= goal * floor else 'missed'})"
    memory = f"{torch.cuda.max_memory_allocated(args.device) / 2**30:6.1f} GiB" if cuda else "         -"
    return (
        f"{last['pairs_per_second']:>11,.0f} pairs/s {seconds:>8.1f} s an epoch, floor {floor:>6.2f} s: "
        f"{seconds / floor:>5.1f} times that{aim}; {memory}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--backbones", default="vse_inf,saf,sgr,sgraf,mlp")
    parser.add_argument("--images", type=int, default=29_000)
    parser.add_argument("--regions", type=int, default=36)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--work", type=Path, default=Path("bench-gpu"))
    args = parser.parse_args()
    if args.device.type == "cuda" and not torch.cuda.is_available():
        print("no GPU here: PyTorch sees none. Nothing was measured (--device cpu --images 60 shows that it runs)")
        return
    name = torch.cuda.get_device_name(args.device) if args.device.type == "cuda" else "CPU"
    rates = floors(args.device)
    print(f"{name}, PyTorch {torch.__version__}: {rates[0] / 1e12:.2f} TFLOP/s, {rates[1] / 1e9:.0f} GB/s", flush=True)
    data = write_features(args.work, args.images, args.regions, args.width)
    for backbone in args.backbones.split(","):
        for method in args.methods.split(","):
            try:
                told = LEFT_OUT.get(method) or train(method, backbone, data, args, rates)
            except (CleanpairsError, RuntimeError) as error:  # one that fails does not cost the others
                told = f"failed: {error}"
            print(f"{backbone:<8} {method:<10} {told}", flush=True)


if __name__ == "__main__":
    main()
