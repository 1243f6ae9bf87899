"""Benchmark: time and memory of retrieval metrics, compared with full score matrices and a full sort.

    python -m benchmarks.evaluate [--models clip meru phyclip] [--images 5000] [--captions 25000] [--threads 1]

Embeddings have width 512, in PHyCLIP 64 factors of width 8. "ours" computes the ranks in blocks of the score matrix and
never sorts it. "plain" computes the full matrix, in PHyCLIP one for each factor, and sorts it in both directions. Each
measurement runs in a new process. Memory is the peak of the process minus its peak before the measurement. The
recalls of both are compared. If the plain way needs more memory than the machine has, its columns show "-".

The last line is JSON; `ratio` is the smallest of the ratios plain / ours of the time of the models. With the default
sizes, COCO val2017, the plain way needs about 91 GB for PHyCLIP.
"""

import argparse
import json
import os
import resource
import sys
import time
from typing import Any

from benchmarks.fresh_process import measure_in_process

NUMBER_BYTES = 4
PLAIN_NUMBERS = {"clip": 8, "meru": 8, "phyclip": 3 * 64}
"""Numbers that the plain way holds at its peak, for each entry of the score matrix; indices of a sort count twice."""


def embeddings(name: str, n_images: int, n_captions: int) -> tuple[Any, Any, Any, Any]:
    """A model, and lifted points of images and of their captions with the index of the image."""
    import torch

    from benchmarks.plain_losses import build

    torch.manual_seed(0)
    model = build("meru" if name == "clip" else name, plain=False, full=False)
    owner = torch.arange(n_captions) % n_images
    common = torch.randn(n_images, 512)
    image, text = common + torch.randn(n_images, 512), common[owner] + 2 * torch.randn(n_captions, 512)
    with torch.no_grad():
        if name == "clip":
            return None, *(x / x.norm(dim=1, keepdim=True) for x in (image, text)), owner
        return model, model.lift_image(image), model.lift_text(text), owner


def measure(name: str, side: str, n_images: int, n_captions: int, threads: int) -> dict[str, Any]:
    """Time, memory and recalls of one implementation, measured in this process."""
    import torch

    from trainer.evaluation.ranking import pessimistic_ranks, recall_at
    from trainer.geometry import lorentz

    torch.set_num_threads(threads)
    model, image, text, owner = embeddings(name, n_images, n_captions)

    def ours(x: Any, y: Any) -> Any:
        return x @ y.T if model is None else model.scores(x, y, "released")

    def plain(x: Any, y: Any) -> Any:
        if model is None:
            return x @ y.T
        inner = lorentz.pairwise_inner(x, y, model.curvature())
        return inner if inner.ndim == 2 else inner.sum(0)

    ids = torch.arange(n_images)
    found: dict[str, Any] = {}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    with torch.no_grad():
        pairs = (("t2i", text, image, owner, ids), ("i2t", image, text, ids, owner))
        for direction, queries, candidates, query_ids, candidate_ids in pairs:
            if side == "ours":
                ranks = pessimistic_ranks(ours, queries, candidates, query_ids, candidate_ids)
            else:
                order = plain(queries, candidates).argsort(dim=1, descending=True)
                ranks = (candidate_ids[order] == query_ids[:, None]).int().argmax(1)
            found |= {f"{direction}@{k}": share for k, share in recall_at(ranks, (1, 5, 10)).items()}
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"seconds": seconds, "peak_mb": peak / 1024, "recalls": found}


def main() -> None:
    """Measure all models and print a table, then JSON."""
    if sys.argv[1:2] == ["--measure"]:
        name, side, *sizes = sys.argv[2:]
        print(json.dumps(measure(name, side, *map(int, sizes))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(PLAIN_NUMBERS), choices=list(PLAIN_NUMBERS))
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--captions", type=int, default=25000)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    limits = (arguments.images, arguments.captions, arguments.threads)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    print(f"{'model':10}{'ours s':>10}{'plain s':>10}{'ours MB':>10}{'plain MB':>10}{'ratio':>8}")
    rows = {}
    for name in arguments.models:
        ours = measure_in_process("evaluate", name, "ours", *limits, threads=arguments.threads)
        needed = PLAIN_NUMBERS[name] * NUMBER_BYTES * arguments.images * arguments.captions
        plain = (
            measure_in_process("evaluate", name, "plain", *limits, threads=arguments.threads)
            if needed < 0.8 * memory
            else None
        )
        ratio = plain["seconds"] / ours["seconds"] if plain else None
        if plain and any(abs(plain["recalls"][key] - value) > 1e-3 for key, value in ours["recalls"].items()):
            sys.exit(f"{name}: the recalls differ: {ours['recalls']}, plain {plain['recalls']}")
        columns = [ours["seconds"], plain and plain["seconds"], ours["peak_mb"], plain and plain["peak_mb"], ratio]
        print(
            f"{name:10}"
            + "".join(
                f"{'-' if v is None else f'{v:.1f}':>{w}}" for v, w in zip(columns, (10, 10, 10, 10, 8), strict=True)
            )
        )
        rows[name] = {"ours": ours, "plain": plain, "plain_gb_estimated": needed / 1e9, "ratio": ratio}
    ratios = [row["ratio"] for row in rows.values() if row["ratio"] is not None]
    print(json.dumps({"models": rows, "ratio": min(ratios) if ratios else None}))


if __name__ == "__main__":
    main()
