"""The `Embedder` of the command: a model with a cache of features on disk, shared over ranks.

Every rank embeds an equal share of the items and receives the features of all of them. Features are identified by the
hash of the model, and by the text, or the content of the image with its box and preprocessing. The order of the items
and the names of the files do not matter.

Shapes: n items, u distinct ones, d width of the features, s side of the model's input.
"""

import dataclasses
import hashlib
import json
import logging
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypergrit_common.disk import atomic_write
from hypergrit_common.files import check_file
from hypergrit_common.images import ImageRejected
from hypergrit_common.lazy import is_plugin, plugin_hash
from hypergrit_common.threads import map_in_threads
from trainer.batch import check_finite
from trainer.data.preprocess import to_pixels
from trainer.distributed.gather import all_ranks, gather, rank, world_size
from trainer.evaluation.embed import batched, device_of
from trainer.evaluation.sets.pictures import cut, is_below, read_content, to_square
from trainer.evaluation.task import Fit, ImageFeatures, ImageSource
from trainer.models.dual_encoder import DualEncoder
from trainer.models.registry import model_name
from trainer.text.base import TextTokenizer

# Features on disk, by the hash of what was embedded. An interrupted evaluation finds the features already computed.
#
# A cache is a folder of `.npy` files with rows (key, features). Files are written atomically and never changed, and each
# process writes its own, so that several processes may share a folder.
#
# Shapes: n rows, d width of the features.

logger = logging.getLogger(__name__)

KEY_BYTES: Final = 16
ROWS_PER_FILE: Final = 2048
"""Number of new rows that are kept in memory before they are written to a file."""
MAX_ROWS: Final = 1 << 20
"""Maximum number of rows of a file that is read: a batch may be larger than `ROWS_PER_FILE`."""


def content_key(*parts: bytes | str) -> bytes:
    """The first 128 bits of the SHA-256 of the parts, each preceded by its length."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()[:KEY_BYTES]


def open_rows(path: Path, dtype: np.dtype[np.void], most: int) -> NDArray[np.void] | None:
    """Map the rows of an .npy file of the cache into memory. One that is damaged or has others, or too many, is logged."""
    try:
        check_file(path)
        rows: NDArray[np.void] = np.lib.format.open_memmap(path, mode="r")
        if rows.dtype != dtype or rows.ndim != 1 or len(rows) > most:
            raise ValueError("it holds rows of another kind, or too many")
    except Exception as error:  # its type depends on the place of the damage
        logger.warning("%s is damaged and is ignored: %s", path, error)
        return None
    return rows


class FeatureCache:
    """Features of one width in a folder, which is created. Rows are read from memory maps."""

    def __init__(self, folder: Path, width: int) -> None:
        self.folder = folder
        self.dtype = np.dtype([("key", "u1", KEY_BYTES), ("features", "<f4", width)])
        self.places: dict[bytes, tuple[int, int]] = {}  # key -> number of the file, row
        self.maps: list[NDArray[np.void]] = []
        self.pending: dict[bytes, NDArray[np.float32]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob("*.npy")):
            self._open(path)

    def _open(self, path: Path) -> None:
        """Add the rows of a file. A damaged file is logged and ignored; its rows are computed again."""
        if (rows := open_rows(path, self.dtype, MAX_ROWS)) is None:
            return
        self.places |= {key.tobytes(): (len(self.maps), row) for row, key in enumerate(np.array(rows["key"]))}
        self.maps.append(rows)

    def __contains__(self, key: bytes) -> bool:
        return key in self.pending or key in self.places

    def read(self, keys: Sequence[bytes]) -> NDArray[np.float32]:
        """Return the features [n d] of keys that the cache contains."""
        found = np.empty((len(keys), self.dtype["features"].shape[0]), np.float32)
        for row, key in enumerate(keys):
            if key in self.pending:
                found[row] = self.pending[key]
            else:
                file, place = self.places[key]
                found[row] = self.maps[file][place]["features"]
        return found

    def add(self, rows: Mapping[bytes, NDArray[np.float32]]) -> None:
        """Add features [d] by key. They reach the disk at the next `flush`, or when enough have been added."""
        self.pending |= rows
        if len(self.pending) >= ROWS_PER_FILE:
            self.flush()

    @contextmanager
    def flushed(self) -> Iterator[None]:
        """Write the added rows at the end, also after an exception: an interrupted evaluation keeps them."""
        try:
            yield
        finally:
            self.flush()

    def flush(self) -> None:
        """Write the added rows to a new file."""
        if not self.pending:
            return
        rows = np.empty(len(self.pending), self.dtype)
        for place, (key, features) in enumerate(self.pending.items()):
            rows[place] = (np.frombuffer(key, np.uint8), features)
        path = self.folder / f"{os.getpid()}-{uuid.uuid4().hex[:12]}.npy"
        with atomic_write(path) as draft, draft.open("wb") as file:
            np.save(file, rows, allow_pickle=False)
        self.pending.clear()
        self._open(path)


VERSION: Final = 2
"""Version of the preprocessing. Features of another version are computed again."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Prepared(NamedTuple):
    """A distinct image: its number, and its key and pixels, or the error of reading it. Cached ones lack pixels."""

    number: int
    key: bytes
    pixels: Tensor | None
    error: str


def hash_model(model: DualEncoder, tokenizer: TextTokenizer) -> str:
    """SHA-256 of a model's name (of a class of the user: of its file), settings, weights and vocabulary, in hexadecimal digits."""
    digest = hashlib.sha256()
    settings = json.dumps(dataclasses.asdict(model.config), sort_keys=True, default=str)
    name = model_name(model)
    name += plugin_hash(name) if is_plugin(name) else ""  # changed code gives other features
    digest.update(f"{VERSION} {name} {settings} {tokenizer.context_length}".encode())
    digest.update(tokenizer.definition.encode())
    for name, value in sorted(model.state_dict().items()):
        array = value.detach().cpu().contiguous()
        digest.update(f"{name} {array.dtype} {list(array.shape)}".encode())
        digest.update(array.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class CachedEmbedder:
    """The `Embedder` of a model. `seen` collects the images that were asked for.

    `workers` threads read and decode images, of files below `root` alone. At most 8 files per thread are decoded ahead.
    """

    def __init__(
        self, model: DualEncoder, tokenizer: TextTokenizer, folder: Path, batch_size: int = 256, workers: int = 4
    ) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        self.batch_size, self.workers = batch_size, max(1, workers)
        self.hash = hash_model(model, tokenizer)
        self.folder, self.root = folder / self.hash[:16], Path("/")
        self.caches: dict[str, FeatureCache] = {}
        self.seen: dict[ImageSource, None] = {}

    @property
    def embed_dim(self) -> int:
        return self.model.config.embed_dim

    def texts(self, texts: Sequence[str]) -> Tensor:
        """Return the features [n d] of texts before the lift, float32 on the CPU. Equal texts are embedded once."""
        distinct = list(dict.fromkeys(texts))
        mine = distinct[rank() :: world_size()]
        cache = self._cache("text", self.embed_dim)
        keys = {text: content_key("text", text) for text in mine}
        missing = sorted((text for text, key in keys.items() if key not in cache), key=len)  # less padding
        with cache.flushed():
            for batch in batched(missing, self.batch_size):
                with torch.inference_mode():
                    features = self.model.text_features(self.tokenizer(batch).to(device_of(self.model)))
                rows = features.float().cpu().numpy()
                cache.add({keys[text]: row for text, row in zip(batch, rows, strict=True)})
        rows_of = self._merge(torch.from_numpy(cache.read([keys[text] for text in mine])), len(distinct))
        check_finite(rows_of, "texts")
        place = {text: number for number, text in enumerate(distinct)}
        return rows_of[[place[text] for text in texts]]

    def images(
        self, images: Sequence[ImageSource], fit: Fit = "crop", *, legacy_norm: bool = False, trunk: bool = False
    ) -> ImageFeatures:
        """Return the features of images, float32 on the CPU. An image that cannot be read has an error and zeros."""
        self.seen |= dict.fromkeys(image for image in images if is_below(image, self.root))
        distinct = list(dict.fromkeys(images))
        width = int(self.model.visual.num_features) if trunk else self.embed_dim  # type: ignore[arg-type]
        cache = self._cache("trunk" if trunk else "image", width)
        kind = f"{fit} {self.model.config.image.size_px} {legacy_norm}"
        mine = list(enumerate(distinct))[rank() :: world_size()]
        rows = np.zeros((len(mine), width), np.float32)
        keys: dict[int, bytes] = {}
        errors: dict[int, str] = {}
        prepared = self._prepare([image for _, image in mine], fit, kind, cache)
        with cache.flushed():
            for batch in batched(prepared, self.batch_size):
                fresh = {item.key: item.pixels for item in batch if item.pixels is not None}
                if fresh:
                    features = self._embed(torch.stack(list(fresh.values())), legacy_norm, trunk)
                    cache.add(dict(zip(fresh, features.numpy(), strict=True)))
                errors |= {mine[item.number][0]: item.error for item in batch if item.error}
                keys |= {item.number: item.key for item in batch if not item.error}
        rows[list(keys)] = cache.read(list(keys.values()))
        found = check_finite(self._merge(torch.from_numpy(rows), len(distinct)), "images")
        all_errors = {number: error for part in all_ranks(errors) for number, error in part.items()}
        place = {image: number for number, image in enumerate(distinct)}
        order = [place[image] for image in images]
        return ImageFeatures(
            features=found[order],
            errors={row: all_errors[number] for row, number in enumerate(order) if number in all_errors},
        )

    def _embed(self, pixels: Tensor, legacy_norm: bool, trunk: bool) -> Tensor:
        """Features [b d] of images, uint8 [b 3 s s]."""
        values = to_pixels(pixels.to(device_of(self.model)))
        if legacy_norm:
            values = (values - 0.5) / 0.5
        with torch.inference_mode():
            if trunk:
                features = self.model.visual((values - self.model.pixel_mean) / self.model.pixel_std)
            else:
                features = self.model.image_features(values)
        return features.float().cpu()

    def _prepare(self, images: list[ImageSource], fit: Fit, kind: str, cache: FeatureCache) -> Iterator[Prepared]:
        """Read and decode images with a pool of threads, in order. A file with several boxes is read once."""
        size_px = self.model.config.image.size_px
        by_file = [
            list(group) for _, group in groupby(enumerate(images), key=lambda entry: (entry[1].path, entry[1].index))
        ]

        def prepare(group: list[tuple[int, ImageSource]]) -> list[Prepared]:
            try:
                if not is_below(group[0][1], self.root):
                    raise OSError(f"it is not below {self.root}")
                content = read_content(group[0][1])
                digest = content.digest
            except OSError as error:
                return [Prepared(number, b"", None, f"{error.strerror or error}") for number, _ in group]
            found, pixels = [], None
            for number, image in group:
                box = "" if image.box is None else repr(tuple(map(float, image.box)))
                key = content_key("image", digest, box, kind)
                if key in cache:
                    found.append(Prepared(number, key, None, ""))
                    continue
                try:
                    pixels = content.pixels() if pixels is None else pixels
                    square = to_square(cut(pixels, image.box), fit, size_px)
                except ImageRejected as error:
                    found.append(Prepared(number, b"", None, str(error)))
                else:
                    found.append(Prepared(number, key, square, ""))
            return found

        for parts in map_in_threads(prepare, by_file, self.workers, 8 * self.workers):
            yield from parts

    def _cache(self, kind: str, width: int) -> FeatureCache:
        if kind not in self.caches:
            self.caches[kind] = FeatureCache(self.folder / kind, width)
        return self.caches[kind]

    def _merge(self, rows: Tensor, n: int) -> Tensor:
        """Features [n d] of all items from the rows of each rank, which has items rank, rank + world_size, ..."""
        world = world_size()
        if world == 1:
            return rows
        counts = [len(range(r, n, world)) for r in range(world)]
        gathered = gather(rows, counts).split(counts)
        merged = rows.new_empty(n, rows.shape[1])
        for r, part in enumerate(gathered):
            merged[r::world] = part
        return merged
