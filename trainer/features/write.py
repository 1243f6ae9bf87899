"""Compute the outputs of frozen towers for all samples of training shards, shard by shard.

A shard holds consecutive samples. Its file is written under a temporary name, its manifest last; what has a manifest
and the files in it is not computed again. With torchrun, the ranks share the samples of a shard, and rank 0 writes it.

Shapes: n samples, m boxes, v views, p patches, f and g widths of the image and the text tower, l tokens of a caption.
"""

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypergrit_common.devices import limit_threads, resolve_precision, torch_dtype
from hypergrit_common.disk import atomic_write
from hypergrit_common.errors import UserError
from hypergrit_common.files import file_hash
from hypergrit_common.json_file import read_object, write_object
from hypergrit_common.locations import as_text
from hypergrit_common.progress import tracked
from hypergrit_common.text import counted, duration_text
from hypergrit_common.version import hypergrit_version
from schemas.features import FOLDER, RECORD_NAME, FeatureManifest, FeatureRecord, feature_schema
from schemas.files import MANIFEST_FILE
from schemas.rows import VERSION
from trainer.batch import to_half
from trainer.checkpoints.folder import locked
from trainer.checkpoints.model import LoadedModel, load_model, model_folder
from trainer.checkpoints.tokenizer_files import MERGES_FILE, OPENAI, is_openai
from trainer.checkpoints.towers import FrozenModel, cached_towers, weights_sha256
from trainer.data.listing import list_facts, version_of
from trainer.data.text_streams import possible_queries
from trainer.distributed.gather import all_ranks
from trainer.distributed.process import Process, process_group
from trainer.encoders.config import CACHED
from trainer.encoders.text import StateSource, TokenStates
from trainer.evaluation.held_out.shards import HeldOut, HeldOutShards, Views
from trainer.evaluation.held_out.share import Sharing, map_shared
from trainer.features.config import FeaturesConfig
from trainer.models.config import SyntaxMERUConfig
from trainer.text.base import pad
from trainer.text.fast_tokenizer import FastTokenizer
from trainer.text.syntax import WordTree, align

logger = logging.getLogger(__name__)

Halves = NDArray[np.float16]

DRY_SAMPLES: Final = 256
"""Samples that a dry run computes."""
TIMEOUT_S: Final = 1800.0
"""Longest wait for another process, which may write a shard."""


@dataclass(kw_only=True)
class Embedder:
    """Outputs of the frozen towers of a model, half precision on the CPU."""

    loaded: LoadedModel
    config: FeaturesConfig
    device: torch.device
    context: Callable[[], AbstractContextManager[Any]] = nullcontext

    def __post_init__(self) -> None:
        self.frozen = FrozenModel(self.loaded.model.to(self.device), self.config.projected)

    @torch.no_grad()
    def images(self, pixels: Tensor, patches: bool = False) -> Tensor:
        """Features [n f] of images, uint8 [n 3 s s]; with their patches, flat rows [n (1+p)*f]."""
        model, width = self.loaded.model, self.widths[0]
        encode = self.frozen.patches if patches else self.frozen.image
        with self.context():
            batches = (model.normalised(batch.to(self.device)) for batch in pixels.split(self.config.batch_size))
            parts = [encode(batch).flatten(1).float().cpu() for batch in batches]
        return to_half(torch.cat([torch.empty(0, width * (1 + self.n_patches * patches)), *parts]), "images")

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> Tensor:
        """Features [n g] of texts."""
        with self.context():
            found = self.frozen.text(self.loaded.tokenizer(list(texts)).to(self.device), None)
        assert isinstance(found, Tensor)
        return to_half(found.float().cpu(), "texts")

    @torch.no_grad()
    def states(self, ids: Sequence[Sequence[int]]) -> list[tuple[Tensor, Tensor]]:
        """The initial and contextual states [l g] of the tokens of texts."""
        source = StateSource(kind=self.config.word_states, block=self.config.word_block)
        rows = pad([list(row) for row in ids], self.loaded.tokenizer.pad_id).to(self.device)
        with self.context():
            found = self.frozen.text(rows, source)
        assert isinstance(found, TokenStates)
        parts = [to_half(states.float().cpu(), "texts") for states in (found.initial, found.contextual)]
        return [(parts[0][row, : len(i)], parts[1][row, : len(i)]) for row, i in enumerate(ids)]

    @property
    def widths(self) -> tuple[int, int]:
        """The widths f and g of images and texts, after the projections or before them."""
        model = self.loaded.model
        if self.config.projected:
            return model.config.embed_dim, model.config.embed_dim
        return model.visual_proj.in_features, model.textual_proj.in_features

    @cached_property
    def n_patches(self) -> int:
        """Patches p of an image, or 0 if they are not stored. Raises UserError if the tower has none."""
        size = self.loaded.model.config.image.size_px
        try:
            blank = torch.zeros(1, 3, size, size, device=self.device)
            return self.frozen.patches(blank).shape[1] - 1 if self.config.patches else 0
        except ValueError as error:
            raise UserError(f"patches=true: {error}") from error

    @property
    def schema(self) -> pa.Schema:
        image, text = self.widths
        return feature_schema(self.config.views * image, text, self.config.tokens, self.n_patches)


class Row(NamedTuple):
    """A sample with its features, in half precision."""

    key: str
    caption: str
    image: Halves  # [v*f]
    patches: Halves  # [v*p*f]
    boxes: Halves  # [m v*f]
    phrases: list[str]
    levels: dict[int, str]  # its known labels, by depth
    tree: WordTree | None = None
    states: tuple[Halves, Halves] | None = None  # [l g]


class Computed(NamedTuple):
    """Consecutive samples, and reasons and messages of those that cannot be used."""

    rows: list[Row]
    bad: list[tuple[str, str]]


def write_features(config: FeaturesConfig) -> None:
    """Write the features that `config` describes, or what is missing of them. Raises UserError."""
    with process_group(config.device, TIMEOUT_S) as process:
        try:
            loaded = load_model(config.model, config.model_name, trust=config.trust)
        except (OSError, ValueError) as error:
            raise UserError(f"model: {error}") from error
        if cached_towers(loaded.model):
            raise UserError(f"model={config.model} is a head over cached features; give the model whose towers it uses")
        if config.tokens:  # the states that syntax_meru could name of this tower
            text = loaded.model.config.text
            SyntaxMERUConfig(text=text, word_states=config.word_states, word_block=config.word_block)
        shards = HeldOutShards(config.shards, config.max_bad_share, "max_bad_share")
        limit_threads(loaded.model, process.device)
        dtype = resolve_precision(config.precision, process.device)
        context = partial(torch.autocast, process.device.type, torch_dtype(dtype), enabled=dtype != "fp32")
        embedder = Embedder(loaded=loaded, config=config, device=process.device, context=context)
        if config.dry_run:
            predict(embedder, shards, process)
            return
        output = Path(config.output)
        try:
            (output / MANIFEST_FILE.folder).mkdir(parents=True, exist_ok=True)
            (output / FOLDER).mkdir(exist_ok=True)
            with locked(output) if process.is_main else nullcontext():
                write_shards(embedder, shards, record_of(embedder, shards), output, process)
        except OSError as error:
            raise UserError(f"output={output} cannot be written: {error}") from error


def record_of(embedder: Embedder, shards: HeldOutShards) -> FeatureRecord:
    """The record of the features: their sources, and the settings of a training on them."""
    config, loaded = embedder.config, embedder.loaded
    tower = model_folder(Path(config.model))
    names = ("projected", "views", "crop_scale", "seed", "patches", "max_boxes", "rows_per_shard")
    settings: dict[str, Any] = {name: getattr(config, name) for name in names}
    settings["crop_scale"] = list(config.crop_scale)
    settings["precision"] = resolve_precision(config.precision, embedder.device)
    settings["tokens"] = {"kind": config.word_states, "block": config.word_block} if config.tokens else None
    facts = [list(version_of(facts)) for facts in list_facts(shards.index.urls)]
    # Shards with a hash may be copies; without one, their version is that of their store, as in a training.
    sources = [[name, size, sha256 or modified] for name, size, modified, sha256 in facts]
    sha256 = weights_sha256(tower)
    return FeatureRecord(
        schema=VERSION,
        hypergrit=hypergrit_version(),
        tower={"path": str(tower), "name": config.model_name or str(loaded.config.get("model")), "sha256": sha256},
        settings=settings,
        sources=hashlib.sha256(json.dumps(sources).encode()).hexdigest(),
        n_samples=shards.index.n_samples,
        training=training_settings(embedder, tower, sha256),
        shards=as_text(config.shards),
    )


def training_settings(embedder: Embedder, tower: Path, sha256: str) -> dict[str, Any]:
    """The settings of a training on features that follow from the towers: they become heads."""
    config, loaded = embedder.config, embedder.loaded
    model = loaded.model
    path = str(tower.absolute())
    frozen = {"model": config.model_name, "sha256": sha256, "projected": config.projected}
    image, text = ({"width": width, **frozen} for width in embedder.widths)
    if embedder.n_patches:
        image["patches"] = embedder.n_patches
    tokenizer = OPENAI if is_openai(loaded.tokenizer) else f"{path}/{MERGES_FILE}"
    if isinstance(loaded.tokenizer, FastTokenizer):
        tokenizer = path
    kept = {key: getattr(model.config.text, key) for key in ("vocab_size", "context_length", "pad_id")}
    pixels = {key: list(getattr(model.config, key)) for key in ("pixel_mean", "pixel_std")}
    size = {"size_px": model.config.image.size_px}
    return {
        "tokenizer": tokenizer,
        "model": {
            "image": {"name": CACHED, "weights": path, **size, "kwargs": image},
            "text": {"name": CACHED, "weights": path, **kept, "kwargs": text},
            **pixels,
        },
    }


def write_shards(
    embedder: Embedder, shards: HeldOutShards, record: FeatureRecord, output: Path, process: Process
) -> None:
    """Write the record and the missing shards. Collective. Raises UserError if the output holds other features."""
    if process.is_main:
        check_record(record, output)
    size, n = embedder.config.rows_per_shard, shards.index.n_samples
    starts = range(0, n, size)
    names = [f"{number:05d}" for number in range(len(starts))]
    paths = {name: output / MANIFEST_FILE.folder / f"{name}{MANIFEST_FILE.suffix}" for name in names}
    found = {name: read_manifest(path) for name, path in paths.items() if path.is_file()}
    manifests = {name: manifest for name, manifest in found.items() if has_files(manifest, output)}
    missing = [(name, start) for name, start in zip(names, starts, strict=True) if name not in manifests]
    counts = (sum(m["read"] for m in manifests.values()), sum(sum(m["bad"].values()) for m in manifests.values()))
    missing, (n_read, n_bad) = all_ranks((missing, counts))[0]
    for number, (name, start) in enumerate(missing, 1):
        text = f"features of {n} samples, file {number} of {len(missing)}"
        computed = compute(embedder, shards, range(start, min(start + size, n)), text, not process.is_main)
        n_read, n_bad = n_read + len(computed.rows) + len(computed.bad), n_bad + len(computed.bad)
        check_bad(computed.bad, n_bad, n_read, embedder.config.max_bad_share)
        if process.is_main:
            commit(embedder, computed, output, name, start)
    if process.is_main:
        log_totals([read_manifest(path) for path in paths.values()], output)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a shard. Raises UserError if it is damaged."""
    try:
        return read_object(path)
    except ValueError as error:
        raise UserError(f"{error}; remove it, and repeat the command, which writes its shard again") from error


def has_files(manifest: dict[str, Any], output: Path) -> bool:
    """True if the files of a manifest are there in their size."""
    files = {output / name: facts["bytes"] for name, facts in manifest["files"].items()}
    return all(path.is_file() and path.stat().st_size == size for path, size in files.items())


def check_record(record: FeatureRecord, output: Path) -> None:
    """Write the record, unless it is there. Raises UserError if the output holds features of another one."""
    path = output / RECORD_NAME
    if not path.is_file():
        write_object(cast(dict[str, Any], record), path)
        return
    try:
        before = read_object(path)
    except ValueError as error:
        raise UserError(f"{error}; give another output=") from error
    free = ("shards", "training")  # paths

    def facts(found: Mapping[str, Any], key: str) -> Any:
        value = found.get(key)
        return {**value, "path": None} if key == "tower" and isinstance(value, dict) else value

    wrong = [key for key in record if key not in free and facts(before, key) != facts(record, key)]
    if wrong:
        raise UserError(
            f"{output} holds features with other {wrong[0]}: {before.get(wrong[0])}, not "
            f"{record[wrong[0]]}; give another output="  # type: ignore[literal-required]
        )


def compute(embedder: Embedder, shards: HeldOutShards, numbers: range, text: str, quiet: bool) -> Computed:
    """The features of the samples `numbers`. Collective."""
    config, size = embedder.config, embedder.loaded.model.config.image.size_px
    views = Views(config.views, config.crop_scale, config.seed)
    sharing = Sharing(batch_size=config.batch_size, workers=config.n_workers)
    read = partial(read_numbered, shards=shards, first=numbers.start, size_px=size, views=views)
    parts = map_shared(len(numbers), read, partial(embed_part, embedder=embedder), sharing)
    unit = min(64, config.batch_size)
    found = list(tracked(parts, -(-len(numbers) // unit), text, "unit", quiet=quiet))
    return joined(found)


def read_numbered(rows: range, shards: HeldOutShards, first: int, size_px: int, views: Views) -> HeldOut:
    """Read samples by their place in a shard of features. Runs in a worker process."""
    return shards.read_part(range(first + rows.start, first + rows.stop), size_px, views)


def embed_part(part: HeldOut, embedder: Embedder) -> Computed:
    """The features of the images of some samples, and the trees and states of their captions, without which they are bad."""
    config, n = embedder.config, len(part.captions)
    width = config.views * embedder.widths[0]
    states = embedder.images(part.images, config.patches)
    image, patches = states.tensor_split([embedder.widths[0]], dim=1)
    image, patches = image.reshape(n, width), patches.reshape(n, embedder.n_patches * width)
    boxes, ends = embedder.images(part.box_images).view(-1, width), np.searchsorted(part.box_owner, range(n + 1))
    found = Computed([], list(zip(part.reasons, part.bad, strict=True)))
    for number, (key, caption, words) in enumerate(zip(part.keys, part.captions, part.words, strict=True)):
        if config.tokens and not words:
            found.bad.append(("no_parse", f"{key}: the caption has no parse"))
            continue
        own = slice(ends[number], ends[number + 1])
        levels = {depth: label for depth, label in enumerate(part.levels[number]) if label}
        arrays = (image[number].numpy(), patches[number].numpy(), boxes[own][: config.max_boxes].numpy())
        found.rows.append(Row(key, caption, *arrays, part.box_texts[own][: config.max_boxes], levels))
    return with_trees(found, part.words, embedder) if config.tokens and found.rows else found


def with_trees(found: Computed, words: Sequence[Any], embedder: Embedder) -> Computed:
    """The samples with their trees and the states of their tokens."""
    tokenizer = embedder.loaded.tokenizer
    texts = zip(found.rows, filter(None, words), strict=True)
    ids, trees = zip(*(align(tokenizer, row.caption, parse) for row, parse in texts), strict=True)
    states = [(initial.numpy(), contextual.numpy()) for initial, contextual in embedder.states(ids)]
    parts = zip(found.rows, trees, states, strict=True)
    return found._replace(rows=[row._replace(tree=tree, states=pair) for row, tree, pair in parts])


def joined(parts: Sequence[Computed]) -> Computed:
    """All parts, in order."""
    return Computed([row for part in parts for row in part.rows], [line for part in parts for line in part.bad])


def is_equal(caption: str, phrase: str, embedder: Embedder) -> bool:
    """True for a phrase with the tokens of its caption."""
    encode = embedder.loaded.tokenizer.encode
    return phrase == caption or (phrase.lower() == caption.lower() and encode(phrase) == encode(caption))


def check_bad(bad: Sequence[tuple[str, str]], n_bad: int, n_read: int, limit: float) -> None:
    """Log the bad samples of a shard. Raises UserError if more than `limit` of the samples read so far are bad."""
    for _, line in bad[:5]:
        logger.warning("%s", line)
    if bad and n_bad > limit * n_read:
        raise UserError(
            f"shards: {n_bad} of {n_read} samples are bad, such as {bad[0][1]}; fix the shards, or raise max_bad_share"
        )


def commit(embedder: Embedder, computed: Computed, output: Path, name: str, first: int) -> None:
    """Write a shard, and last its manifest. Raises OSError."""
    path = output / FOLDER / f"{name}.arrow"
    batch = record_batch(embedder, computed.rows)
    with atomic_write(path) as draft, pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as file:
        file.write_batch(batch)
    sha256 = file_hash(path)
    manifest = FeatureManifest(
        schema=VERSION,
        files={f"{FOLDER}/{path.name}": {"bytes": path.stat().st_size, "sha256": sha256, "rows": batch.num_rows}},
        first=first,
        read=len(computed.rows) + len(computed.bad),
        bad=dict(sorted(Counter(reason for reason, _ in computed.bad).items())),
        boxes=sum(len(row.phrases) for row in computed.rows),
    )
    if pairs := sum(not row.phrases for row in computed.rows):
        manifest["pairs"] = pairs
    write_object(cast(dict[str, Any], manifest), output / MANIFEST_FILE.folder / f"{name}{MANIFEST_FILE.suffix}")


def record_batch(embedder: Embedder, found: Sequence[Row]) -> pa.RecordBatch:
    """The rows of a shard. Each distinct text is embedded once."""
    config, schema = embedder.config, embedder.schema
    columns: dict[str, Sequence[Any]] = {
        "key": [row.key for row in found],
        "caption": [row.caption for row in found],
        "image": [row.image for row in found],
        "box_image": [row.boxes for row in found],
        "phrase": [row.phrases for row in found],
        "equal": [[is_equal(row.caption, phrase, embedder) for phrase in row.phrases] for row in found],
        "label": [[*row.levels.values()] for row in found],
        "depth": [[*row.levels] for row in found],
    }
    if config.tokens:
        columns |= {name: [getattr(row.tree, name) for row in found] for name in ("word_of_token", "head", "relation")}
        initial, contextual = zip(*(row.states for row in found if row.states), strict=True) if found else ((), ())
        columns |= {"initial": initial, "contextual": contextual}
    if config.patches:  # the texts that can be queries, whichever boxes are drawn, and however many queries
        queries = [possible_queries(row.caption, row.phrases) for row in found]
        columns |= {"patches": [row.patches for row in found], "query": queries}
    lists = [*map(columns.get, ("phrase", "label", "query"))]
    texts = list(dict.fromkeys([*columns["caption"], *chain(*chain(*(part or () for part in lists)))]))
    parts = [embedder.texts(texts[at : at + config.batch_size]) for at in range(0, len(texts), config.batch_size)]
    features = torch.cat([torch.empty(0, embedder.widths[1], dtype=torch.float16), *parts]).numpy()
    place = {text: row for row, text in enumerate(texts)}
    columns["text"] = [features[place[text]] for text in columns["caption"]]
    for name, part in zip(("box_text", "label_text", "query_text"), lists, strict=True):
        columns[name] = [features[[place[text] for text in own]] for own in part or ()]
    return pa.record_batch([column(schema.field(name).type, columns[name]) for name in schema.names], schema=schema)


def column(type_: pa.DataType, values: Sequence[Any]) -> pa.Array:
    """Values, features [w] of fixed size, or lists [n w] of them, as a column."""
    if not values or not isinstance(values[0], np.ndarray):
        return pa.array(values, type_)
    flat = np.concatenate(values)
    if pa.types.is_fixed_size_list(type_):
        return pa.FixedSizeListArray.from_arrays(pa.array(flat, pa.float16()), type=type_)
    offsets = pa.array(np.cumsum([0, *map(len, values)]), pa.int32())
    items = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1), pa.float16()), type=type_.value_type)
    return pa.ListArray.from_arrays(offsets, items, type=type_)


def predict(embedder: Embedder, shards: HeldOutShards, process: Process) -> None:
    """Compute some samples from the middle in this process, and log the bytes and the time of all of them.

    The start of processes and of the device is not counted; the reading is shared by the processes that the command has.
    """
    n, config = shards.index.n_samples, embedder.config
    size = min(DRY_SAMPLES, n)
    first = max((n - size) // 2, 0)
    views, size_px = Views(config.views, config.crop_scale, config.seed), embedder.loaded.model.config.image.size_px
    embed_part(shards.read_part([first], size_px, views), embedder)
    read_s, parts, unit, start = 0.0, list[Computed](), min(64, config.batch_size), time.monotonic()
    units = [range(at, min(at + unit, first + size)) for at in range(first, first + size, unit)]
    for numbers in tracked(units, len(units), "dry run", "unit", quiet=not process.is_main):
        before = time.monotonic()
        part = shards.read_part(numbers, size_px, views)
        read_s += time.monotonic() - before
        parts.append(embed_part(part, embedder))
    computed = joined(parts)
    n_bytes = record_batch(embedder, computed.rows).nbytes
    seconds = time.monotonic() - start - read_s + read_s / max(config.n_workers, 1)
    if process.is_main:
        logger.info(
            "dry run of %s: all %d will take about %s and %.2f MB (%s of at most %s), with %s",
            counted(size, "sample"),
            n,
            duration_text(seconds * n / size / process.world_size),
            n_bytes * n / size / 1e6,
            counted(-(-n // config.rows_per_shard), "file"),
            counted(config.rows_per_shard, "sample"),
            counted(round(len(computed.bad) * n / size), "bad one"),
        )


def log_totals(manifests: Sequence[dict[str, Any]], output: Path) -> None:
    """Log what the features hold: all samples are counted."""
    files = [next(iter(manifest["files"].values())) for manifest in manifests]
    rows, n_bytes = (sum(file[key] for file in files) for key in ("rows", "bytes"))
    read, boxes = (sum(manifest[key] for manifest in manifests) for key in ("read", "boxes"))
    bad = sum((Counter(manifest["bad"]) for manifest in manifests), Counter[str]())
    problems = ", ".join(f"{n} {reason}" for reason, n in sorted(bad.items())) or "none"
    logger.info(
        "%s: %d of %s with %s, %.1f MB; bad samples: %s",
        output,
        rows,
        counted(read, "sample"),
        counted(boxes, "phrase with its box", "phrases with their boxes"),
        n_bytes / 1e6,
        problems,
    )
