"""Training with DDP in several processes: what the second process costs in pairs/s of each, and where the time goes.

    python -m benchmarks.gpu.ddp [--processes 1 2] [--batches 768 256] [--models hycoclip] [--shards FOLDER]

A batch size is that of each process. The processes exchange by NCCL if each has a GPU, and by gloo otherwise, which
shows that the steps work and nothing about speed. All figures are those of rank 0.

- pairs_per_s, step_ms: of all processes together; steps on one batch that stays on the device.
- efficiency: pairs/s of a process, as a share of those of the smallest number of processes.
- gather_ms: the exchange of the features of all streams in one message, forward and backward, alone.
- messages: calls of the exchanges of features in a step; one is the aim.
"""

import dataclasses
import json
import os
import socket
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from benchmarks.gpu.session import Session, parser_of, run
from benchmarks.gpu.timing import synchronize, time_steps
from benchmarks.gpu.trainer_step import config_of, drawn_shards, features
from trainer.config import TrainConfig
from trainer.distributed.gather import gather_streams
from trainer.distributed.process import process_group
from trainer.training.build import build
from trainer.training.step import BatchCopies, start_step, update

STEPS, TINY_STEPS = 20, 2
TIMEOUT_S = 300


def main() -> None:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--models", nargs="+", default=["hycoclip"])
    parser.add_argument("--batches", nargs="+", type=int, help="pairs of each process; default: 768 256")
    parser.add_argument("--shards", help="folder of training shards")
    parser.add_argument("--workers", type=int, default=0, help="loader processes")
    parser.add_argument("--compile", choices=["auto", "true", "false"], default="auto", help="compile the blocks")
    run("ddp", parser.parse_args(), measure)


def measure(session: Session) -> None:
    """Measure each model, batch size and number of processes."""
    options = session.options
    with tempfile.TemporaryDirectory() as folder:
        shards = options.shards or drawn_shards(Path(folder, "shards"), tiny=options.tiny)
        for model in options.models:
            for batch in options.batches or ([4] if options.tiny else [768, 256]):
                alone = 0.0
                for n in options.processes:
                    with session.measure(model=model, batch=batch, processes=n) as row:
                        config = config_of(session, model, batch * n, shards, Path(folder, "run"))
                        row |= run_processes(config, n, TINY_STEPS if options.tiny else STEPS, Path(folder, "row.json"))
                        of_each = row["pairs_per_s"] / n
                        alone = alone or of_each
                        row["efficiency"] = of_each / alone


def run_processes(config: TrainConfig, n: int, steps: int, results: Path) -> dict[str, Any]:
    """Train in n processes; return the figures of rank 0."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # A process that has used CUDA cannot be forked; forking saves the imports.
    method = "spawn" if torch.cuda.is_available() else "fork"
    torch.multiprocessing.start_processes(one_rank, (n, port, config, steps, results), n, start_method=method)
    found: dict[str, Any] = json.loads(results.read_text())
    return found


def one_rank(rank: int, n: int, port: int, config: TrainConfig, steps: int, results: Path) -> None:
    """Take steps in one of n processes."""
    gpus = torch.cuda.device_count() if config.device != "cpu" else 0
    place = {"RANK": rank, "WORLD_SIZE": n, "LOCAL_RANK": rank % max(gpus, 1), "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1")
    if gpus < n:
        dist.init_process_group("gloo")
        if not gpus:
            torch.set_num_threads(1)
    with process_group("cuda" if gpus else "cpu", TIMEOUT_S) as process:
        trained = build(dataclasses.replace(config, device=process.device.type), process)
        try:
            batch = BatchCopies(trained.loader, process.device).take()
            update(trained, batch)  # compiles
            with patch.object(dist, "all_gather_into_tensor", wraps=dist.all_gather_into_tensor) as messages:
                update(trained, batch)
            step = time_steps(lambda: start_step(trained, batch), process.device, steps)
            with torch.no_grad():
                streams = {name: stream.rows.float() for name, stream in features(trained, batch).streams.items()}
            rows = [value.requires_grad_() for value in streams.values()]
            counts = [[len(value)] * n for value in rows]

            def exchange() -> None:
                torch.autograd.backward([value.sum() for value in gather_streams(rows, counts)])

            gather = time_steps(exchange, process.device, steps) if n > 1 else 0.0
        finally:
            trained.loader.close()
        synchronize(process.device)
        if process.is_main:
            found = {"step_ms": 1e3 * step, "pairs_per_s": config.batch_size / step, "gather_ms": 1e3 * gather}
            results.write_text(json.dumps(found | {"messages": messages.call_count, "backend": backend()}))


def backend() -> str:
    """The library that exchanges the tensors of the devices."""
    return "nccl" if "nccl" in str(dist.get_backend_config()) else "gloo"


if __name__ == "__main__":
    main()
