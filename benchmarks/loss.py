"""Benchmark: time and memory of the losses, from features to gradients, compared with the plain formulas.

    python -m benchmarks.loss [--models meru hycoclip phyclip] [--sizes 768 4096 16384] [--threads 1] [--rounds 3]

Embeddings have width 512, in PHyCLIP 64 factors of width 8. "ours" is the chunked loss, "plain" the formula as printed
in the paper, with the full similarity matrix. Each measurement runs in a new process, and the implementations take
turns. Memory is the peak of the process minus its peak before the measurement. If the plain implementation does not fit
into memory, its columns and the ratios show "-".

`ratio` compares CPU time, which other load affects least; `ratio_wall` compares wall-clock time.

For comparison, the authors' code with 768 rows and one thread on a machine with two cores: MERU 0.071 s, HyCoCLIP
0.15 s, PHyCLIP 8.8 s and 3.3 GB.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

SIZES = [768, 4096, 16384]
# float32 numbers that the plain loss holds at its peak, for each entry of one similarity matrix
PLAIN_NUMBERS = {"meru": 30, "hycoclip": 55, "phyclip": 28 * 64}
COLUMNS = f"{'model':<10}{'batch':>7}{'ours s':>9}{'plain s':>9}{'ratio':>7}{'ours MB':>9}{'plain MB':>10}{'ratio':>7}"
LONG_S = 5.0  # steps longer than this are timed once


def measure(name: str, batch: int, side: str, threads: int) -> dict[str, float]:
    """Return the median time of a step and the peak memory, measured in this process."""
    import torch

    from benchmarks.plain import build, draw_features
    from trainer.batch import Batch, named_streams

    torch.set_num_threads(threads)
    model = build(name, plain=side == "plain", full=False)
    features: dict[str, Any] = {part: value.requires_grad_() for part, value in draw_features(name, batch).items()}
    few = {part: value[:8] for part, value in features.items()}
    model.losses(Batch(streams=named_streams(few))).loss.backward()
    before = peak_mb()
    times: list[tuple[float, float]] = []
    while len(times) < 4 and not (times and times[0][0] > LONG_S):
        start, start_cpu = time.perf_counter(), time.process_time()
        model.losses(Batch(streams=named_streams(features))).loss.backward()
        times.append((time.perf_counter() - start, time.process_time() - start_cpu))
    measured = times[1:] or times  # the first step is a warm-up
    wall_s, cpu_s = (statistics.median(column) for column in zip(*measured, strict=True))
    return {"wall_s": wall_s, "cpu_s": cpu_s, "peak_mb": peak_mb() - before}


def measure_in_process(name: str, batch: int, side: str, threads: int) -> dict[str, Any]:
    """Return what `measure` returns in a process of its own: no memory and no cache of another one."""
    arguments = map(str, (name, batch, side, threads))
    command = [sys.executable, "-m", "benchmarks.loss", "--measure", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def peak_mb() -> float:
    """Return the peak memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def plain_fits(name: str, batch: int) -> bool:
    """True if the plain loss needs less than 80 % of the free memory."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return PLAIN_NUMBERS[name] * batch**2 * 4 < 0.8 * free


def compare(name: str, batch: int, threads: int, rounds: int) -> dict[str, Any]:
    """Return the medians of time and memory of all implementations, and their ratios."""
    sides = ["ours", *(["plain"] if plain_fits(name, batch) else [])]
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, results in runs.items():
            if not results or results[0]["wall_s"] <= LONG_S * rounds:
                results.append(measure_in_process(name, batch, side, threads))
    row: dict[str, Any] = {"model": name, "batch": batch}
    for side, results in runs.items():
        for key in ("wall_s", "cpu_s", "peak_mb"):
            row[f"{side}_{key}"] = round(statistics.median(result[key] for result in results), 4)
    if "plain" in runs:
        row["ratio"] = round(row["plain_cpu_s"] / row["ours_cpu_s"], 2)
        row["ratio_wall"] = round(row["plain_wall_s"] / row["ours_wall_s"], 2)
        row["ratio_memory"] = round(row["plain_peak_mb"] / max(row["ours_peak_mb"], 1), 1)
    return row


def print_row(row: dict[str, Any]) -> None:
    keys = ("ours_cpu_s", "plain_cpu_s", "ratio", "ours_peak_mb", "plain_peak_mb", "ratio_memory")
    ours_s, plain_s, ratio, ours_mb, plain_mb, ratio_memory = (row.get(key, "-") for key in keys)
    line = f"{row['model']:<10}{row['batch']:>7}{ours_s:>9}{plain_s:>9}{ratio:>7}"
    print(f"{line}{ours_mb:>9.0f}{plain_mb:>10}{ratio_memory:>7}", flush=True)


def main() -> None:
    """Run the command line. The last line that it prints is one JSON object with all results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(PLAIN_NUMBERS), default=list(PLAIN_NUMBERS))
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="batch sizes")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument(
        "--rounds", type=int, default=3, help="measurements of each implementation; the median is reported"
    )
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, batch, side, threads = arguments.measure
        print(json.dumps(measure(name, int(batch), side, int(threads))))
        return
    rows = []
    print(COLUMNS)
    for batch in arguments.sizes:
        for name in arguments.models:
            rows.append(compare(name, batch, arguments.threads, arguments.rounds))
            print_row(rows[-1])
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    result = {
        "name": "loss",
        "ratio": ratios[-1] if ratios else None,
        "threads": arguments.threads,
        "cases": rows,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
