"""Arguments of small pipeline jobs and training runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline import grit
from tests.pipeline.here import running_here


@dataclass(frozen=True)
class Reference:
    """The output of an uninterrupted run, and the seconds it took."""

    output: Path
    seconds: float


def job_in_one_process(arguments: Sequence[str]) -> int:
    """Run a job that computes its shards without a child process: it starts, and is killed, sooner."""
    with running_here():
        return grit.main(arguments)


def pipeline_arguments(tars: Path, output: Path) -> list[str]:
    """Arguments of a job of four shards with the miniature models, in one process and without network access."""
    return [f"input={tars}", f"output={output}", "rows_per_shard=3", "ray.runner=local"]


def training_arguments(shards: Path, output: Path) -> list[str]:
    """Arguments of a run of 24 steps of a very small HyCoCLIP with a checkpoint every 6 steps."""
    return [
        "model_name=hycoclip",
        f"shards={shards}",
        f"output={output}",
        "tokenizer=demo/weights/clip/merges.txt",
        "device=cpu",
        "precision=fp32",
        "batch_size=4",
        "data.workers=1",
        "optim.steps=24",
        "optim.warmup_steps=4",
        "save.every=6",
        "log.every=1",
        "log.tensorboard=false",
        "model.embed_dim=16",
        "model.image.size_px=16",
        "model.image.kwargs={embed_dim: 32, depth: 2, num_heads: 2, patch_size: 8}",
        "model.text.vocab_size=1364",
        "model.text.width=32",
        "model.text.layers=2",
        "model.text.heads=2",
    ]
