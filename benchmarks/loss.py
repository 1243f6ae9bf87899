"""The losses alone, raw features to gradients: ours in chunks against the plain formulas, time and peak memory.

    python -m benchmarks.loss [--models meru hycoclip phyclip] [--sizes 768 4096 16384] [--threads 1] [--rounds 3]
                               [--device cpu|cuda]

A batch on one process, embeddings of 512, PHyCLIP in 64 factors of 8. Every measurement is a process of its own, the two
sides in turn; memory is the most that the process ever held less what it held before. Where the plain side would not fit
into memory there is no ratio. Ratios are of CPU time, which other work on the machine changes least; `ratio_wall` is the clock's.
On a GPU (--device cuda) the Triton kernels are a third side, memory is the GPU's, and every ratio is of the clock's time.
The authors' code, 768 rows, one thread of a machine of 2 cores: MERU 0.071 s, HyCoCLIP 0.15 s, PHyCLIP 8.8 s and 3.3 GB.
"""

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

SIZES = [768, 4096, 16384]
KEPT = {"meru": 30, "hycoclip": 55, "phyclip": 28 * 64}  # numbers of a pair that the plain side holds at its peak
LONG_S = 5.0  # a step longer than this is timed once


def measure(name: str, batch: int, side: str, threads: int, device: str) -> dict[str, float]:
    """In a process of its own."""
    import torch

    from benchmarks.plain_losses import build
    from trainer.batch import Pairs

    torch.set_num_threads(threads)
    model = build(name, plain=side == "plain", full=False).to(device)
    if side == "triton":
        model.config = dataclasses.replace(model.config, loss_kernel="triton")
    parts = ("image", "text", "box_image", "box_text") if name != "meru" else ("image", "text")
    # Captions near their images, boxes a little off, as training has them.
    common = torch.randn(batch, 512, device=device)
    features = {part: (common + torch.randn_like(common)).requires_grad_() for part in parts}
    model.losses(Pairs(**{part: value[:8] for part, value in features.items()})).loss.backward()
    before = peak_mb(device)
    times: list[tuple[float, float]] = []
    while len(times) < 4 and not (times and times[0][0] > LONG_S):
        start, start_cpu = time.perf_counter(), time.process_time()
        model.losses(Pairs(**features)).loss.backward()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start, time.process_time() - start_cpu))
    kept = times[1:] or times  # the first warms up
    wall_s, cpu_s = (statistics.median(column) for column in zip(*kept, strict=True))
    return {"wall_s": wall_s, "cpu_s": cpu_s, "peak_mb": peak_mb(device) - before}


def peak_mb(device: str) -> float:
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_process(name: str, batch: int, side: str, threads: int, device: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.loss", "--measure", name, str(batch), side, str(threads), device]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    result: dict[str, float] = json.loads(out.splitlines()[-1])
    return result


def fits(name: str, batch: int, device: str) -> bool:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if device == "cuda":
        import torch

        free = torch.cuda.mem_get_info()[0]
    return KEPT[name] * batch**2 * 4 < 0.8 * free


def compare(name: str, batch: int, threads: int, rounds: int, device: str) -> dict[str, Any]:
    sides = ["ours", *(["triton"] if device == "cuda" else []), *(["plain"] if fits(name, batch, device) else [])]
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, results in runs.items():
            if not results or results[0]["wall_s"] <= LONG_S * rounds:
                results.append(in_process(name, batch, side, threads, device))
    row: dict[str, Any] = {"model": name, "batch": batch}
    for side, results in runs.items():
        for key in ("wall_s", "cpu_s", "peak_mb"):
            row[f"{side}_{key}"] = round(statistics.median(result[key] for result in results), 4)
    time_key = "wall_s" if device == "cuda" else "cpu_s"
    if "triton" in runs:
        row["ratio_triton"] = round(row["ours_wall_s"] / row["triton_wall_s"], 2)
    if "plain" in runs:
        row["ratio"] = round(row[f"plain_{time_key}"] / row[f"ours_{time_key}"], 2)
        row["ratio_wall"] = round(row["plain_wall_s"] / row["ours_wall_s"], 2)
        row["ratio_memory"] = round(row["plain_peak_mb"] / max(row["ours_peak_mb"], 1), 1)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(KEPT), default=list(KEPT))
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--measure", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, batch, side, threads, device = arguments.measure
        print(json.dumps(measure(name, int(batch), side, int(threads), device)))
        return
    rows, device = [], arguments.device
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            parser.error("--device cuda: torch finds no CUDA device here")
    time_key = "wall_s" if device == "cuda" else "cpu_s"
    print(
        f"{'model':<10}{'batch':>7}{'ours s':>9}{'plain s':>9}{'ratio':>7}{'ours MB':>9}{'plain MB':>10}{'ratio':>7}",
        end="",
    )
    print(f"{'triton s':>10}{'faster':>7}{'triton MB':>10}" if device == "cuda" else "")
    for batch in arguments.sizes:
        for name in arguments.models:
            row = compare(name, batch, arguments.threads, arguments.rounds, device)
            rows.append(row)
            keys = (f"ours_{time_key}", f"plain_{time_key}", "ratio", "ours_peak_mb", "plain_peak_mb")
            cells = [row.get(key, "-") for key in keys]
            print(f"{name:<10}{batch:>7}{cells[0]:>9}{cells[1]:>9}{cells[2]:>7}{cells[3]:>9.0f}", end="")
            print(f"{cells[4]:>10}{row.get('ratio_memory', '-'):>7}", end="")
            if device == "cuda":
                print(f"{row['triton_wall_s']:>10}{row['ratio_triton']:>7}{row['triton_peak_mb']:>10.0f}", end="")
            print(flush=True)
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    result = {
        "name": "loss",
        "ratio": ratios[-1] if ratios else None,
        "threads": arguments.threads,
        "device": device,
        "cases": rows,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
