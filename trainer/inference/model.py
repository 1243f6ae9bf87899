"""Inference: load a trained model, encode images and texts, and compare them.

Shapes: n and m rows, d embedding width.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final, Self

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypergrit_common.devices import pick_device
from hypergrit_common.errors import UserError, prefixed
from hypergrit_common.images import ImageRejected, decode, to_pixels
from trainer.batch import Side, check_finite
from trainer.checkpoints.model import LoadedModel, load_frozen, save_model
from trainer.checkpoints.model import load_model as load_parts
from trainer.data.preprocess import fit
from trainer.encoders.cached import CachedImage
from trainer.evaluation.metrics.paths import nearest, path_to_root
from trainer.evaluation.metrics.spaces import space_of
from trainer.inference.hub import UNKNOWN_LICENSE, check_license, fetch_model, push_folder, write_card
from trainer.inference.search import Neighbours, PointIndex, entailment_margins, inner_rows, search
from trainer.models.cones import Cones
from trainer.models.dual_encoder import DualEncoder
from trainer.models.registry import model_name as registered_name

# Images that the user passes to the Python API.

ImageInput = str | Path | bytes | BinaryIO | PIL.Image.Image | NDArray[np.uint8] | Tensor
"""A path, the bytes or the open file of an image, a PIL image, or RGB as an array, uint8 [h w 3], or a tensor [3 h w]."""

Points = Tensor | NDArray[Any]
"""Encoded rows [n d]; also as a NumPy array."""


def read_image(image: ImageInput) -> NDArray[np.uint8]:
    """Read an image as upright RGB, uint8 [h w 3]. The same picture gives the same pixels as a path and as a PIL image.

    Raises UserError for a file that cannot be read as an image, an array of another type or shape, and other objects.
    """
    if isinstance(image, Tensor) and image.ndim == 3 and image.shape[0] == 3:
        image = image.movedim(0, -1)
    if isinstance(image, Tensor | np.ndarray):
        if image.dtype not in (np.uint8, torch.uint8) or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            kind = str(image.dtype).removeprefix("torch.")
            raise UserError(f"an image is an array {kind} {list(image.shape)}; give uint8 [height, width, 3]")
        pixels = image.numpy(force=True) if isinstance(image, Tensor) else image
        return pixels if pixels.flags.writeable else pixels.copy()  # torch warns of others
    try:
        if isinstance(image, PIL.Image.Image):
            return to_pixels(image)
        if isinstance(image, str | Path):
            return decode(Path(image).read_bytes())
        data: Any = image
        if not isinstance(image, bytes) and hasattr(image, "read"):
            if hasattr(image, "seekable") and image.seekable():
                image.seek(0)  # as PIL does: a buffer that was just written stands at its end
            data = image.read()
        if isinstance(data, bytes):
            return decode(data)
    except (OSError, ValueError, ImageRejected) as error:
        shown = image if isinstance(image, str | Path) else type(image).__name__
        raise UserError(f"{shown} cannot be read as an image: {error}") from error
    raise UserError(
        f"an image is {image!r:.80}, {type(image).__name__}; give a path, bytes, a file open for reading bytes, a PIL image, "
        "or RGB as an array, uint8 [height, width, 3]"
    )


TRAVERSAL_STEPS: Final = 50  # steps of a path to the root, as in MERU


def load_model(
    path: str | Path,
    model_name: str | None = None,
    device: str | torch.device = "auto",
    tower: str | Path | None = None,
    trust: Sequence[str] = (),
) -> "Model":
    """Load a trained model for inference.

    Args:
        path: folder of a training run, its subfolder model/ or checkpoints/step_N/, a folder of open_clip, or a released
            `.pth` file.
        model_name: key of `trainer.MODELS`; needed for a released file.
        device: "auto", "cpu", "cuda" or "cuda:N", or a torch device.
        tower: frozen model of a head over cached features, if it has moved.
        trust: classes of your own, "module:Class", that the files may name; their code runs. Others are refused.

    Returns:
        The model, in evaluation mode and float32.

    Raises:
        UserError: the files contain no such model, or the device does not exist.

    >>> from trainer import load_model
    >>> model = load_model("demo/weights/clip", device="cpu")
    >>> model.name, model.embed_dim
    ('clip', 128)
    >>> red, fruit = model.encode_text(["a red apple", "an apple"])
    >>> bool(red @ fruit > 0.5)
    True
    """
    try:
        return Model(load_parts(path, model_name, tower, trust), pick_device(device), trust)
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error


class Model:
    """A trained model with its tokenizer and preprocessing.

    Encoded images and texts are points of the model's space, one row [d] each: unit vectors for CLIP; the space
    components of points on the hyperboloid for MERU, HyCoCLIP and Syntax-MERU, and those of all factors, concatenated,
    for PHyCLIP; points of the ball for PoinCLIP.

    Args:
        parts: the loaded files, as of `trainer.checkpoints.model.load_model`; use `load_model` or `from_pretrained`.
        device: device of the computations.
        trust: that of `load_model`, for the frozen model of a head.
    """

    def __init__(self, parts: LoadedModel, device: torch.device, trust: Sequence[str] = ()) -> None:
        self.trust = trust
        self.module: DualEncoder = parts.model.to(device).eval()
        if isinstance(self.module, Cones):
            self.module.has_limits = False  # they would keep a point away from itself
        self.tokenizer = parts.tokenizer
        self.preprocess = parts.preprocess
        self.device = device
        self.name = registered_name(self.module)
        self.embed_dim = self.module.config.embed_dim
        self.record: dict[str, Any] = dict(parts.config.get("record") or {})

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        revision: str | None = None,
        token: str | None = None,
        device: str | torch.device = "auto",
        tower: str | Path | None = None,
        trust: Sequence[str] = (),
    ) -> Self:
        """Load a model from a folder, or else from the Hugging Face hub.

        Only JSON, safetensors and text files are downloaded, once; with HF_HUB_OFFLINE=1, nothing is.

        Args:
            name: a folder, or a repository OWNER/NAME.
            revision: branch, tag or commit of the repository.
            token: token of the hub; None: that of `hf auth login` or HF_TOKEN.
            device: that of `load_model`.
            tower: that of `load_model`.
            trust: that of `load_model`.

        Returns:
            The model.

        Raises:
            UserError: there is no such model, or it cannot be fetched.
        """
        try:
            parts = load_parts(fetch_model(str(name), revision, token), tower=tower, trust=trust)
            return cls(parts, pick_device(device), trust)
        except (OSError, ValueError) as error:
            raise UserError(str(error)) from error

    def save_pretrained(
        self, folder: str | Path, license: str = UNKNOWN_LICENSE, half: bool = False, tower: bool = False
    ) -> None:
        """Write the model to a folder that `load_model` and `from_pretrained` read, with a model card.

        The card states what is known of data, training, settings and evaluation; URLs have no secrets, and absolute paths no
        folders.

        Args:
            folder: folder to write.
            license: identifier of the hub, such as cc-by-4.0.
            half: store matrices in float16, in half the space; they are loaded as float32.
            tower: copy the frozen model of a head too; without it, the head names that by path and hash.

        Raises:
            UserError: the folder cannot be written; or, before anything is written, the license or the record is wrong.
        """
        check_license(license)
        try:
            json.dumps(self.record)
        except (TypeError, ValueError) as error:
            raise UserError(f"the record of the model is no JSON: {error}; correct Model.record") from error
        try:
            parts: dict[str, Any] = {"tokenizer": self.tokenizer, "preprocess": self.preprocess, "record": self.record}
            save_model(Path(folder), self.module, **parts, half=half, tower=self._tower(tower))
            write_card(Path(folder), license=license)
        except OSError as error:
            raise UserError(f"{folder} cannot be written: {error}; give another folder") from error

    def _tower(self, copy: bool) -> LoadedModel | Path | None:
        """The frozen model of a head, to copy, or else its path; None for other models, or if it is missing."""
        visual = self.module.visual
        if not isinstance(visual, CachedImage):
            return None
        try:
            place = visual.place().absolute()
        except UserError:
            if copy:
                raise
            return None
        name = None if place.is_dir() else self.module.config.image.kwargs.get("model")
        return load_frozen(place, name, self.trust) if copy else place

    def push_to_hub(
        self,
        name: str,
        token: str | None = None,
        private: bool | None = None,
        license: str = UNKNOWN_LICENSE,
        tower: bool = False,
    ) -> str:
        """Upload the model with its card to the Hugging Face hub.

        Args:
            name: repository OWNER/NAME, which is created if it does not exist.
            token: token of the hub; None: that of `hf auth login` or HF_TOKEN.
            private: visibility of a new repository; None: the default of its owner.
            license: that of `save_pretrained`.
            tower: that of `save_pretrained`; without it, a head can be loaded only where its frozen model is.

        Returns:
            The URL of the repository.

        Raises:
            UserError: the hub refuses or cannot be reached.
        """
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder, license, tower=tower)
            return push_folder(Path(folder), name, token, private)

    def encode_image(self, images: ImageInput | Iterable[ImageInput], batch_size: int = 64) -> Tensor:
        """Encode images to points of the space.

        Args:
            images: one or several images, as `ImageInput`; also an iterator, an array [n h w 3], or a tensor [n 3 h w].
            batch_size: number of images encoded at once.

        Returns:
            Points [n d]; [1 d] for a single image.

        Raises:
            UserError: an item cannot be read as an image; the message has its number.

        >>> import PIL.Image
        >>> from trainer import load_model
        >>> model = load_model("demo/weights/clip", device="cpu")
        >>> model.encode_image(PIL.Image.new("RGB", (64, 48), "red")).shape
        torch.Size([1, 128])
        """
        is_array = isinstance(images, np.ndarray | Tensor) and images.ndim == 3
        is_one = is_array or isinstance(images, str | Path | bytes | PIL.Image.Image) or hasattr(images, "read")

        def encode(batch: Sequence[Tensor]) -> Tensor:
            return self.module.encode_image(torch.stack(list(batch)).to(self.device))

        several = [images] if is_one else images
        return self._encode(encode, lambda image: fit(read_image(image), self.preprocess), several, "image", batch_size)

    def encode_text(self, texts: str | Iterable[str], batch_size: int = 256) -> Tensor:
        """Encode texts to points of the space.

        Args:
            texts: one or several texts, also an iterator; those longer than the model's context are truncated.
            batch_size: number of texts encoded at once.

        Returns:
            Points [n d]; [1 d] for a single text.

        Raises:
            UserError: an item is no text; the message has its number.

        >>> from trainer import load_model
        >>> load_model("demo/weights/clip", device="cpu").encode_text(["a cat", "a dog", "two dogs"]).shape
        torch.Size([3, 128])
        """

        def check(text: Any) -> str:
            if not isinstance(text, str):
                raise UserError(f"a text is {text!r:.80}, {type(text).__name__}; give a str")
            return text

        def encode(batch: Sequence[str]) -> Tensor:
            return self.module.encode_text(self.tokenizer(list(batch)).to(self.device))

        return self._encode(encode, check, [texts] if isinstance(texts, str) else texts, "text", batch_size)

    @torch.inference_mode()
    def similarity(self, queries: Points, candidates: Points, query: Side = "image") -> Tensor:
        """Compare queries with candidates; larger means more similar.

        The similarity is the cosine for CLIP, and the negative distance for the hyperbolic models. For ATMG it is an
        angle, which depends on whether the queries are images or texts.

        Args:
            queries: encoded rows [n d].
            candidates: encoded rows [m d].
            query: modality of the queries, "image" or "text"; it matters for ATMG alone.

        Returns:
            Similarities [n m].

        Raises:
            ValueError: `query` is another text.

        >>> from trainer import load_model
        >>> model = load_model("demo/weights/clip", device="cpu")
        >>> words = model.encode_text(["a cat", "a kitten", "a bus"])
        >>> model.similarity(words, words).argmax(1).tolist()
        [0, 1, 2]
        """
        if query not in ("image", "text"):
            raise ValueError(f"query is {query!r}; give image or text")
        return self.module.directed_similarity(self._split(queries), self._split(candidates), query)

    @torch.inference_mode()
    def probabilities(self, queries: Points, candidates: Points, query: Side = "image") -> Tensor:
        """Return the softmax over the candidates of the similarities, divided by the learned temperature of the model.

        Args:
            queries: encoded rows [n d].
            candidates: encoded rows [m d].
            query: that of `similarity`.

        Returns:
            Probabilities [n m]; each row has a sum of 1.

        >>> from trainer import load_model
        >>> model = load_model("demo/weights/clip", device="cpu")
        >>> words = model.encode_text(["a red apple", "an apple", "a bus"])
        >>> model.probabilities(words[:1], words[1:]).argmax().item()
        0
        """
        return (self.similarity(queries, candidates, query) * self.module.pair_scale()).softmax(-1)

    @torch.inference_mode()
    def distance(self, first: Points, second: Points) -> Tensor:
        """Return the distances of rows in the model's space.

        1 - cosine for CLIP; the geodesic distance for the hyperbolic models, for PHyCLIP its mean over the factors, or
        the root of its mean square (`metric=l2`).

        Args:
            first: encoded rows [n d].
            second: encoded rows [m d].

        Returns:
            Distances [n m], 0 or more up to rounding: that of a point to itself is below 1e-7 sinh(sqrt(c) r) / sqrt(c) at the
            radius r, since points are rounded to float32.

        >>> from trainer import load_model
        >>> model = load_model("tests/trainer/finished_run", device="cpu")  # the folder of a training run
        >>> words = model.encode_text(["a cat", "a dog"])
        >>> bool((model.distance(words, words) == -model.similarity(words, words)).all())
        True
        """
        return self.module.distance(self._split(first), self._split(second))

    @torch.inference_mode()
    def radius(self, points: Points) -> Tensor:
        """Return the distances of rows from the root of the space, its origin. General concepts should be nearer.

        Args:
            points: encoded rows [n d].

        Returns:
            Distances [n]; 1 for CLIP's unit vectors.

        >>> from trainer import load_model
        >>> model = load_model("tests/trainer/finished_run", device="cpu")
        >>> model.radius(model.encode_text(["a dog", "a dog on a sofa"])).shape
        torch.Size([2])
        """
        return self.module.radius(self._split(points))

    @torch.inference_mode()
    def entailment(
        self, general: Points, specific: Points, aperture_scale: float | None = None, within: bool = False
    ) -> Tensor:
        """Return the margins by which the cones of general rows contain specific rows.

        The half-aperture of the cone minus the exterior angle (MERU, eq. 10 and 11). In a product of factors (PHyCLIP),
        the least margin of all factors. In PoinCLIP, the entropy decides which of the two points is the apex.

        Args:
            general: encoded rows [n d], the apexes of the cones.
            specific: encoded rows [m d].
            aperture_scale: factor of the half-apertures; None: that of the model's training. For HyCoCLIP, this is 0.7 for a
                text and an image, and 1.2 `within` a modality; models without such factors have 1.
            within: both sides are images, such as a box and its image, or both are texts, such as a phrase and its caption.

        Returns:
            Margins [n m] in radians: 0 or more inside the cone, negative outside. The root entails every point, and a
            point itself and its equals, up to 1e-5 of its norm.

        Raises:
            ValueError: the model has no cones, such as CLIP.

        >>> from trainer import load_model
        >>> model = load_model("tests/trainer/finished_run", device="cpu")
        >>> words, captions = model.encode_text(["a dog", "a cat"]), model.encode_text(["a dog on a sofa"])
        >>> bool(((model.entailment(words, captions) >= 0) == model.entails(words, captions)).all())
        True
        """
        if not isinstance(self.module, Cones):
            raise ValueError(f"{self.name} has no entailment cones; load one of the hyperbolic models")
        scale = self.module.aperture_scale(within) if aperture_scale is None else aperture_scale
        return entailment_margins(self.module, self._split(general), self._split(specific), scale)

    @torch.inference_mode()
    def entails(
        self, general: Points, specific: Points, aperture_scale: float | None = None, within: bool = False
    ) -> Tensor:
        """Return whether the cones of general rows contain specific rows: the margin of `entailment` is 0 or more.

        One answer is a threshold on a noisy number. Shares over many pairs mean more, beside those of wrong pairs.

        Args:
            general: encoded rows [n d].
            specific: encoded rows [m d].
            aperture_scale: that of `entailment`.
            within: that of `entailment`.

        Returns:
            Mask [n m]. In a product of factors, the cones of all factors must contain the row.

        Raises:
            ValueError: the model has no cones, such as CLIP.

        >>> from trainer import load_model
        >>> model = load_model("tests/trainer/finished_run", device="cpu")  # the folder of a training run
        >>> words, captions = model.encode_text(["a dog", "a cat"]), model.encode_text(["a dog on a sofa"])
        >>> model.entails(words, captions, within=True).shape
        torch.Size([2, 1])
        >>> model.entails(words, words, within=True).diagonal().float().mean().item()  # the share over pairs of rows
        1.0
        """
        return self.entailment(general, specific, aperture_scale, within) >= 0

    @torch.inference_mode()
    def index(self, candidates: Points) -> PointIndex:
        """Prepare candidates for repeated searches with `nearest`, by inner products.

        Args:
            candidates: encoded rows [m d].

        Returns:
            The index.

        Raises:
            UserError: the model is PHyCLIP: no inner product orders candidates as its distance does.
        """
        return PointIndex(rows=inner_rows(self.module, self._split(candidates), 1), model=self.module)

    @torch.inference_mode()
    def nearest(self, queries: Points, candidates: Points | PointIndex, k: int = 10) -> Neighbours:
        """Find the nearest candidates of queries, by `distance`. All candidates are compared, in blocks.

        Args:
            queries: encoded rows [n d].
            candidates: encoded rows [m d], or an `index` of them, which is searched by matrix products: this takes less
                time, and finds the same neighbours up to rounding.
            k: number of neighbours.

        Returns:
            Distances and indices [n min(k, m)], nearest first.

        >>> from trainer import load_model
        >>> model = load_model("demo/weights/clip", device="cpu")
        >>> words = model.encode_text(["a cat", "a red apple", "a bus"])
        >>> model.nearest(model.encode_text("an apple"), words, k=1).indices.tolist()
        [[1]]
        >>> model.nearest(model.encode_text("an apple"), model.index(words), k=1).indices.tolist()
        [[1]]
        """
        points = self._split(queries)
        if isinstance(candidates, PointIndex):
            return candidates.search(points, k)
        return search(self.module, points, self._split(candidates), k)

    @torch.inference_mode()
    def traverse(
        self,
        points: Points,
        candidates: Points,
        steps: int = TRAVERSAL_STEPS,
        entailing: bool = False,
        root: Tensor | None = None,
    ) -> Tensor:
        """Find the candidates nearest to the steps of paths from points to the root (MERU, section 5 and appendix D).

        The steps are equally spaced in the tangent space at the root; the first is the point, the last the root.

        Args:
            points: encoded rows [n d].
            candidates: encoded rows [m d].
            steps: number of steps, 1 or more.
            entailing: compare only candidates whose cones contain a step, and the root, as in MERU; its candidates are
                texts.
            root: root [d] of CLIP; None: the mean direction of points and candidates. That of the hyperbolic models is
                the origin.

        Returns:
            Indices [n steps] of the candidates; m is the root.

        Raises:
            ValueError: `entailing` is true for a model without cones, or there are no points or steps.

        >>> from trainer import load_model
        >>> model = load_model("tests/trainer/finished_run", device="cpu")
        >>> texts = model.encode_text(["a dog on a sofa", "a dog"])
        >>> model.traverse(texts[:1], texts, steps=5)[0, [0, -1]].tolist()  # from the text itself to the root
        [0, 2]
        """
        has_cones = isinstance(self.module, Cones)
        if entailing and not has_cones:
            raise ValueError(f"{self.name} has no entailment cones; set entailing=False")
        starts, pool = self._split(points), self._split(candidates)
        if not len(points) or steps < 1:
            raise ValueError(f"{len(points)} points and {steps} steps are no path; give at least one of each")
        center = None if has_cones else torch.cat([pool, starts]).mean(0) if root is None else root.to(self.device)
        space = space_of(self.module, center)
        can_entail = torch.ones(len(candidates), dtype=torch.bool, device=self.device) if entailing else None
        min_radius = self.module.config.min_radius if isinstance(self.module, Cones) else 0.0
        paths = (path_to_root(space, starts[..., row : row + 1, :], steps) for row in range(len(points)))
        found = [nearest(self.module.similarity, space, path, pool, can_entail, min_radius) for path in paths]
        return torch.stack(found).to(self.device)

    def _encode(
        self,
        encode: Callable[[Sequence[Any]], Tensor],
        read: Callable[[Any], Any],
        items: Any,
        what: str,
        batch_size: int,
    ) -> Tensor:
        """Encode the items that `read` accepts, batch by batch. Raises UserError that names an item it does not."""
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; give a number of items, at least 1")
        if not isinstance(items, Iterable):
            raise UserError(f"{what}s are {items!r:.80}, {type(items).__name__}; give one or several")
        numbered, parts = enumerate(items), list[Tensor]()
        with torch.inference_mode():
            while batch := [
                self._read(read, item, f"{what} {number}") for number, item in islice(numbered, batch_size)
            ]:
                parts.append(self._join(encode(batch)))
        return (
            check_finite(torch.cat(parts), f"{what}s") if parts else torch.zeros(0, self.embed_dim, device=self.device)
        )

    @staticmethod
    def _read(read: Callable[[Any], Any], item: Any, name: str) -> Any:
        with prefixed(f"{name}: "):
            return read(item)

    def _join(self, points: Tensor) -> Tensor:
        """Concatenate factors [k n d/k] to rows [n d]. Points [n d] are returned unchanged."""
        return points if points.ndim == 2 else points.movedim(0, 1).flatten(1)

    def _split(self, points: Points) -> Tensor:
        """Convert rows [n d] to the model's layout: factors [k n d/k] for PHyCLIP, [n d] for the others.

        Raises UserError for other shapes, and for what is no tensor or array.
        """
        if not isinstance(points, Tensor | np.ndarray):
            raise UserError(f"points are {type(points).__name__}; give a tensor or array of encoded rows")
        if points.ndim != 2 or points.shape[1] != self.embed_dim:
            raise UserError(
                f"points are {list(points.shape)}; give rows [n, {self.embed_dim}], as encode_image and encode_text return"
            )
        width = getattr(self.module.config, "factor_dim", None)
        try:
            found = np.ascontiguousarray(points, np.float32) if isinstance(points, np.ndarray) else points
        except (TypeError, ValueError) as error:
            raise UserError(f"points are an array of {points.dtype}; give numbers: {error}") from error
        rows = torch.as_tensor(found, dtype=torch.float32, device=self.device)
        return rows if width is None else rows.unflatten(-1, (-1, width)).movedim(-2, 0)
