"""Load CLIP models of the trainer (such as the miniature), transformers and open_clip as scorers."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from hypergrit_common.devices import pick_device
from hypergrit_common.errors import UserError
from hypergrit_common.files import check_folder_files
from hypergrit_common.images import Image
from hypergrit_common.lazy import is_plugin, load_plugin
from hypergrit_common.weights import read_tensors
from pipeline.models import read_model_config
from pipeline.stages.score.filters import OPEN_CLIP, Encoder, ScoreConfig, scorer_path

LENGTH_STEP: Final = 16
"""Texts of the trainer's models are padded to a multiple of this number of tokens, or to the context."""

ImageEncoder = Callable[[Sequence[Image]], Tensor]
TextEncoder = Callable[[Sequence[str]], Tensor]
Encoders = dict[str, Any]
"""The fields of a Scorer that depend on the kind of model."""


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A loaded CLIP model. Images are RGB [h w 3], of any sizes; embeddings are [n d], of unit length, on the CPU.

    All batches have `batch_size` items, the last one with repetitions, and texts share a batch only with those of the
    same `padded_length`. Matrix products of another shape add in another order, so an embedding would otherwise depend
    on the items that share its batch.
    """

    encode_images: ImageEncoder
    encode_texts: TextEncoder
    batch_size: int
    padded_length: Callable[[str], int] = lambda text: 0

    def embed_images(self, images: Iterable[Image]) -> Tensor:
        """Embed at least one image."""
        return _in_batches(self.encode_images, images, self.batch_size)

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """Embed at least one text."""
        groups: dict[int, list[int]] = {}
        for i, text in enumerate(texts):
            groups.setdefault(self.padded_length(text), []).append(i)
        parts = [
            _in_batches(self.encode_texts, [texts[i] for i in group], self.batch_size) for group in groups.values()
        ]
        order = torch.tensor([i for group in groups.values() for i in group])
        return torch.cat(parts)[order.argsort()]


def _in_batches(encode: Callable[[Any], Tensor], items: Iterable[Any], size: int) -> Tensor:
    parts, rest = list[Tensor](), iter(items)
    with torch.inference_mode():
        while batch := list(islice(rest, size)):
            padded = [*batch, *batch[-1:] * (size - len(batch))]
            parts.append(F.normalize(encode(padded).float().cpu(), dim=-1)[: len(batch)])
    return torch.cat(parts)


def make_scorer(config: ScoreConfig) -> Scorer:
    """Load the scorer of a configuration: a model, or a class of the user. Raises UserError like `load_scorer`."""
    if not is_plugin(config.scorer) or config.scorer.startswith(OPEN_CLIP):
        return load_scorer(config.scorer, config.device, config.batch_size)
    encoder: Encoder = load_plugin(config.scorer, Encoder, "scorer")(config)
    return Scorer(encode_images=encoder.encode_images, encode_texts=encoder.encode_texts, batch_size=config.batch_size)


@dataclass(frozen=True)
class Head:
    """A linear head: weight [d] and bias []."""

    path: str
    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Return the scores [n] of embeddings [n d]. Raises UserError for embeddings of another width."""
        if features.shape[1] != len(self.weight):
            raise UserError(
                f"score.head={self.path} is for embeddings of {len(self.weight)} numbers, but the scorer has "
                f"{features.shape[1]}; give the head of this scorer"
            )
        return features @ self.weight + self.bias


def load_head(path: str) -> Head:
    """Load a linear head. Raises UserError if the file does not hold `weight` [d] or [1 d] and at most a `bias` [1]."""
    try:
        tensors = {name: value.float() for name, value in read_tensors(Path(path)).items()}
    except (OSError, ValueError) as error:
        raise UserError(f"score.head={path} cannot be read: {error}") from error
    weight, bias = tensors.get("weight", torch.zeros(0)), tensors.get("bias", torch.zeros(1))
    is_row = weight.ndim in (1, 2) and weight.numel() == weight.shape[-1] > 0
    if not tensors.keys() <= {"weight", "bias"} or bias.numel() != 1 or not is_row:
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in sorted(tensors.items()))
        raise UserError(f"score.head={path} has {shapes}; a head has weight [d] or [1, d], and bias [1] if it has one")
    if not (weight.isfinite().all() and bias.isfinite().all()):
        raise UserError(f"score.head={path} has values that are not finite; train or copy it again")
    return Head(path, weight.reshape(-1), bias.reshape(()))


def load_scorer(scorer: str, device: str, batch_size: int) -> Scorer:
    """Load the CLIP model of the setting `score.scorer`, in evaluation mode.

    Raises UserError if the model or the device does not exist, or if the model cannot be loaded.
    """
    torch_device = pick_device(device, key="score.device")
    path = scorer_path(scorer)
    if scorer.startswith(OPEN_CLIP):
        return Scorer(**_load_open_clip(scorer.removeprefix(OPEN_CLIP), torch_device), batch_size=batch_size)
    if "format" in read_model_config(Path(path)) or scorer == "miniature":
        return Scorer(**_load_trainer_checkpoint(path, torch_device), batch_size=batch_size)
    return Scorer(**_load_transformers(path, torch_device), batch_size=batch_size)


def _load_trainer_checkpoint(path: str, device: torch.device) -> Encoders:
    # The only import of the trainer in the pipeline: a trained model can score the boxes of further shards. The import
    # is local, so that the pipeline runs without the trainer.
    from trainer.checkpoints.model import load_model
    from trainer.data.preprocess import fit, to_pixels

    try:
        loaded = load_model(path)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(f"score.scorer: {path} cannot be loaded as a checkpoint of the trainer: {error}") from error
    # The channels-last format makes convolutions and pooling faster; on CPUs, the image tower takes 3/4 of the time.
    model = loaded.model.to(device).to(memory_format=torch.channels_last)

    def encode_images(batch: Sequence[Image]) -> Tensor:
        pixels = torch.stack([fit(image, loaded.preprocess) for image in batch]).to(device)
        return model.encode_image(to_pixels(pixels).contiguous(memory_format=torch.channels_last))

    tokenizer = loaded.tokenizer

    def padded_length(text: str) -> int:
        n_tokens = len(tokenizer.encode(text))
        return min(n_tokens + -n_tokens % LENGTH_STEP, tokenizer.context_length)

    def encode_texts(batch: Sequence[str]) -> Tensor:
        ids = tokenizer(batch)
        padded = F.pad(ids, (0, padded_length(batch[0]) - ids.shape[1]), value=tokenizer.pad_id)
        return model.encode_text(padded.to(device))

    return {"encode_images": encode_images, "encode_texts": encode_texts, "padded_length": padded_length}


def _load_transformers(path: str, device: torch.device) -> Encoders:
    from transformers import AutoModel, AutoProcessor

    try:
        check_folder_files(path)
        # safetensors only: a pickle could execute code.
        model = AutoModel.from_pretrained(path, use_safetensors=True, trust_remote_code=False).to(device).eval()
        processor = AutoProcessor.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # its type depends on the file that is damaged
        raise UserError(
            f"score.scorer={path!r} is neither a folder of a CLIP model nor a hub model that can be fetched: "
            f"{_first_line(error)}"
        ) from error
    if not hasattr(model, "get_image_features"):
        raise UserError(
            f"score.scorer={path!r} is a {type(model).__name__}, which does not embed both images and texts; "
            "choose a CLIP or SigLIP model"
        )
    # SigLIP was trained on texts of the full length; for CLIP, which masks its padding, this fixes the shape of a
    # batch.
    length = getattr(model.config, "text_config", model.config).max_position_embeddings

    def encode_images(batch: Sequence[Image]) -> Tensor:
        inputs = processor(images=list(batch), return_tensors="pt", input_data_format="channels_last")
        return _pooled(model.get_image_features(**inputs.to(device)))

    def encode_texts(batch: Sequence[str]) -> Tensor:
        texts = {"padding": "max_length", "max_length": length, "truncation": True}
        inputs = processor(text=list(batch), return_tensors="pt", **texts)
        return _pooled(model.get_text_features(**inputs.to(device)))

    return {"encode_images": encode_images, "encode_texts": encode_texts}


def _pooled(output: Any) -> Tensor:
    """Return the pooled features. transformers 5 returns them inside an output object, earlier versions directly."""
    return output if isinstance(output, Tensor) else output.pooler_output


def _load_open_clip(name: str, device: torch.device) -> Encoders:
    import open_clip
    from PIL import Image as PILImage

    architecture, _, weights = name.partition("/")
    if not weights:
        raise UserError(
            f"score.scorer={OPEN_CLIP}{name} has no weights; give {OPEN_CLIP}ARCHITECTURE/WEIGHTS, "
            f"such as {OPEN_CLIP}ViT-B-32/laion2b_s34b_b79k"
        )
    if os.sep in weights and not Path(weights).is_file():
        raise UserError(f"score.scorer={OPEN_CLIP}{name}: the file {weights} does not exist; check its path")
    try:
        if Path(weights).is_file():
            read_tensors(Path(weights))  # refuses a pickle, and everything else but tensors, before open_clip reads it
        model, transform = open_clip.create_model_from_pretrained(architecture, weights, device=device)
        tokenizer = open_clip.get_tokenizer(architecture)
    except Exception as error:  # its type depends on the file that is damaged
        raise UserError(
            f"score.scorer={OPEN_CLIP}{name} cannot be loaded by open_clip: {_first_line(error)}"
        ) from error
    model.eval()

    def encode_images(batch: Sequence[Image]) -> Tensor:
        return model.encode_image(torch.stack([transform(PILImage.fromarray(image)) for image in batch]).to(device))

    def encode_texts(batch: Sequence[str]) -> Tensor:
        return model.encode_text(tokenizer(list(batch)).to(device))

    return {"encode_images": encode_images, "encode_texts": encode_texts}


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:300]
