"""Inference: load a trained model, encode images and texts, and compare them.

Shapes: n and m rows, d embedding width.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.devices import pick_device
from common.errors import UserError
from common.images import ImageRejected, decode, to_pixels
from trainer.checkpoints.model import LoadedModel
from trainer.checkpoints.model import load_model as load_parts
from trainer.data.preprocess import fit
from trainer.models.dual_encoder import DualEncoder
from trainer.models.hyperbolic import Hyperbolic
from trainer.models.registry import model_name as registered_name

ImageInput = str | Path | PIL.Image.Image | NDArray[np.uint8]
"""A path, a PIL image, or an RGB array, uint8 [h w 3]."""
Item = TypeVar("Item")

MAX_PAIRS: Final = 2**18  # maximum number of pairs that `entails` processes at once, to limit its memory


def load_model(path: str | Path, model_name: str | None = None, device: str = "auto") -> "Model":
    """Load a trained model for inference.

    `path` is the folder of a training run, its subfolder model/, or a released `.pth` file, which needs `model_name` (a
    key of `trainer.MODELS`). `device` is auto, cpu, cuda or cuda:N. Raises UserError if the files contain no such model.

    >>> from trainer import load_model
    >>> model = load_model("demo/weights/clip", device="cpu")
    >>> model.name, model.embed_dim
    ('clip', 128)
    >>> red, fruit = model.encode_text(["a red apple", "an apple"])
    >>> bool(red @ fruit > 0.5)
    True
    """
    try:
        return Model(load_parts(path, model_name), pick_device(device))
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error


class Model:
    """A trained model with its tokenizer and preprocessing.

    Encoded images and texts are points of the model's space, one row [d] each: unit vectors for CLIP; the space
    components of points on the hyperboloid for MERU, HyCoCLIP and Syntax-MERU, and those of all factors, concatenated,
    for PHyCLIP; points of the ball for PoinCLIP.
    """

    def __init__(self, parts: LoadedModel, device: torch.device) -> None:
        self.module: DualEncoder = parts.model.to(device).eval()
        self.tokenizer = parts.tokenizer
        self.preprocess = parts.preprocess
        self.device = device
        self.name = registered_name(self.module)
        self.embed_dim = self.module.config.embed_dim

    def encode_image(self, images: ImageInput | Sequence[ImageInput], batch_size: int = 64) -> Tensor:
        """Encode images, given as paths, PIL images or RGB arrays, to points [n d]; a single image gives [1 d].

        Raises UserError if a file cannot be read as an image.

        >>> import PIL.Image
        >>> from trainer import load_model
        >>> model = load_model("demo/weights/clip", device="cpu")
        >>> model.encode_image(PIL.Image.new("RGB", (64, 48), "red")).shape
        torch.Size([1, 128])
        """
        several = [images] if isinstance(images, str | Path | PIL.Image.Image | np.ndarray) else images

        def encode(batch: Sequence[ImageInput]) -> Tensor:
            pixels = torch.stack([fit(read_image(image), self.preprocess) for image in batch])
            return self.module.encode_image(pixels.to(self.device))

        return self._encode(encode, several, batch_size)

    def encode_text(self, texts: str | Sequence[str], batch_size: int = 256) -> Tensor:
        """Encode texts to points [n d]; a single text gives [1 d]. Texts longer than the model's context are truncated.

        >>> from trainer import load_model
        >>> load_model("demo/weights/clip", device="cpu").encode_text(["a cat", "a dog", "two dogs"]).shape
        torch.Size([3, 128])
        """
        several = [texts] if isinstance(texts, str) else texts
        return self._encode(
            lambda batch: self.module.encode_text(self.tokenizer(list(batch)).to(self.device)), several, batch_size
        )

    @torch.inference_mode()
    def similarity(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Similarities [n m] of encoded rows [n d] and [m d]; larger means more similar.

        The similarity is the cosine for CLIP, and the negative distance for the hyperbolic models.

        >>> from trainer import load_model
        >>> model = load_model("demo/weights/clip", device="cpu")
        >>> words = model.encode_text(["a cat", "a kitten", "a bus"])
        >>> model.similarity(words, words).argmax(1).tolist()
        [0, 1, 2]
        """
        return self.module.similarity(self._split(queries), self._split(candidates))

    @torch.inference_mode()
    def entails(self, general: Tensor, specific: Tensor, aperture_scale: float = 1.0) -> Tensor:
        """Return a mask [n m], True if the cone of a general row [n d] contains a specific row [m d].

        In a product of factors (PHyCLIP), the cones of all factors must contain it. `aperture_scale` multiplies the
        half-apertures; HyCoCLIP trains with 0.7 for a text and an image, and with 1.2 for a box and its image or a
        phrase and its caption. In PoinCLIP, the entropy decides which of the two points is the apex.

        Raises ValueError for CLIP, which has no cones.

        >>> from trainer import load_model
        >>> model = load_model("tests/compatibility/v0_1/whole", device="cpu")  # the folder of a training run
        >>> words, captions = model.encode_text(["a dog", "a cat"]), model.encode_text(["a dog on a sofa"])
        >>> model.entails(words, captions).shape
        torch.Size([2, 1])
        """
        if not isinstance(self.module, Hyperbolic):
            raise ValueError(f"{self.name} has no entailment cones; load one of the hyperbolic models")
        return entailed(self.module, self._split(general), self._split(specific), aperture_scale)

    def _encode(self, encode: Callable[[Sequence[Item]], Tensor], items: Sequence[Item], batch_size: int) -> Tensor:
        with torch.inference_mode():
            parts = [self._join(encode(items[i : i + batch_size])) for i in range(0, len(items), batch_size)]
        return torch.cat(parts) if parts else torch.zeros(0, self.embed_dim, device=self.device)

    def _join(self, points: Tensor) -> Tensor:
        """Concatenate factors [k n d/k] to rows [n d]. Points [n d] are returned unchanged."""
        return points if points.ndim == 2 else points.movedim(0, 1).flatten(1)

    def _split(self, rows: Tensor) -> Tensor:
        """Convert rows [n d] to the model's layout: factors [k n d/k] for PHyCLIP, [n d] for the others."""
        width = getattr(self.module.config, "factor_dim", None)
        rows = rows.to(self.device)
        return rows if width is None else rows.unflatten(-1, (-1, width)).movedim(-2, 0)


def entailed(model: Hyperbolic, general: Tensor, specific: Tensor, aperture_scale: float = 1.0) -> Tensor:
    """Return a mask [n m], True if `specific` [*k m d] lies in the cone of `general` [*k n d] in all factors."""
    n, m = general.shape[-2], specific.shape[-2]
    rows_at_once = max(1, MAX_PAIRS // max(m, 1))
    found = []
    for start in range(0, n, rows_at_once):
        part = general.narrow(-2, start, min(rows_at_once, n - start))
        apexes = part.repeat_interleave(m, dim=-2)
        points = specific.repeat(*(1 for _ in specific.shape[:-2]), part.shape[-2], 1)
        angle, aperture = model.cone(apexes, points)
        inside = angle <= aperture_scale * aperture
        found.append((inside if inside.ndim == 1 else inside.all(0)).view(-1, m))
    return torch.cat(found) if found else torch.zeros(0, m, dtype=torch.bool, device=general.device)


def read_image(image: ImageInput) -> NDArray[np.uint8]:
    """Read an image as upright RGB, uint8 [h w 3]. The same picture gives the same pixels as a path and as a PIL image.

    Raises UserError for a file that cannot be read as an image, and for an array of another type or shape.
    """
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            raise UserError(f"an image is an array {image.dtype} {list(image.shape)}; give uint8 [height, width, 3]")
        return image
    try:
        if isinstance(image, PIL.Image.Image):
            return to_pixels(image)
        return decode(Path(image).read_bytes())
    except (OSError, ValueError, ImageRejected) as error:
        raise UserError(f"{image} cannot be read as an image: {error}") from error
