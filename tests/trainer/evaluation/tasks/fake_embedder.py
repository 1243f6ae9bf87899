"""An embedder with given features, over a small model of the repository that lifts and compares them."""

import zlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.trainer.small import small_model
from trainer.evaluation.task import Fit, ImageFeatures, ImageSource
from trainer.models.dual_encoder import DualEncoder

WIDTH = 16


def random_vector(key: str, width: int = WIDTH) -> Tensor:
    """A Gaussian vector that depends on the key only."""
    return torch.randn(width, generator=torch.Generator().manual_seed(zlib.crc32(key.encode())))


def constant(item: object) -> Tensor:
    return torch.ones(WIDTH)


class FakeEmbedder:
    """Features of `text` and `image`, random by default. Files with the content "broken" cannot be read.

    `calls` records the preprocessing that was asked for.
    """

    def __init__(
        self,
        model: DualEncoder | None = None,
        text: Callable[[str], Tensor] = random_vector,
        image: Callable[[ImageSource], Tensor] = lambda source: random_vector(str(source)),
    ) -> None:
        self.model = model or small_model("clip")
        self.text, self.image = text, image
        self.calls: list[dict[str, object]] = []
        self.seen: list[ImageSource] = []

    def texts(self, texts: Sequence[str]) -> Tensor:
        return torch.stack([self.text(text) for text in texts]) if texts else torch.zeros(0, WIDTH)

    def images(
        self, images: Sequence[ImageSource], fit: Fit = "crop", *, legacy_norm: bool = False, trunk: bool = False
    ) -> ImageFeatures:
        self.calls.append({"fit": fit, "legacy_norm": legacy_norm, "trunk": trunk})
        self.seen += images
        assert len(set(images)) == len(images), "each image is embedded once"
        errors = {i: "truncated" for i, image in enumerate(images) if image.path.read_bytes() == b"broken"}
        rows = [torch.zeros(WIDTH) if i in errors else self.image(image) for i, image in enumerate(images)]
        return ImageFeatures(features=torch.stack(rows) if rows else torch.zeros(0, WIDTH), errors=errors)
