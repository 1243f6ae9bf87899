"""Training with DDP: pairs/s by number of processes.

    python -m benchmarks.gpu.ddp [--processes 1 2] [--batches 768 256]

HyCoCLIP on one batch that stays on the device; a batch size is that of each process. They exchange by NCCL if each has a
GPU, else by gloo, which shows that the steps work and nothing about speed.

pairs_per_s is that of all processes, efficiency that of one relative to the first row, messages the gathers in a step.
"""

import dataclasses
import json
import os
import socket
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from benchmarks.gpu.session import Session, parser_of, run
from benchmarks.gpu.timing import synchronize
from benchmarks.gpu.trainer_step import config_of, drawn_shards
from trainer.config import TrainConfig
from trainer.distributed.process import process_group
from trainer.training.build import build
from trainer.training.step import BatchCopies, start_step, update


def main() -> None:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--batches", nargs="+", type=int, help="pairs of each process; default: 768 256")
    parser.set_defaults(workers=0, compile="auto")
    run("ddp", parser.parse_args(), measure)


def measure(session: Session) -> None:
    """Measure each batch size and number of processes."""
    options = session.options
    with tempfile.TemporaryDirectory() as folder:
        shards = drawn_shards(Path(folder, "shards"), tiny=options.tiny)
        for batch in options.batches or ([4] if options.tiny else [768, 256]):
            first = 0.0
            for n in options.processes:
                with session.measure(batch=batch, processes=n) as row:
                    config = config_of(session, "hycoclip", batch * n, shards, Path(folder, "run"))
                    with socket.create_server(("127.0.0.1", 0)) as free:
                        port = free.getsockname()[1]
                    steps, results = 2 if options.tiny else 20, Path(folder, "row.json")
                    torch.multiprocessing.spawn(one_rank, (n, port, config, steps, results), n)
                    row |= json.loads(results.read_text())
                    first = first or row["pairs_per_s"] / n
                    row["efficiency"] = row["pairs_per_s"] / n / first


def one_rank(rank: int, n: int, port: int, config: TrainConfig, steps: int, results: Path) -> None:
    """Take steps in one of n processes; the first writes its figures."""
    gpus = torch.cuda.device_count() if config.device != "cpu" else 0
    place = {"RANK": rank, "WORLD_SIZE": n, "LOCAL_RANK": rank % max(gpus, 1), "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1")
    if gpus < n:
        dist.init_process_group("gloo")
    with process_group("cuda" if gpus else "cpu", timeout_s=300) as process:
        trained = build(dataclasses.replace(config, device=process.device.type), process)
        batch = BatchCopies(trained.loader, process.device).take()
        with patch.object(dist, "all_gather_into_tensor", wraps=dist.all_gather_into_tensor) as messages:
            update(trained, batch)  # compiles
        synchronize(process.device)
        start = time.perf_counter()
        for _ in range(steps):
            start_step(trained, batch)
        synchronize(process.device)
        step = (time.perf_counter() - start) / steps
        trained.loader.close()
        if process.is_main:
            found = {"step_ms": 1e3 * step, "pairs_per_s": config.batch_size / step, "messages": messages.call_count}
            results.write_text(json.dumps(found | {"backend": dist.get_backend()}))


if __name__ == "__main__":
    main()
