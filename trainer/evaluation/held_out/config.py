"""Settings of evaluation on held-out shards and image folders."""

from dataclasses import dataclass
from typing import ClassVar

from hypergrit_common.config import check_range
from hypergrit_common.errors import UserError
from hypergrit_common.locations import Locations
from trainer.models.config import Ranking


@dataclass(frozen=True, kw_only=True)
class HeldOutConfig:
    """Zero-shot classification of image folders, retrieval and entailment on held-out shards."""

    # folders of images for zero-shot classification: FOLDER/CLASS/*.png; `_` in CLASS reads as a space
    image_folders: tuple[str, ...] = ()
    # prompts whose embeddings are averaged into a class; {} is replaced by the class name
    prompts: tuple[str, ...] = ("a photo of a {}.",)
    # held-out shards, for retrieval and entailment: a folder, a glob, or several of them, as in training; their layouts
    # are those of training shards
    shards: Locations = ""
    # maximum number of samples of the held-out shards; 0: all
    max_samples: int = 1000
    # score by which PHyCLIP and ATMG rank candidates. released: that of the authors' evaluation (PHyCLIP: the sum of inner
    # products; ATMG: angles at the candidates); metric: the similarity of the training
    ranking: Ranking = "released"

    max_bad_share: ClassVar[float] = 0.1
    """Largest share of bad samples among those read of the held-out shards, and of damaged shards; above it, the evaluation
    ends with an error."""
    batch_size: ClassVar[int] = 256
    """Images or texts that a tower processes at once."""
    seed: ClassVar[int] = 0
    """Random seed of the mismatched pairs of entailment."""

    def __post_init__(self) -> None:
        if not self.prompts:
            raise UserError("prompts is empty; give at least one prompt, with {} in place of the class name")
        wrong = next((prompt for prompt in self.prompts if "{}" not in prompt), None)
        if wrong is not None:
            raise UserError(f"prompts holds {wrong!r}; each prompt needs {{}} in place of the class name")
        check_range(self, "max_samples", least=0)


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(HeldOutConfig):
    """Evaluation in training: the results, and when they are computed."""

    # steps between two evaluations while training; 0: only at the end
    every: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "every", least=0)
