"""Benchmark: time of a training step without the optimizer (forward pass, loss, backward pass).

    python -m benchmarks.step [--models meru hycoclip phyclip] [--threads 1] [--rounds 3] [--batch 16]

The models have a ViT-S/16 at 224 px and a text tower with 12 layers of width 512, in float32 on a CPU; captions have 17
tokens and phrases 5. Our model is compared with a plain model, written from the papers with standard modules of torch
and timm, with one pass for images and one for boxes. (The licence of the authors' code forbids copying it.) Both are
measured in alternating rounds.

- ratio: CPU time of the plain model over that of ours; ratio_wall: the same for wall-clock time.
- share_of_products: our FLOP/s over the FLOP/s of float32 matrix products with the image tower's shapes, measured in
  the same rounds. It bounds the possible speed-up: at 1, only a lower precision would be faster.
"""

import argparse
import json
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.plain import PLAIN, build, plain_model
from benchmarks.turns import take_turns
from trainer.batch import Batch, named_streams

PRODUCT_ROUNDS = 30  # takes about as long as a step


def token_ids(batch: int, length: int) -> torch.Tensor:
    """Return random token ids [batch length] that end with the end-of-text token."""
    ids = torch.randint(1, 49_000, (batch, length))
    ids[:, -1] = 49_407
    return ids


def make_step(model: torch.nn.Module, batch: Batch) -> Callable[[], None]:
    """Return a function that runs one step."""

    def step() -> None:
        model.zero_grad()
        model(batch).loss.backward()

    return step


def products(n: int) -> tuple[Callable[[], None], float]:
    """Return a function that repeats the matrix products of a ViT-S/16 block for n images, and its number of FLOPs."""
    width, tokens = 384, n * 197
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    pairs = [(torch.rand(tokens, a), torch.rand(a, b)) for a, b in shapes]

    def multiply() -> None:
        for x, y in pairs * PRODUCT_ROUNDS:
            torch.mm(x, y)

    return multiply, PRODUCT_ROUNDS * sum(2.0 * tokens * a * b for a, b in shapes)


def compare(name: str, n: int, rounds: int) -> dict[str, object]:
    """Return the median times of a step with n pairs, and their ratios."""
    boxes = {} if name == "meru" else {"box_image": torch.rand(n, 3, 224, 224), "box_text": token_ids(n, 5)}
    rows = {"text": token_ids(n, 17), "image": torch.rand(n, 3, 224, 224), **boxes}
    batch = Batch(streams=named_streams(rows))
    multiply, product_flops = products(n if name == "meru" else 2 * n)
    steps = {
        "plain": make_step(plain_model(name), batch),
        "ours": make_step(build(name, plain=False, full=True), batch),
        "products": multiply,
    }
    with FlopCounterMode(display=False) as counter:
        steps["ours"]()
    plain, ours, product = take_turns(steps, rounds).values()
    row: dict[str, object] = {
        "model": name,
        "ours_wall_s": round(ours.wall, 3),
        "ours_cpu_s": round(ours.cpu, 3),
        "ratio": round(plain.cpu / ours.cpu, 3),
        "ratio_wall": round(plain.wall / ours.wall, 3),
    }
    rate = counter.get_total_flops() / ours.wall
    row["gflop_per_s"] = round(rate / 1e9)
    row["share_of_products"] = round(rate / (product_flops / product.wall), 2)
    return row


def main() -> None:
    """Run the command line. The last line that it prints is one JSON object with all results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(PLAIN), choices=list(PLAIN))
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    parser.add_argument("--rounds", type=int, default=3, help="measured steps of each model; the median is reported")
    parser.add_argument("--batch", type=int, default=16, help="pairs per step")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = []
    for name in arguments.models:
        rows.append(compare(name, arguments.batch, arguments.rounds))
        print(rows[-1], flush=True)
    print(json.dumps({"name": "step", "ratio": rows[-1]["ratio"], "threads": arguments.threads, "cases": rows}))


if __name__ == "__main__":
    main()
