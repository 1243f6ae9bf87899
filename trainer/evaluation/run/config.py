"""Settings of the benchmarks."""

from dataclasses import dataclass
from typing import ClassVar

from hypergrit_common.config import Trusting, check_range
from hypergrit_common.devices import check_device
from hypergrit_common.errors import UserError
from hypergrit_common.locations import Locations
from trainer.evaluation.catalog import TASKS
from trainer.evaluation.task import TaskOptions


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig(TaskOptions, Trusting):
    """The benchmarks of the papers on one or several models."""

    # models: folders of runs or their folders model/, and released files with the name of their model, such as
    # hycoclip:hycoclip_vit_s.pth
    model: tuple[str, ...] = ()
    # folder with the files of the tasks; `tasks` below lists them
    data: str = ""
    # names of the tasks; empty: all
    tasks: tuple[str, ...] = ()
    # download the sets of classification and linear_probe that `data` lacks, where torchvision can: up to 42 GB
    fetch: bool = False
    # folder for the results, which is created
    output: str = ""
    # training shards, in which copies of the evaluation images are counted: a folder, a glob, or several of them, as in
    # training
    train_shards: Locations = ""
    # number of images or texts that a tower processes at once
    batch_size: int = 256
    # number of threads that read and decode images
    workers: int = 4
    # draw the figures of the tasks
    figures: bool = True
    # device: auto, cpu, cuda or cuda:N; auto: cuda if there is a GPU, else cpu
    device: str = "auto"

    timeout_s: ClassVar[float] = 3600.0
    """Time without an answer after which one of several processes counts as lost."""

    def __post_init__(self) -> None:
        for name, example in (("model", "[FOLDER]"), ("data", "FOLDER"), ("output", "FOLDER")):
            if not getattr(self, name):
                raise UserError(f"{name} is missing; give {name}={example}")
        unknown = next((name for name in self.tasks if name not in TASKS), None)
        if unknown is not None:
            raise UserError(f"tasks holds {unknown!r}; choose from {', '.join(TASKS)}")
        check_range(self, "batch_size", "workers", least=1)
        check_range(self, "max_examples", least=0)
        check_range(self, "traversal_steps", least=2)
        check_range(self, "box_context", least=1, most=10)
        check_range(self, "seed", least=0, below=2**63)
        check_device(self)
