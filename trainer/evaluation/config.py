"""Settings of evaluation: data and rules."""

from dataclasses import dataclass

from common.config import check_range
from common.devices import check_device
from common.errors import UserError
from trainer.evaluation.tasks.base import TaskOptions
from trainer.evaluation.tasks.registry import NAMES
from trainer.models.config import Ranking


@dataclass(frozen=True, kw_only=True)
class HeldOutConfig:
    """Zero-shot classification of image folders, retrieval and entailment on held-out shards."""

    # folders of images for zero-shot classification: FOLDER/CLASS/*.png; `_` in CLASS reads as a space
    image_folders: tuple[str, ...] = ()
    # prompts whose embeddings are averaged into a class; {} is replaced by the class name
    prompts: tuple[str, ...] = ("a photo of a {}.",)
    # held-out shards, for retrieval and entailment: a folder, a glob, several separated by commas, or a URL;
    # their layouts are those of training shards
    shards: str = ""
    # maximum number of images of each image folder, taken evenly from all classes; 0: all
    max_images: int = 0
    # maximum number of samples of the held-out shards; 0: all
    max_samples: int = 1000
    # largest share, 0 to 1, of bad samples among those read of the held-out shards, and of damaged shards; the
    # evaluation ends with an error above it
    max_bad_share: float = 0.1
    # number of images or texts that a tower processes at once
    batch_size: int = 256
    # score by which PHyCLIP and ATMG rank candidates. released: that of the authors' evaluation (PHyCLIP: the sum of inner
    # products; ATMG: angles at the candidates); metric: the similarity of the training
    ranking: Ranking = "released"
    # random seed of the mismatched pairs of entailment
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.prompts:
            raise UserError("prompts is empty; give at least one prompt, with {} in place of the class name")
        wrong = next((prompt for prompt in self.prompts if "{}" not in prompt), None)
        if wrong is not None:
            raise UserError(f"prompts holds {wrong!r}; each prompt needs {{}} in place of the class name")
        check_range(self, "max_images", "max_samples", least=0)
        check_range(self, "max_bad_share", least=0, most=1)
        check_range(self, "seed", least=0, below=2**63)
        check_range(self, "batch_size", least=1)


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(HeldOutConfig):
    """Evaluation in training: the results, and when they are computed."""

    # steps between two evaluations while training; 0: only at the end
    every: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "every", least=0)


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig(TaskOptions):
    """The benchmarks of the papers on one or several models."""

    # models: folders of runs or their folders model/, and released files with the name of their model, such as
    # hycoclip:hycoclip_vit_s.pth
    model: tuple[str, ...] = ()
    # folder with the files of the tasks; `tasks` below lists them
    data: str = ""
    # names of the tasks; empty: all
    tasks: tuple[str, ...] = ()
    # folder for the results, which is created
    output: str = ""
    # training shards, in which copies of the evaluation images are counted; a folder, a glob, or several separated by
    # commas
    train_shards: str = ""
    # number of images or texts that a tower processes at once
    batch_size: int = 256
    # number of threads that read and decode images
    workers: int = 4
    # draw the figures of the tasks
    figures: bool = True
    # device: auto, cpu, cuda or cuda:N; auto: cuda if there is a GPU, else cpu
    device: str = "auto"
    # time without an answer after which a process counts as lost, in seconds; for several processes under torchrun
    timeout_s: float = 3600.0

    def __post_init__(self) -> None:
        for name, example in (("model", "[FOLDER]"), ("data", "FOLDER"), ("output", "FOLDER")):
            if not getattr(self, name):
                raise UserError(f"{name} is missing; give {name}={example}")
        unknown = next((name for name in self.tasks if name not in NAMES), None)
        if unknown is not None:
            raise UserError(f"tasks holds {unknown!r}; choose from {', '.join(NAMES)}")
        check_range(self, "batch_size", "workers", least=1)
        check_range(self, "timeout_s", least=1, most=10**9)
        check_range(self, "max_examples", least=0)
        check_range(self, "box_context", least=1, most=10)
        check_range(self, "seed", least=0, below=2**63)
        check_device(self)
