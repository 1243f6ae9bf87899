"""Training by Ray Train: the same training function in several processes, begun again from its last checkpoint when one is lost."""

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.exceptions import TrainingFailedError

from common.errors import UserError
from common.paths import absolute, chdir_hook, check_output_is_absolute
from trainer.config import TrainConfig
from trainer.distributed.process import LostProcessError

logger = logging.getLogger(__name__)


def train_on_ray(config: TrainConfig) -> None:
    """A run over `ray.workers` processes. `output` has to be a folder that all machines share.

    Raises UserError, also for what the workers say the user can mend.
    """
    connect(config)
    try:
        resources = ray.cluster_resources()
        scaling = plan(config, resources.get("CPU", 0), resources.get("GPU", 0))
        trainer = TorchTrainer(
            work,  # type: ignore[arg-type]  # it may return a value, whatever the annotation says
            train_loop_config={"config": config, "folder": os.getcwd()},
            torch_config=TorchConfig(timeout_s=int(config.parallel.timeout_s)),
            scaling_config=scaling,
            run_config=RunConfig(
                name=Path(config.output).name,
                storage_path=str(Path(config.output) / "ray"),
                failure_config=FailureConfig(max_failures=config.ray.max_failures),
            ),
        )
        try:
            result: Any = trainer.fit()
        except TrainingFailedError as error:
            raise UserError(
                f"training ended after {config.ray.max_failures} restarts (ray.max_failures): {error}. "
                f"Checkpoints in {config.output}/checkpoints are complete; the same command goes on"
            ) from error
        if result.return_value:
            raise UserError(result.return_value)
    finally:
        ray.shutdown()


def work(loop_config: dict[str, Any]) -> str:
    """What each worker does; returns what the user can mend, which a new attempt would only repeat."""
    from trainer.loop import train

    chdir_hook(loop_config["folder"])()  # Ray Train has put each worker into a folder of its own
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
    try:
        train(loop_config["config"])
    except LostProcessError:
        raise
    except UserError as error:
        return str(error)
    return ""


def plan(config: TrainConfig, cpus: float, gpus: float) -> ScalingConfig:
    """Workers for a cluster of that size.

    Raises UserError for a wish that would wait for ever: Ray itself would hang without a word.
    """
    workers, each = config.ray.workers, config.ray.cpus_per_worker
    use_gpu = config.device != "cpu" and gpus > 0
    if workers * each > cpus or (use_gpu and workers > gpus):
        raise UserError(
            f"ray.workers={workers} with ray.cpus_per_worker={each:g} need {workers * each:g} CPUs"
            f"{f' and {workers} GPUs' if use_gpu else ''}, the cluster has {cpus:g} and {gpus:g}: they would wait for ever"
        )
    resources = {"CPU": each, **({"GPU": 1.0} if use_gpu else {})}
    return ScalingConfig(num_workers=workers, use_gpu=use_gpu, resources_per_worker=resources)


def connect(config: TrainConfig) -> None:
    """Join the cluster, or start a Ray of our own. Workers find this checkout from wherever Ray was started."""
    address = config.ray.address or (None if "RAY_ADDRESS" in os.environ else "local")
    root = str(Path(__file__).resolve().parent.parent)
    try:
        ray.init(address=address, runtime_env={"env_vars": {"PYTHONPATH": root}}, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise UserError(f"no Ray cluster at {address!r}: {error}. Start one, or leave ray.address out.") from None


def with_absolute_output(config: TrainConfig) -> TrainConfig:
    """`config` with the output that Ray is told too. Other places stay as they were given, for a checkpoint compares them."""
    check_output_is_absolute(config.output, "an absolute path")
    return dataclasses.replace(config, output=absolute(config.output))
