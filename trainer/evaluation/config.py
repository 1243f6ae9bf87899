"""What to evaluate on, and by which rule."""

from dataclasses import dataclass

from common.errors import UserError
from common.load import check_range
from trainer.dual_encoder import Ranking


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    every: int = 0  # steps between two evaluations while training; 0: only at the end
    # folders of images to classify zero-shot: FOLDER/CLASS/*.png; `_` in CLASS reads as a space
    image_folders: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ("a photo of a {}.",)  # texts that stand for a class, averaged; {} is its name
    shards: str = ""  # held-out training shards, for retrieval and entailment: folder, glob, list with commas, or URL
    max_images: int = 0  # most images of each image folder, evenly from all classes; 0: all
    max_samples: int = 1000  # most samples of the held-out shards; 0: all
    batch_size: int = 256  # images or texts that go through a tower together
    # how PHyCLIP ranks: released, by sums of inner products, as in its tables; metric, by its distance
    ranking: Ranking = "released"
    seed: int = 0  # random seed of the mismatched pairs with which entailment is compared

    def __post_init__(self) -> None:
        wrong = next((prompt for prompt in self.prompts if "{}" not in prompt), None)
        if wrong is not None or not self.prompts:
            raise UserError(f"prompts holds {wrong!r}; each prompt needs {{}} where the class name goes")
        check_range(self, "every", "max_images", "max_samples", least=0)
        check_range(self, "seed", least=0, below=2**63)
        check_range(self, "batch_size", least=1)
