"""Benchmark: training of heads on cached features, beside the bare matrix products of their layers.

    python -m benchmarks.heads FEATURES [--models clip meru hycoclip phyclip] [--steps 1000]

FEATURES is a folder of `hypergrit features`. The heads are those of jobs/train/heads.yaml: 256 pairs a step, one box of each
where the model uses boxes, width 64, one hidden layer of 512; PHyCLIP has 8 factors. One thread.

- seconds: a training, from the first step to the last, with logs, without evaluation and checkpoint.
- products_s: the matrix products of the heads' layers alone, forward and backward, for as many steps.
- data_share: the share of the time in which a step waits for its batch.
- ratio: seconds over products_s, of the last model.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch

from trainer.config import TrainConfig, load_config
from trainer.distributed.process import Process
from trainer.training.build import Training, build
from trainer.training.step import update

JOB = "jobs/train/heads.yaml"
FACTORS = {"phyclip": ["model.factor_dim=8"]}


def config_of(model: str, features: str, output: Path, steps: int) -> TrainConfig:
    """The configuration of a training."""
    others = [f"output={output}", f"steps={steps}", "device=cpu", "optim.warmup_steps=1"]
    return load_config([JOB, f"model_name={model}", f"data.features={features}", *others, *FACTORS.get(model, [])])


def train(run: Training, steps: int) -> tuple[float, float]:
    """The seconds of all steps, and those of them that wait for batches."""
    batches = iter(run.loader)
    start, waited = time.perf_counter(), 0.0
    for _ in range(steps):
        before = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - before
        update(run, batch)
    return time.perf_counter() - start, waited


def products(run: Training, steps: int) -> float:
    """The seconds of the matrix products of the heads: two for each layer and backward pass, one forward."""
    rows = run.config.batch_size * (2 if "boxes" in run.model.needs else 1)
    shapes = [
        (name, p.shape)
        for name, p in run.model.named_parameters()
        if p.ndim == 2 and name.startswith(("visual", "textual"))
    ]
    work = []
    for name, (out, into) in shapes:
        x, weight, gradient = torch.rand(rows, into), torch.rand(out, into), torch.rand(rows, out)
        work.append((x, weight, gradient, "layers.0" not in name))
    start = time.perf_counter()
    for _ in range(steps):
        for x, weight, gradient, has_input in work:
            x @ weight.T
            gradient.T @ x
            if has_input:
                gradient @ weight
    return time.perf_counter() - start


def main() -> None:
    """Run the command line. The last line that it prints is one JSON object with all results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", help="folder of `hypergrit features`")
    parser.add_argument("--models", nargs="+", default=["clip", "meru", "hycoclip", "phyclip"])
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            config = config_of(model, arguments.features, Path(folder), arguments.steps)
            run = build(config, Process(device=torch.device("cpu")))
            seconds, waited = train(run, arguments.steps)
            bare = products(run, arguments.steps)
        row = {"model": model, "seconds": round(seconds, 2), "products_s": round(bare, 2)}
        rows.append(row | {"data_share": round(waited / seconds, 3)})
        print(rows[-1], flush=True)
    ratio = round(float(rows[-1]["seconds"]) / float(rows[-1]["products_s"]), 2)
    print(json.dumps({"name": "heads", "ratio": ratio, "steps": arguments.steps, "cases": rows}))


if __name__ == "__main__":
    main()
