"""Training on Ray: Ray Train runs the training function in several processes and restarts a run that loses one."""

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from ray.train.v2.api.exceptions import TrainingFailedError

from hypergrit_common.cli import set_up_logging
from hypergrit_common.errors import UserError
from hypergrit_common.local_ray import init_ray, python_path
from hypergrit_common.paths import absolute, chdir_hook, check_output_is_absolute
from trainer.config import TrainConfig
from trainer.distributed.config import ALLOCATOR
from trainer.distributed.process import LostProcessError

logger = logging.getLogger(__name__)


def train_on_ray(config: TrainConfig) -> None:
    """Train in `ray.workers` processes. `output` must be a folder that all machines share, or a URL.

    Raises UserError for errors that the user can fix, here or in a worker.
    """
    connect(config)
    try:
        resources = ray.cluster_resources()
        scaling = scaling_config(config, resources.get("CPU", 0), resources.get("GPU", 0))
        trainer = TorchTrainer(
            train_worker,  # type: ignore[arg-type]  # annotated as returning nothing, but its value reaches `result`
            train_loop_config={"config": config, "folder": os.getcwd()},
            torch_config=TorchConfig(
                backend="cpu:gloo,cuda:nccl" if scaling.use_gpu else "gloo", timeout_s=int(config.parallel.timeout_s)
            ),
            scaling_config=scaling,
            run_config=RunConfig(
                name=Path(config.output).name,
                storage_path=None if "://" in config.output else str(Path(config.output) / "ray"),
                failure_config=FailureConfig(max_failures=config.ray.max_failures),
            ),
        )
        try:
            result: Any = trainer.fit()
        except TrainingFailedError as error:
            raise UserError(
                f"training failed after {config.ray.max_failures} restarts: {error}. "
                f"Checkpoints in {config.output}/checkpoints are complete; repeat the command to resume"
            ) from error
        if result.return_value:
            raise UserError(result.return_value)
    finally:
        ray.shutdown()


def train_worker(loop_config: dict[str, Any]) -> str:
    """Train in a worker of Ray Train. Return the message of a UserError, empty on success.

    An error that is raised would restart the run, which only helps after a lost process.
    """
    from trainer.training.loop import train

    set_up_logging()
    chdir_hook(loop_config["folder"])()  # Ray Train starts each worker in another folder
    config, device = loop_config["config"], get_device()
    if device.type == "cuda":  # the workers of a machine see all its GPUs, of which this one is reserved
        config = dataclasses.replace(config, device=str(device))
    try:
        train(config)
    except LostProcessError:
        raise
    except UserError as error:
        return str(error)
    return ""


def scaling_config(config: TrainConfig, cpus: float, gpus: float) -> ScalingConfig:
    """Workers and their resources, on a cluster with this many CPUs and GPUs.

    Raises UserError if the cluster cannot satisfy the request; Ray would wait silently.
    """
    workers, each = config.ray.workers, config.ray.cpus_per_worker
    use_gpu = config.device != "cpu" and gpus > 0
    if workers * each > cpus or (use_gpu and workers > gpus):
        raise UserError(
            f"ray.workers={workers} with ray.cpus_per_worker={each:g} need {workers * each:g} CPUs"
            f"{f' and {workers} GPUs' if use_gpu else ''}, but the cluster has {cpus:g} CPUs and {gpus:g} GPUs; "
            "lower ray.workers or ray.cpus_per_worker, or add machines to the cluster"
        )
    resources = {"CPU": each, **({"GPU": 1.0} if use_gpu else {})}
    return ScalingConfig(num_workers=workers, use_gpu=use_gpu, resources_per_worker=resources)


def connect(config: TrainConfig) -> None:
    """Join the cluster, or start Ray on this machine. Workers import this checkout, whatever folder Ray was started in.

    Raises UserError if the cluster cannot be joined.
    """
    root = str(Path(__file__).resolve().parents[2])
    variables = {name: os.environ.get(name, value) for name, value in ALLOCATOR.items()}
    variables["PYTHONPATH"] = python_path(root)
    init_ray(config.ray.address, runtime_env={"env_vars": variables}, logging_level=logging.WARNING)


def with_absolute_output(config: TrainConfig) -> TrainConfig:
    """Return `config` with an absolute `output`, which Ray needs. Raises UserError for a relative one in a Ray job.

    Other paths stay as given: they are compared with those of the checkpoint on resume.
    """
    check_output_is_absolute(config.output, "an absolute path")
    return dataclasses.replace(config, output=absolute(config.output))
