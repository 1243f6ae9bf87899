"""CLIP models behind one small interface: the miniature and other checkpoints of `trainer`, transformers, open_clip."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from common.devices import pick_device
from common.errors import UserError
from common.images import Image
from pipeline.model_folder import calibrated_threshold, read_config
from pipeline.score.config import CLIP_SCORE_WEIGHT

MINIATURE: Final = Path(__file__).parents[2] / "demo" / "weights" / "clip"
CLIP_SCORE_THRESHOLD: Final = 0.65  # HyCoCLIP's appendix A, read as CLIPScore (Hessel et al. 2021): cosine 0.26
OPEN_CLIP: Final = "open_clip:"
TEXT_BATCH: Final = 512


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A loaded CLIP. Images are RGB [h w 3] of any sizes; embeddings [n d] have unit length."""

    encode_images: Callable[[Sequence[Image]], Tensor]
    encode_texts: Callable[[Sequence[str]], Tensor]
    batch_size: int

    def embed_images(self, images: Sequence[Image]) -> Tensor:
        return _in_batches(self.encode_images, images, self.batch_size)

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        return _in_batches(self.encode_texts, texts, TEXT_BATCH)


def _in_batches(encode: Callable[[Any], Tensor], items: Sequence[Any], size: int) -> Tensor:
    with torch.inference_mode():
        parts = [encode(items[start : start + size]).float().cpu() for start in range(0, len(items), size)]
    return F.normalize(torch.cat(parts), dim=-1)


def scorer_path(scorer: str) -> str:
    """Where the scorer's weights are; a hub's name stands for itself."""
    return str(MINIATURE) if scorer == "miniature" else scorer


def clip_score_threshold(scorer: str) -> float:
    """CLIPScore from which on a crop shows its phrase: the model's own calibration, 0.65 without one."""
    config, places = read_config(Path(scorer_path(scorer))), [("thresholds", "clip_score")]
    return calibrated_threshold(
        config, places, otherwise=CLIP_SCORE_THRESHOLD, most=CLIP_SCORE_WEIGHT, model=f"scorer {scorer!r}"
    )


def load_scorer(scorer: str, device: str, batch_size: int) -> Scorer:
    """The CLIP of this name or folder, in evaluation mode.

    Raises UserError if it is not there.
    """
    chosen = pick_device(device, key="score.device")
    path = scorer_path(scorer)
    if scorer.startswith(OPEN_CLIP):
        images, texts = _open_clip(scorer.removeprefix(OPEN_CLIP), chosen)
    elif "format" in read_config(Path(path)) or scorer == "miniature":
        images, texts = _trainer(path, chosen)
    else:
        images, texts = _transformers(path, chosen)
    return Scorer(encode_images=images, encode_texts=texts, batch_size=batch_size)


Encoders = tuple[Callable[[Sequence[Image]], Tensor], Callable[[Sequence[str]], Tensor]]


def _trainer(path: str, device: torch.device) -> Encoders:
    # The one place where the pipeline reaches into the trainer: a model that was trained on the pipeline's shards can
    # score the next ones. Imported here, so that the pipeline runs without it.
    from trainer.checkpoints.model import load_model
    from trainer.data.preprocess import fit, to_pixels

    try:
        loaded = load_model(path)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(f"score.scorer: {path} cannot be loaded as a checkpoint of the trainer: {error}") from error
    # Pooling and convolutions are faster with the channels last, on CPUs by a quarter of the tower's time.
    model = loaded.model.to(device).to(memory_format=torch.channels_last)

    def images(batch: Sequence[Image]) -> Tensor:
        pixels = torch.stack([fit(image, loaded.preprocess) for image in batch]).to(device)
        return model.encode_image(to_pixels(pixels).contiguous(memory_format=torch.channels_last))

    return images, lambda batch: model.encode_text(loaded.tokenizer(batch).to(device))


def _transformers(path: str, device: torch.device) -> Encoders:
    from transformers import AutoModel, AutoProcessor

    try:
        # safetensors only: a pickle would be executed.
        model = AutoModel.from_pretrained(path, use_safetensors=True).to(device).eval()
        processor = AutoProcessor.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"score.scorer={path!r} is no folder of a CLIP and cannot be fetched: {_line(error)}"
        ) from error
    if not hasattr(model, "get_image_features"):
        raise UserError(f"score.scorer={path!r} is a {type(model).__name__}, which embeds no images and texts")
    # SigLIP was trained on texts padded to the full length; CLIP masks its padding.
    padding = "max_length" if "siglip" in model.config.model_type else True

    def images(batch: Sequence[Image]) -> Tensor:
        inputs = processor(images=list(batch), return_tensors="pt", input_data_format="channels_last")
        return _pooled(model.get_image_features(**inputs.to(device)))

    def texts(batch: Sequence[str]) -> Tensor:
        inputs = processor(text=list(batch), return_tensors="pt", padding=padding, truncation=True)
        return _pooled(model.get_text_features(**inputs.to(device)))

    return images, texts


def _pooled(output: Any) -> Tensor:
    """transformers 5 wraps the features into an output object."""
    return output if isinstance(output, Tensor) else output.pooler_output


def _open_clip(name: str, device: torch.device) -> Encoders:
    import open_clip
    from PIL import Image as PILImage

    architecture, _, weights = name.partition("/")
    if not weights:
        raise UserError(
            f"score.scorer={OPEN_CLIP}{name}: write {OPEN_CLIP}ARCHITECTURE/WEIGHTS, such as ViT-B-32/laion2b_s34b_b79k"
        )
    if os.sep in weights and not Path(weights).is_file():
        raise UserError(f"score.scorer={OPEN_CLIP}{name}: {weights} is not there")
    try:
        model, transform = open_clip.create_model_from_pretrained(architecture, weights, device=device)
        tokenizer = open_clip.get_tokenizer(architecture)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"score.scorer={OPEN_CLIP}{name} cannot be loaded by open_clip: {_line(error)}") from error
    model.eval()

    def images(batch: Sequence[Image]) -> Tensor:
        return model.encode_image(torch.stack([transform(PILImage.fromarray(image)) for image in batch]).to(device))

    return images, lambda batch: model.encode_text(tokenizer(list(batch)).to(device))


def _line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:300]
