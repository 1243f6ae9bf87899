"""The evaluation of one model: all results by name, each with its chance level. All are between 0 and 1.

zero_shot/FOLDER/accuracy, accuracy_micro, chance              mean recall of the classes; share of correct images
retrieval/image_to_text/recall@5, chance@5, and text_to_image  full images and captions of the held-out shards
entailment/NAME/order, auc, ap, chance                         models with entailment; see trainer.evaluation.entailment
"""

from typing import Final

import torch
from torch import Tensor

from trainer.evaluation.config import HeldOutConfig
from trainer.evaluation.embed import embed_images, embed_texts, embed_words
from trainer.evaluation.entailment import entailment_metrics
from trainer.evaluation.folders import ImageFolder, read_folders, read_images
from trainer.evaluation.held_out import HeldOut, HeldOutShards
from trainer.evaluation.metrics import chance_recalls, macro_accuracy, recalls
from trainer.evaluation.zero_shot import classifier, predict
from trainer.models.dual_encoder import DualEncoder
from trainer.text.tokenizer import Tokenizer

RECALL_AT: Final = (1, 5, 10)
MAX_PARSED: Final = 1000
"""Maximum number of captions whose words are embedded."""


class Evaluation:
    """The evaluation that a configuration describes. Its folders and shards are listed once, when it is built.

    Raises UserError for a folder without images and for shards without samples: a training run fails before its first
    step, not after its last. Messages begin with a field of the configuration.
    """

    def __init__(self, config: HeldOutConfig) -> None:
        self.config = config
        self.folders = read_folders(config.image_folders, config.max_images)
        self.shards = HeldOutShards(config.shards) if config.shards else None

    @torch.no_grad()
    def __call__(self, model: DualEncoder, tokenizer: Tokenizer, device: torch.device | str) -> dict[str, float]:
        """Evaluate a model on `device`. Random numbers, from `config.seed`, are used for mismatched pairs only."""
        was_training = model.training
        model.to(device).eval()
        try:
            results: dict[str, float] = {}
            for folder in self.folders:
                results |= zero_shot_results(model, tokenizer, folder, self.config)
            if self.shards:
                held_out = self.shards.read(model.config.image.size_px, self.config.max_samples)
                results |= pair_results(model, tokenizer, held_out, self.config)
        finally:
            model.train(was_training)
        return results


def zero_shot_results(
    model: DualEncoder, tokenizer: Tokenizer, folder: ImageFolder, config: HeldOutConfig
) -> dict[str, float]:
    """Zero-shot classification of one image folder."""
    images = read_images(folder.paths, model.config.image.size_px)
    classes = classifier(model, tokenizer, folder.classes, config.prompts, config.batch_size)
    predicted = predict(model, embed_images(model, images, config.batch_size), classes, config.ranking)
    target = torch.tensor(folder.targets)
    return {
        f"zero_shot/{folder.name}/accuracy": macro_accuracy(predicted, target, len(folder.classes)),
        f"zero_shot/{folder.name}/accuracy_micro": (predicted == target).float().mean().item(),
        f"zero_shot/{folder.name}/chance": 1 / len(folder.classes),
    }


def pair_results(
    model: DualEncoder, tokenizer: Tokenizer, held_out: HeldOut, config: HeldOutConfig
) -> dict[str, float]:
    """Retrieval among full images and captions; entailment between images, captions, boxes, phrases and words."""
    image_features = embed_images(model, held_out.images, config.batch_size)
    text_features = embed_texts(model, tokenizer, held_out.captions, config.batch_size)
    lifted = {"image": model.lift_image(image_features), "text": model.lift_text(text_features)}
    results = retrieval_results(model, lifted["image"], lifted["text"], config)
    owner = None
    if model.entailments() and held_out.box_images:
        boxes = embed_images(model, held_out.box_images, config.batch_size)
        phrases = embed_texts(model, tokenizer, held_out.box_texts, config.batch_size)
        lifted |= {"box_image": model.lift_image(boxes), "box_text": model.lift_text(phrases)}
        owner = torch.tensor(held_out.box_owner, device=boxes.device)
    if "parse" in model.needs:
        parsed = [(caption, words) for caption, words in zip(held_out.captions, held_out.words, strict=True) if words]
        lifted |= embed_words(model, tokenizer, parsed[:MAX_PARSED], config.batch_size)
    found = entailment_metrics(model, lifted, owner, config.seed)
    return results | {f"entailment/{name}": value for name, value in found.items()}


def retrieval_results(model: DualEncoder, image: Tensor, text: Tensor, config: HeldOutConfig) -> dict[str, float]:
    """Retrieval in both directions between lifted images and captions; only image i matches caption i."""
    results: dict[str, float] = {}
    scores = model.scores(text, image, config.ranking).cpu()
    relevant = torch.eye(len(scores), dtype=torch.bool)
    for direction, table in (("text_to_image", scores), ("image_to_text", scores.T)):
        found, chance = recalls(table, relevant, RECALL_AT), chance_recalls(relevant, RECALL_AT)
        results |= {f"retrieval/{direction}/recall@{k}": share for k, share in found.items()}
        results |= {f"retrieval/{direction}/chance@{k}": share for k, share in chance.items()}
    return results
