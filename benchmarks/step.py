"""One training step without the optimizer (forward, loss, backward): ours against the plain model, in turn.

    python -m benchmarks.step [--models meru hycoclip phyclip] [--threads 1] [--rounds 3] [--batch 16]

ViT-S/16 at 224 px and a text tower of 12 x 512, float32, CPU; captions of 17 tokens, phrases of 5. The plain model stands for the
authors' code, which cannot be shipped: written from the papers with torch's and timm's own modules, a pass each for wholes and
boxes. `ratio` is of CPU time, `ratio_wall` of the clock; `ratio_authors` is against the authors' own code in CPU seconds, on
another day and a quiet machine of 2 cores, so it says less. `share_of_products` is what bounds it: our arithmetic per second over that
of bare float32 matrix products of the image tower's shapes, taken in the same turns. At 1 nothing but fewer digits would be faster.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.plain_losses import build
from benchmarks.plain_towers import plain_model
from trainer.batch import Batch

PRODUCT_ROUNDS = 30  # about as long as a step
AUTHORS_CPU_S = {
    1: {"meru": 6.55, "hycoclip": 12.64, "phyclip": 12.42},
    2: {"meru": 6.92, "hycoclip": 12.90, "phyclip": 12.74},
}


def token_ids(batch: int, length: int) -> torch.Tensor:
    ids = torch.randint(1, 49_000, (batch, length))
    ids[:, -1] = 49_407
    return ids


def make_step(model: torch.nn.Module, batch: Batch) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad()
        model(batch).loss.backward()

    return step


def products(n: int) -> tuple[Callable[[], None], float]:
    """The four products of a vision transformer's block for n images, some times over, and their arithmetic in operations."""
    width, tokens = 384, n * 197
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    pairs = [(torch.rand(tokens, a), torch.rand(a, b)) for a, b in shapes]

    def multiply() -> None:
        for x, y in pairs * PRODUCT_ROUNDS:
            torch.mm(x, y)

    return multiply, PRODUCT_ROUNDS * sum(2.0 * tokens * a * b for a, b in shapes)


def compare(name: str, n: int, threads: int, rounds: int) -> dict[str, object]:
    boxes = {} if name == "meru" else {"box_images": torch.rand(n, 3, 224, 224), "box_token_ids": token_ids(n, 5)}
    batch = Batch(images=torch.rand(n, 3, 224, 224), token_ids=token_ids(n, 17), **boxes)
    multiply, n_multiplied = products(n if name == "meru" else 2 * n)
    steps = {
        "plain": make_step(plain_model(name), batch),
        "ours": make_step(build(name, plain=False, full=True), batch),
        "products": multiply,
    }
    with FlopCounterMode(display=False) as counter:
        steps["ours"]()
    times: dict[str, list[tuple[float, float]]] = {side: [] for side in steps}
    for round_ in range(rounds + 1):
        for side, step in steps.items():
            start, start_cpu = time.perf_counter(), time.process_time()
            step()
            if round_:  # the first warms up
                times[side].append((time.perf_counter() - start, time.process_time() - start_cpu))
    wall_s, cpu_s = ({side: statistics.median(t[i] for t in times[side]) for side in steps} for i in (0, 1))
    row: dict[str, object] = {
        "model": name,
        "ours_wall_s": round(wall_s["ours"], 3),
        "ours_cpu_s": round(cpu_s["ours"], 3),
        "ratio": round(cpu_s["plain"] / cpu_s["ours"], 3),
        "ratio_wall": round(wall_s["plain"] / wall_s["ours"], 3),
    }
    rate = counter.get_total_flops() / wall_s["ours"]
    row["gflop_per_s"] = round(rate / 1e9)
    row["share_of_products"] = round(rate / (n_multiplied / wall_s["products"]), 2)
    if n == 16 and threads in AUTHORS_CPU_S:
        row["ratio_authors"] = round(AUTHORS_CPU_S[threads][name] / cpu_s["ours"], 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(AUTHORS_CPU_S[1]), choices=list(AUTHORS_CPU_S[1]))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = []
    for name in arguments.models:
        rows.append(compare(name, arguments.batch, arguments.threads, arguments.rounds))
        print(rows[-1], flush=True)
    print(json.dumps({"name": "step", "ratio": rows[-1]["ratio"], "threads": arguments.threads, "cases": rows}))


if __name__ == "__main__":
    main()
