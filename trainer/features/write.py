"""Compute the outputs of frozen towers for all samples of training shards, shard by shard.

A shard holds consecutive samples. Its file is written under a temporary name, its manifest last; what has a manifest is
not computed again. With torchrun, the ranks share the samples of a shard, and rank 0 writes it.

Shapes: n samples, m boxes, v views, f and g widths of the image and the text tower, l tokens of a caption.
"""

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from hypergrit_common.devices import resolve_precision, torch_dtype
from hypergrit_common.disk import atomic_write
from hypergrit_common.errors import UserError
from hypergrit_common.files import file_hash
from hypergrit_common.json_file import read_object, write_object
from hypergrit_common.processes import n_cpus
from hypergrit_common.progress import tracked
from hypergrit_common.text import counted, duration_text
from hypergrit_common.version import hypergrit_version
from schemas.features import FOLDER, RECORD_NAME, FeatureManifest, FeatureRecord, feature_schema
from schemas.files import MANIFEST_FILE
from schemas.rows import VERSION
from trainer.checkpoints.folder import locked
from trainer.checkpoints.model import LoadedModel, load_model, model_folder
from trainer.checkpoints.tokenizer_files import MERGES_FILE, OPENAI, is_openai
from trainer.checkpoints.towers import FrozenModel, cached_towers, weights_sha256
from trainer.data.listing import list_facts, version_of
from trainer.distributed.gather import all_ranks
from trainer.distributed.process import Process, process_group
from trainer.encoders.config import CACHED
from trainer.encoders.text import StateSource, TokenStates
from trainer.evaluation.held_out.shards import HeldOut, HeldOutShards, Views
from trainer.evaluation.held_out.share import Sharing, map_shared
from trainer.features.config import FeaturesConfig
from trainer.models.dual_encoder import DualEncoder
from trainer.text.base import pad
from trainer.text.fast_tokenizer import FastTokenizer
from trainer.text.syntax import WordTree, align

logger = logging.getLogger(__name__)

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
    def images(self, pixels: Tensor) -> Tensor:
        """Features [n f] of images, uint8 [n 3 s s]."""
        model = self.loaded.model
        encode = model.image_features if self.config.projected else model.image_states
        with self.context():
            parts = [encode(batch.to(self.device)).float().cpu() for batch in pixels.split(self.config.batch_size)]
        return half(torch.cat([torch.empty(0, self.widths[0]), *parts]))

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> Tensor:
        """Features [n g] of texts."""
        with self.context():
            found = self.frozen.text(self.loaded.tokenizer(list(texts)).to(self.device), None)
        assert isinstance(found, Tensor)
        return half(found.float().cpu())

    @torch.no_grad()
    def states(self, ids: Sequence[Sequence[int]]) -> list[tuple[Tensor, Tensor]]:
        """The initial and contextual states [l g] of the tokens of texts."""
        source = StateSource(kind=self.config.word_states, block=self.config.word_block)
        rows = pad([list(row) for row in ids], self.loaded.tokenizer.pad_id).to(self.device)
        with self.context():
            found = self.frozen.text(rows, source)
        assert isinstance(found, TokenStates)
        parts = (half(found.initial.float().cpu()), half(found.contextual.float().cpu()))
        return [(parts[0][row, : len(i)], parts[1][row, : len(i)]) for row, i in enumerate(ids)]

    @property
    def widths(self) -> tuple[int, int]:
        """The widths f and g."""
        return widths_of(self.loaded.model, self.config.projected)

    @property
    def schema(self) -> pa.Schema:
        image, text = self.widths
        return feature_schema(self.config.views * image, text, self.config.tokens)


def widths_of(model: DualEncoder, projected: bool) -> tuple[int, int]:
    """The widths of the features of images and of texts, after the projections or before them."""
    if projected:
        return model.config.embed_dim, model.config.embed_dim
    return model.visual_proj.in_features, model.textual_proj.in_features


def half(features: Tensor) -> Tensor:
    """The features in half precision. Raises UserError for values that it cannot hold."""
    found = features.half()
    if not bool(torch.isfinite(found).all()):
        largest = features.abs().max().item()
        raise UserError(
            f"the towers give values up to {largest:.3g}, beyond half precision; use another model or layer"
        )
    return found


@dataclass
class Computed:
    """The features of consecutive samples."""

    image: Tensor  # [n v*f]
    box_image: Tensor  # [m v*f]
    keys: list[str] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)
    phrases: list[str] = field(default_factory=list)
    n_boxes: list[int] = field(default_factory=list)  # of each sample
    equal: list[bool] = field(default_factory=list)  # of each box
    trees: list[WordTree] = field(default_factory=list)
    states: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)  # reason and message


def write_features(config: FeaturesConfig) -> None:
    """Write the features that `config` describes, or what is missing of them. Raises UserError."""
    with process_group(config.device, TIMEOUT_S) as process:
        if process.device.type == "cpu":
            torch.set_num_threads(max(n_cpus() // process.world_size, 1))
        try:
            loaded = load_model(config.model, config.model_name)
        except (OSError, ValueError) as error:
            raise UserError(f"model: {error}") from error
        if cached_towers(loaded.model):
            raise UserError(f"model={config.model} is a head over cached features; give the model whose towers it uses")
        shards = HeldOutShards(config.shards, config.max_bad_share)
        dtype = resolve_precision(config.precision, process.device)
        context = partial(torch.autocast, process.device.type, torch_dtype(dtype), enabled=dtype != "fp32")
        embedder = Embedder(loaded=loaded, config=config, device=process.device, context=context)
        if config.dry_run:
            predict(embedder, shards)
            return
        output = Path(config.output)
        try:
            (output / MANIFEST_FILE.folder).mkdir(parents=True, exist_ok=True)
            (output / FOLDER).mkdir(exist_ok=True)
            with locked(output) if process.is_main else nullcontext():
                write_shards(embedder, shards, record_of(config, loaded, shards, process.device), output, process)
        except OSError as error:
            raise UserError(f"output={output} cannot be written: {error}") from error


def record_of(
    config: FeaturesConfig, loaded: LoadedModel, shards: HeldOutShards, device: torch.device
) -> FeatureRecord:
    """What makes the features, and the settings of a training on them."""
    tower = model_folder(Path(config.model))
    names = ("projected", "views", "crop_scale", "seed", "max_boxes", "rows_per_shard")
    settings: dict[str, Any] = {name: getattr(config, name) for name in names}
    settings["crop_scale"] = list(config.crop_scale)
    settings["precision"] = resolve_precision(config.precision, device)
    settings["tokens"] = {"kind": config.word_states, "block": config.word_block} if config.tokens else None
    facts = [list(version_of(facts)) for facts in list_facts(shards.index.urls)]
    sources = [[name, size, sha256] for name, size, _, sha256 in facts]
    sha256 = weights_sha256(tower)
    return FeatureRecord(
        schema=VERSION,
        hypergrit=hypergrit_version(),
        tower={"path": str(tower), "name": config.model_name or str(loaded.config.get("model")), "sha256": sha256},
        settings=settings,
        sources=hashlib.sha256(json.dumps(sources).encode()).hexdigest(),
        n_samples=shards.index.n_samples,
        training=training_settings(loaded, tower, config, sha256),
        shards=config.shards,
    )


def training_settings(loaded: LoadedModel, tower: Path, config: FeaturesConfig, sha256: str) -> dict[str, Any]:
    """The settings of a training on features that follow from the towers: they become heads."""
    model = loaded.model
    path = str(tower.absolute())
    frozen = {"model": config.model_name, "sha256": sha256, "projected": config.projected}
    image, text = ({"width": width, **frozen} for width in widths_of(model, config.projected))
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
    missing = [
        (name, start)
        for name, start in zip(names, starts, strict=True)
        if not (output / MANIFEST_FILE.folder / f"{name}{MANIFEST_FILE.suffix}").is_file()
    ]
    for number, (name, start) in enumerate(all_ranks(missing)[0], 1):
        text = f"features of {n} samples, file {number} of {len(missing)}"
        computed = compute(embedder, shards, range(start, min(start + size, n)), text, not process.is_main)
        check_bad(computed, embedder.config.max_bad_share)
        if process.is_main:
            commit(embedder, computed, output, name, start)
    if process.is_main:
        log_totals([read_object(output / MANIFEST_FILE.folder / f"{name}.json") for name in names], output)


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
            f"{output} holds features with another {wrong[0]}: {before.get(wrong[0])}, not "
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
    return joined(found, embedder)


def read_numbered(rows: range, shards: HeldOutShards, first: int, size_px: int, views: Views) -> HeldOut:
    """Read samples by their place in a shard of features. Runs in a worker process."""
    return shards.read_part(range(first + rows.start, first + rows.stop), size_px, views)


def embed_part(part: HeldOut, embedder: Embedder) -> Computed:
    """The features of the images of some samples, and the trees and states of their captions."""
    config, v = embedder.config, embedder.config.views
    image = embedder.images(part.images).view(-1, v * embedder.widths[0])
    box_image = embedder.images(part.box_images).view(-1, v * embedder.widths[0])
    counts = np.bincount(part.box_owner, minlength=len(part.captions)).tolist()
    found = Computed(image, box_image, part.keys, part.captions, part.box_texts, counts)
    found.bad = list(zip(part.reasons, part.bad, strict=True))
    found = taken(found, range(len(counts)), config.max_boxes) if config.max_boxes else found
    return with_trees(found, part.words, embedder) if config.tokens else found


def taken(found: Computed, samples: Sequence[int], most: int | None = None) -> Computed:
    """The features of some samples, with at most `most` boxes of each, the first ones."""
    starts, rows = np.cumsum([0, *found.n_boxes]), list(samples)
    counts = [found.n_boxes[row] if most is None else min(found.n_boxes[row], most) for row in rows]
    boxes = [starts[row] + box for row, n in zip(rows, counts, strict=True) for box in range(n)]
    return replace(
        found,
        image=found.image[rows],
        box_image=found.box_image[boxes],
        keys=[found.keys[row] for row in rows],
        captions=[found.captions[row] for row in rows],
        phrases=[found.phrases[box] for box in boxes],
        n_boxes=counts,
    )


def with_trees(found: Computed, words: Sequence[Any], embedder: Embedder) -> Computed:
    """The features of the samples with a parse, with their trees and the states of their tokens; others are bad."""
    tokenizer = embedder.loaded.tokenizer
    kept = [index for index, parse in enumerate(words) if parse]
    bad = [
        ("no_parse", f"{found.keys[index]}: the caption has no parse") for index in set(range(len(words))) - set(kept)
    ]
    pairs = [align(tokenizer, found.captions[index], words[index]) for index in kept]
    return replace(
        taken(found, kept),
        trees=[tree for _, tree in pairs],
        states=embedder.states([ids for ids, _ in pairs]) if pairs else [],
        bad=[*found.bad, *bad],
    )


def joined(parts: Sequence[Computed], embedder: Embedder) -> Computed:
    """All parts, in order, with the phrases that have the tokens of their captions."""
    lists = ("keys", "captions", "phrases", "n_boxes", "trees", "states", "bad")
    values = {name: [item for part in parts for item in getattr(part, name)] for name in lists}
    image, box_image = (torch.cat([getattr(part, name) for part in parts]) for name in ("image", "box_image"))
    encode = embedder.loaded.tokenizer.encode
    owners = np.repeat(np.arange(len(values["captions"])), values["n_boxes"])
    captions = [values["captions"][owner] for owner in owners]
    equal = [
        phrase == caption or (phrase.lower() == caption.lower() and encode(phrase) == encode(caption))
        for phrase, caption in zip(values["phrases"], captions, strict=True)
    ]
    return Computed(image, box_image, equal=equal, **values)


def check_bad(computed: Computed, limit: float) -> None:
    """Log bad samples. Raises UserError if more than `limit` of the samples are bad, or all."""
    n = len(computed.keys) + len(computed.bad)
    for _, line in computed.bad[:5]:
        logger.warning("%s", line)
    if len(computed.bad) > limit * n:
        raise UserError(
            f"shards: {len(computed.bad)} of {n} samples are bad, such as {computed.bad[0][1]}; fix the shards, or raise "
            "max_bad_share"
        )


def commit(embedder: Embedder, computed: Computed, output: Path, name: str, first: int) -> None:
    """Write a shard, and last its manifest. Raises OSError."""
    path = output / FOLDER / f"{name}.arrow"
    batch = record_batch(embedder, computed)
    with atomic_write(path) as draft, pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as file:
        file.write_batch(batch)
    sha256 = file_hash(path)
    manifest = FeatureManifest(
        schema=VERSION,
        files={f"{FOLDER}/{path.name}": {"bytes": path.stat().st_size, "sha256": sha256, "rows": batch.num_rows}},
        first=first,
        read=len(computed.keys) + len(computed.bad),
        bad=dict(sorted(Counter(reason for reason, _ in computed.bad).items())),
        boxes=len(computed.phrases),
    )
    if pairs := computed.n_boxes.count(0):
        manifest["pairs"] = pairs
    write_object(cast(dict[str, Any], manifest), output / MANIFEST_FILE.folder / f"{name}{MANIFEST_FILE.suffix}")


def record_batch(embedder: Embedder, computed: Computed) -> pa.RecordBatch:
    """The rows of a shard. Each distinct text is embedded once."""
    texts = list(dict.fromkeys([*computed.captions, *computed.phrases]))
    size = embedder.config.batch_size
    parts = [embedder.texts(texts[start : start + size]) for start in range(0, len(texts), size)]
    features = torch.cat(parts) if parts else torch.empty(0, embedder.widths[1], dtype=torch.float16)
    place = {text: row for row, text in enumerate(texts)}
    offsets = pa.array(np.cumsum([0, *computed.n_boxes]), pa.int32())

    def rows(found: Sequence[str]) -> Tensor:
        return features[[place[text] for text in found]]

    schema = embedder.schema
    columns: dict[str, pa.Array] = {
        "key": pa.array(computed.keys, pa.string()),
        "caption": pa.array(computed.captions, pa.string()),
        "image": fixed(computed.image, schema.field("image").type),
        "text": fixed(rows(computed.captions), schema.field("text").type),
        "box_image": lists(offsets, fixed(computed.box_image, schema.field("image").type), schema, "box_image"),
        "phrase": lists(offsets, pa.array(computed.phrases, pa.string()), schema, "phrase"),
        "box_text": lists(offsets, fixed(rows(computed.phrases), schema.field("text").type), schema, "box_text"),
        "equal": lists(offsets, pa.array(computed.equal, pa.bool_()), schema, "equal"),
    }
    if embedder.config.tokens:
        columns |= token_columns(computed, embedder)
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def token_columns(computed: Computed, embedder: Embedder) -> dict[str, pa.Array]:
    """The columns of the states and trees of captions."""
    schema = embedder.schema
    ends = pa.array(np.cumsum([0, *(len(initial) for initial, _ in computed.states)]), pa.int32())
    empty = torch.empty(0, embedder.widths[1], dtype=torch.float16)
    columns = {
        name: lists(
            ends,
            fixed(torch.cat([empty, *(pair[side] for pair in computed.states)]), schema.field("text").type),
            schema,
            name,
        )
        for side, name in enumerate(("initial", "contextual"))
    }
    for name in ("word_of_token", "head", "relation"):
        columns[name] = pa.array([list(getattr(tree, name)) for tree in computed.trees], schema.field(name).type)
    return columns


def fixed(rows: Tensor, type_: pa.FixedSizeListType) -> pa.Array:
    """Rows [n w] as an Arrow column."""
    values = pa.array(rows.contiguous().view(-1).numpy(), pa.float16())
    return pa.FixedSizeListArray.from_arrays(values, type=type_)


def lists(offsets: pa.Array, values: pa.Array, schema: pa.Schema, name: str) -> pa.Array:
    """Values as a column of lists."""
    return pa.ListArray.from_arrays(offsets, values, type=schema.field(name).type)


def predict(embedder: Embedder, shards: HeldOutShards) -> None:
    """Compute some samples from the middle, and log the bytes and the time of all of them."""
    n, config = shards.index.n_samples, embedder.config
    size = min(DRY_SAMPLES, n)
    first = max((n - size) // 2, 0)
    start = time.monotonic()
    computed = compute(embedder, shards, range(first, first + size), "dry run", quiet=False)
    batch = record_batch(embedder, computed)
    seconds, n_bytes = time.monotonic() - start, batch.nbytes
    logger.info(
        "dry run of %s: all %d will take about %s and %.2f GB (%s of at most %s), with %s",
        counted(size, "sample"),
        n,
        duration_text(seconds * n / size),
        n_bytes * n / size / 1e9,
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
        counted(boxes, "box", "boxes"),
        n_bytes / 1e6,
        problems,
    )
