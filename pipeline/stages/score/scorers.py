"""Load CLIP models of the trainer (such as the miniature), transformers and open_clip as scorers."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hypergrit_common.central import central_part, limit_aspect_ratio
from hypergrit_common.devices import pick_device
from hypergrit_common.errors import UserError
from hypergrit_common.images import Image
from hypergrit_common.lazy import is_plugin, load_plugin
from hypergrit_common.model_files import check_model, loading, panics_as_errors
from hypergrit_common.text import first_line
from hypergrit_common.weights import bounded_by_folder, read_tensors
from pipeline.models import TRIAL, read_model_config, token_limit
from pipeline.stages.score.filters import OPEN_CLIP, Encoder, ScoreConfig, scorer_path

LENGTH_STEP: Final = 16
"""Texts of the trainer's models are padded to a multiple of this number of tokens, or to the context."""
TOLERANCE: Final = 3 / 255
"""Largest difference of pixels that are the same, as a share of their range: resizing rounds in two ways."""

Prepare = Callable[[Image], Any]
ImageEncoder = Callable[[Sequence[Any]], Tensor]
TextEncoder = Callable[[Sequence[str]], Tensor]
Encoders = dict[str, Any]
"""The fields of a Scorer that depend on the kind of model."""


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """A loaded CLIP model. Images are RGB [h w 3], of any sizes; embeddings are [n d], of unit length, on the CPU.

    All batches have `batch_size` items, the last one with repetitions, and texts share a batch only with those of the
    same `padded_length`. Matrix products of another shape add in another order, so an embedding would otherwise depend
    on the items that share its batch. Images are prepared one by one, before the batch is filled up, so that its memory
    does not depend on their shapes.

    Attributes:
        prepare_image: an image to the network's input, without gradients.
        encode_images: the inputs of `batch_size` images to vectors of any length and device.
        encode_texts: likewise of texts.
        batch_size: items of each batch.
        padded_length: number of tokens to which a text is padded; 0 for all texts if batches do not depend on it.
    """

    encode_images: ImageEncoder
    encode_texts: TextEncoder
    batch_size: int
    prepare_image: Prepare = lambda image: image
    padded_length: Callable[[str], int] = lambda text: 0
    finish: Callable[[Tensor], Tensor] = F.normalize
    """What is done with the outputs of the towers."""

    def embed_images(self, images: Iterable[Image]) -> Tensor:
        """Embed images.

        Args:
            images: at least one, uint8 RGB [h w 3]; they are read batch by batch.

        Returns:
            float32 [n d], of unit length, on the CPU, in the order of the images.
        """
        return self._in_batches(self.encode_images, map(self.prepare_image, images))

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """Embed texts.

        Args:
            texts: at least one.

        Returns:
            float32 [n d], of unit length, on the CPU, in the order of the texts.
        """
        groups: dict[int, list[int]] = {}
        for i, text in enumerate(texts):
            groups.setdefault(self.padded_length(text), []).append(i)
        parts = [self._in_batches(self.encode_texts, [texts[i] for i in group]) for group in groups.values()]
        order = torch.tensor([i for group in groups.values() for i in group])
        return torch.cat(parts)[order.argsort()]

    def _in_batches(self, encode: Callable[[Any], Tensor], items: Iterable[Any]) -> Tensor:
        parts, rest = list[Tensor](), iter(items)
        with torch.inference_mode():
            while batch := list(islice(rest, self.batch_size)):
                padded = [*batch, *batch[-1:] * (self.batch_size - len(batch))]
                parts.append(self.finish(encode(padded).float().cpu())[: len(batch)])
        return torch.cat(parts)


def make_scorer(config: ScoreConfig, trust: Sequence[str] = ()) -> Scorer:
    """Load the scorer of a configuration: a model, or a class of the user.

    Args:
        config: settings; `scorer` is not "none".
        trust: classes of the user that a model of the trainer may name.

    Returns:
        The scorer.

    Raises:
        UserError: as `load_scorer`, or the class of the user cannot be imported or is no Encoder.
    """
    if not is_plugin(config.scorer) or config.scorer.startswith(OPEN_CLIP):
        return load_scorer(config.scorer, config.device, config.batch_size, trust)
    encoder: Encoder = load_plugin(config.scorer, Encoder, "scorer")(config)
    return Scorer(encode_images=encoder.encode_images, encode_texts=encoder.encode_texts, batch_size=config.batch_size)


Head = Callable[[Tensor, Sequence[str]], Tensor]
"""Scores [n] of rows, from the embeddings [n d] of their images and their captions."""


@dataclass(frozen=True)
class LinearHead:
    """A linear head on the embeddings of images: weight [d] and bias [], float32."""

    path: str
    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor, captions: Sequence[str]) -> Tensor:
        """Return the scores [n] of embeddings [n d]. Raises UserError for embeddings of another width."""
        if features.shape[1] != len(self.weight):
            raise UserError(
                f"score.head={self.path} is for embeddings of {len(self.weight)} numbers, but the scorer has "
                f"{features.shape[1]}; give the head of this scorer"
            )
        return features @ self.weight + self.bias


def load_head(path: str, device: str = "cpu", batch_size: int = 64, trust: Sequence[str] = ()) -> Head:
    """Load a linear head, or a hyperbolic model whose score is the distance of the caption to the root.

    Args:
        path: safetensors, or a torch file of tensors alone, with `weight` [d] or [1 d] and at most a `bias` [1] or [];
            or the folder of a hyperbolic model of the trainer.
        device: that of the model: "auto", "cpu", "cuda" or "cuda:N".
        batch_size: number of captions in a batch of the model.
        trust: that of `make_scorer`.

    Returns:
        The head.

    Raises:
        UserError: the file cannot be read, or has other tensors, other shapes or values that are not finite; or the
            model cannot be loaded, or is not hyperbolic.
    """
    if Path(path).is_dir():
        return _load_root_distance(path, pick_device(device, key="score.device"), batch_size, trust)
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
    return LinearHead(path, weight.reshape(-1), bias.reshape(()))


def _load_root_distance(path: str, device: torch.device, batch_size: int, trust: Sequence[str]) -> Head:
    from trainer.models.hyperbolic import Hyperbolic

    model, encoders = _load_trainer_checkpoint(path, device, "score.head", trust)
    if not isinstance(model, Hyperbolic):
        raise UserError(
            f"score.head: {path} is no hyperbolic model: captions have no distance to its root; give another"
        )
    encode = encoders["encode_texts"]
    encoders["encode_texts"] = lambda batch: model.radius(encode(batch))[:, None]
    scorer = Scorer(**encoders, batch_size=batch_size, finish=lambda distances: distances)
    return lambda _, captions: scorer.embed_texts(captions)[:, 0]


def load_scorer(scorer: str, device: str, batch_size: int, trust: Sequence[str] = ()) -> Scorer:
    """Load the CLIP model of the setting `score.scorer`, in evaluation mode. Classes of the user are `make_scorer`'s.

    Args:
        scorer: `ScoreConfig.scorer`, but no class of the user.
        device: "auto", "cpu", "cuda" or "cuda:N".
        batch_size: items of each batch.
        trust: that of `make_scorer`.

    Returns:
        The scorer.

    Raises:
        UserError: the model or the device does not exist, or the model is damaged or embeds only images or texts.
    """
    torch_device = pick_device(device, key="score.device")
    path = scorer_path(scorer)
    if scorer.startswith(OPEN_CLIP):
        return Scorer(**_load_open_clip(scorer.removeprefix(OPEN_CLIP), torch_device), batch_size=batch_size)
    if "format" in read_model_config(Path(path)) or scorer == "miniature":
        encoders = _load_trainer_checkpoint(path, torch_device, "score.scorer", trust)[1]
        return Scorer(**encoders, batch_size=batch_size)
    return Scorer(**_load_transformers(path, torch_device), batch_size=batch_size)


def _load_trainer_checkpoint(path: str, device: torch.device, key: str, trust: Sequence[str]) -> tuple[Any, Encoders]:
    # The only import of the trainer in the pipeline: a trained model can score the rows of further shards. The import
    # is local, so that the pipeline runs without the trainer.
    from trainer.checkpoints.model import load_model
    from trainer.data.preprocess import fit, to_pixels

    try:
        loaded = load_model(path, trust=trust)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(f"{key}: {path} cannot be loaded as a checkpoint of the trainer: {error}") from error
    # The channels-last format makes convolutions and pooling faster; on CPUs, the image tower takes 3/4 of the time.
    model = loaded.model.to(device).to(memory_format=torch.channels_last)

    def encode_images(batch: Sequence[Tensor]) -> Tensor:
        pixels = torch.stack(list(batch)).to(device)
        return model.encode_image(to_pixels(pixels).contiguous(memory_format=torch.channels_last))

    tokenizer = loaded.tokenizer

    def padded_length(text: str) -> int:
        n_tokens = len(tokenizer.encode(text))
        return min(n_tokens + -n_tokens % LENGTH_STEP, tokenizer.context_length)

    def encode_texts(batch: Sequence[str]) -> Tensor:
        ids = tokenizer(batch)
        padded = F.pad(ids, (0, padded_length(batch[0]) - ids.shape[1]), value=tokenizer.pad_id)
        return model.encode_text(padded.to(device))

    prepare = partial(fit, config=loaded.preprocess)
    encoders = {"prepare_image": prepare, "encode_images": encode_images, "encode_texts": encode_texts}
    return model, {**encoders, "padded_length": padded_length}


def _load_transformers(path: str, device: torch.device) -> Encoders:
    try:
        with panics_as_errors():
            return _transformers_encoders(path, device)
    except UserError as error:
        raise UserError(f"score.scorer={path!r}: {error}") from error
    except Exception as error:  # its type depends on the file that is damaged
        raise UserError(
            f"score.scorer={path!r} is neither a folder of a CLIP model nor a hub model that can be fetched: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error


def _transformers_encoders(path: str, device: torch.device) -> Encoders:
    """Load the encoders and try them once, so that settings that do not fit end the job before its first row."""
    from transformers import AutoModel, AutoProcessor

    check_model(path)
    options = loading(path)
    with bounded_by_folder(path):  # safetensors only: a pickle could execute code.
        model = AutoModel.from_pretrained(path, use_safetensors=True, **options).to(device).eval()
    if not hasattr(model, "get_image_features"):
        raise UserError(
            f"it is a {type(model).__name__}, which does not embed both images and texts; choose a CLIP or SigLIP model"
        )
    processor = AutoProcessor.from_pretrained(path, **options)
    # SigLIP was trained on texts of the full length; for CLIP, which masks its padding, this fixes the shape of a
    # batch.
    text_config = getattr(model.config, "text_config", model.config)
    length = token_limit(processor.tokenizer, getattr(text_config, "max_position_embeddings", None))

    def encode_images(batch: Sequence[dict[str, Tensor]]) -> Tensor:
        inputs = {name: torch.cat([item[name] for item in batch]).to(device) for name in batch[0]}
        return _pooled(model.get_image_features(**inputs))

    def encode_texts(batch: Sequence[str]) -> Tensor:
        texts = {"padding": "max_length", "max_length": length, "truncation": True}
        inputs = processor(text=list(batch), return_tensors="pt", **texts)
        return _pooled(model.get_text_features(**inputs.to(device)))

    prepare = image_preparation(getattr(processor, "image_processor", processor))
    with torch.inference_mode():
        for name, features in (("images", encode_images([prepare(TRIAL)])), ("texts", encode_texts(["a dog"]))):
            if not features.isfinite().all():
                raise UserError(f"its features of {name} are not finite; save the model and its processor again")
    return {"prepare_image": prepare, "encode_images": encode_images, "encode_texts": encode_texts}


def image_preparation(processor: Any) -> Prepare:
    """Return a function that gives an image to a processor of transformers: of a thin one, what the processor would keep."""

    def prepare(image: Image) -> dict[str, Tensor]:
        return dict(processor(images=[image], return_tensors="pt", input_data_format="channels_last"))

    size, crop = (getattr(processor, name, None) or {} for name in ("size", "crop_size"))
    if not (getattr(processor, "do_center_crop", False) and size.get("shortest_edge")):
        return prepare
    edges, crops = (size["shortest_edge"],) * 2, (crop.get("height") or 0, crop.get("width") or 0)
    cut = partial(_cut, edges=edges, crops=crops, resample=processor.resample, to_first=int)
    return _with_cut(prepare, cut, lambda inputs: inputs["pixel_values"])


def open_clip_preparation(transform: Any) -> Prepare:
    """Return a function that gives an image to a transform of open_clip: of a thin one, what the transform would keep."""
    from open_clip.transform import ResizeKeepRatio, to_2tuple
    from PIL import Image as PILImage
    from torchvision.transforms import CenterCrop, Resize
    from torchvision.transforms.functional import pil_modes_mapping

    def prepare(image: Image) -> Tensor:
        return transform(PILImage.fromarray(image))

    resize, crop = transform.transforms[:2]
    edges = to_2tuple(resize.size)
    if isinstance(crop, CenterCrop):
        resample, to_length = pil_modes_mapping[resize.interpolation], int if isinstance(resize, Resize) else round
        cut = partial(_cut, edges=edges, crops=crop.size, resample=resample, to_length=to_length, is_pillow=True)
    elif isinstance(resize, ResizeKeepRatio):  # by the longer side
        cut = partial(limit_aspect_ratio, most=min(edges))
    else:
        return prepare
    return _with_cut(prepare, cut)


def _cut(image: Image, *, edges: Sequence[int], crops: Sequence[int], **options: Any) -> Image:
    """Return the central part of a thin image. `edges` and `crops` are the height and width of a resize and a crop."""
    is_tall = image.shape[0] > image.shape[1]
    return central_part(image, edges[is_tall], crops[not is_tall], **options)


def _with_cut(prepare: Prepare, cut: Prepare, pixels: Callable[[Any], Tensor] = lambda inputs: inputs) -> Prepare:
    """Return a function that gives `prepare` only the part of a thin image that `cut` leaves, which is faster.

    It is `prepare` itself if the `pixels` of two thin images of random blocks differ then: some processors resize otherwise.
    """
    blocks = np.random.default_rng(0).integers(0, 2, (8, 43, 3), np.uint8).repeat(40, axis=0).repeat(40, axis=1) * 255
    for image in (blocks, np.ascontiguousarray(blocks.swapaxes(0, 1))):
        whole, part = pixels(prepare(image)), pixels(prepare(cut(image)))
        if whole.shape != part.shape or (whole - part).abs().max() > TOLERANCE * (whole.max() - whole.min()):
            return prepare
    return lambda image: prepare(cut(image))


def _pooled(output: Any) -> Tensor:
    """Return the pooled features. transformers 5 returns them inside an output object, earlier versions directly."""
    return output if isinstance(output, Tensor) else output.pooler_output


def _load_open_clip(name: str, device: torch.device) -> Encoders:
    import open_clip

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
        raise UserError(f"score.scorer={OPEN_CLIP}{name} cannot be loaded by open_clip: {first_line(error)}") from error
    model.eval()
    length = min(tokenizer.context_length, getattr(model, "context_length", tokenizer.context_length))
    prepare = open_clip_preparation(transform)

    def encode_images(batch: Sequence[Tensor]) -> Tensor:
        return model.encode_image(torch.stack(list(batch)).to(device))

    def encode_texts(batch: Sequence[str]) -> Tensor:
        return model.encode_text(tokenizer(list(batch), context_length=length).to(device))

    return {"prepare_image": prepare, "encode_images": encode_images, "encode_texts": encode_texts}
