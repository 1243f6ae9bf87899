"""Settings of evaluation: data and rules."""

from dataclasses import dataclass

from common.config import check_range
from common.errors import UserError
from trainer.models.config import Ranking


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Zero-shot classification, retrieval and entailment."""

    # steps between two evaluations while training; 0: only at the end
    every: int = 0
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
    # number of images or texts that a tower processes at once
    batch_size: int = 256
    # score by which PHyCLIP ranks candidates. released: the sum of inner products, as in its tables; metric: minus its
    # distance
    ranking: Ranking = "released"
    # random seed of the mismatched pairs of entailment
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.prompts:
            raise UserError("prompts is empty; give at least one prompt, with {} in place of the class name")
        wrong = next((prompt for prompt in self.prompts if "{}" not in prompt), None)
        if wrong is not None:
            raise UserError(f"prompts holds {wrong!r}; each prompt needs {{}} in place of the class name")
        check_range(self, "every", "max_images", "max_samples", least=0)
        check_range(self, "seed", least=0, below=2**63)
        check_range(self, "batch_size", least=1)
