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
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import torch
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
from trainer.data.queries import possible_queries
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


@dataclass
class Computed:
    """The features of consecutive samples."""

    image: Tensor  # [n v*f]
    patches: Tensor  # [n v*p*f]
    box_image: Tensor  # [m v*f]
    keys: list[str] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)
    phrases: list[str] = field(default_factory=list)
    n_boxes: list[int] = field(default_factory=list)  # of each sample
    equal: list[bool] = field(default_factory=list)  # of each box
    levels: list[dict[int, str]] = field(default_factory=list)  # the known labels of each sample, by depth
    trees: list[WordTree] = field(default_factory=list)
    states: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)  # reason and message


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
        n_read, n_bad = n_read + len(computed.keys) + len(computed.bad), n_bad + len(computed.bad)
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
    return joined(found, embedder)


def read_numbered(rows: range, shards: HeldOutShards, first: int, size_px: int, views: Views) -> HeldOut:
    """Read samples by their place in a shard of features. Runs in a worker process."""
    return shards.read_part(range(first + rows.start, first + rows.stop), size_px, views)


def embed_part(part: HeldOut, embedder: Embedder) -> Computed:
    """The features of the images of some samples, and the trees and states of their captions."""
    config, n = embedder.config, len(part.captions)
    width = config.views * embedder.widths[0]
    states = embedder.images(part.images, config.patches)
    image, patches = states.tensor_split([embedder.widths[0]], dim=1)
    box_image = embedder.images(part.box_images).view(-1, width)
    counts = np.bincount(part.box_owner, minlength=n).tolist()
    image, patches = image.reshape(n, width), patches.reshape(n, embedder.n_patches * width)
    found = Computed(image, patches, box_image, part.keys, part.captions, part.box_texts, counts)
    found.bad = list(zip(part.reasons, part.bad, strict=True))
    found.levels = [{depth: label for depth, label in enumerate(labels) if label} for labels in part.levels]
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
        patches=found.patches[rows],
        box_image=found.box_image[boxes],
        keys=[found.keys[row] for row in rows],
        captions=[found.captions[row] for row in rows],
        phrases=[found.phrases[box] for box in boxes],
        levels=[found.levels[row] for row in rows],
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
    lists = ("keys", "captions", "phrases", "n_boxes", "levels", "trees", "states", "bad")
    values = {name: [item for part in parts for item in getattr(part, name)] for name in lists}
    tensors = ("image", "patches", "box_image")
    image, patches, box_image = (torch.cat([getattr(part, name) for part in parts]) for name in tensors)
    encode = embedder.loaded.tokenizer.encode
    owners = np.repeat(np.arange(len(values["captions"])), values["n_boxes"])
    captions = [values["captions"][owner] for owner in owners]
    equal = [
        phrase == caption or (phrase.lower() == caption.lower() and encode(phrase) == encode(caption))
        for phrase, caption in zip(values["phrases"], captions, strict=True)
    ]
    return Computed(image, patches, box_image, equal=equal, **values)


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
    labels = [label for labels in computed.levels for label in labels.values()]
    queries = query_texts(computed) if embedder.config.patches else []
    texts = list(dict.fromkeys(chain(computed.captions, computed.phrases, labels, *queries)))
    size = embedder.config.batch_size
    parts = [embedder.texts(texts[start : start + size]) for start in range(0, len(texts), size)]
    features = torch.cat(parts) if parts else torch.empty(0, embedder.widths[1], dtype=torch.float16)
    place = {text: row for row, text in enumerate(texts)}

    def rows(found: Sequence[str]) -> Tensor:
        return features[[place[text] for text in found]]

    schema, boxes, levels = embedder.schema, computed.n_boxes, [*map(len, computed.levels)]
    columns: dict[str, tuple[Any, Sequence[int] | None]] = {  # values, and the lengths of lists
        "key": (computed.keys, None),
        "caption": (computed.captions, None),
        "image": (computed.image, None),
        "text": (rows(computed.captions), None),
        "box_image": (computed.box_image, boxes),
        "phrase": (computed.phrases, boxes),
        "box_text": (rows(computed.phrases), boxes),
        "equal": (computed.equal, boxes),
        "label": (labels, levels),
        "depth": ([depth for labels in computed.levels for depth in labels], levels),
        "label_text": (rows(labels), levels),
    }
    if embedder.config.tokens:
        columns |= token_columns(computed, embedder.widths[1])
    if embedder.config.patches:
        counts, flat = [*map(len, queries)], list(chain(*queries))
        columns |= {"patches": (computed.patches, None), "query": (flat, counts), "query_text": (rows(flat), counts)}
    return pa.record_batch([column(schema.field(name).type, *columns[name]) for name in schema.names], schema=schema)


def query_texts(computed: Computed) -> list[list[str]]:
    """The texts that can be queries of each sample, whichever of its boxes are drawn, and however many queries."""
    ends = np.cumsum([0, *computed.n_boxes])
    phrases = (computed.phrases[a:b] for a, b in pairwise(ends))
    return [possible_queries(*sample) for sample in zip(computed.captions, phrases, strict=True)]


def token_columns(computed: Computed, width: int) -> dict[str, tuple[Any, Sequence[int] | None]]:
    """The columns of the states, of this width, and of the trees of captions."""
    counts = [len(initial) for initial, _ in computed.states]
    empty = torch.empty(0, width, dtype=torch.float16)
    initial, contextual = (torch.cat([empty, *(pair[side] for pair in computed.states)]) for side in (0, 1))
    names = ("word_of_token", "head", "relation")
    trees = {name: ([list(getattr(tree, name)) for tree in computed.trees], None) for name in names}
    return {"initial": (initial, counts), "contextual": (contextual, counts), **trees}


def column(type_: pa.DataType, values: Any, counts: Sequence[int] | None) -> pa.Array:
    """Values, or rows [n w] of features, as a column, which with `counts` holds lists of these lengths."""
    if counts is not None:
        offsets = pa.array(np.cumsum([0, *counts]), pa.int32())
        return pa.ListArray.from_arrays(offsets, column(type_.value_type, values, None), type=type_)
    if isinstance(values, Tensor):
        flat = pa.array(values.contiguous().view(-1).numpy(), pa.float16())
        return pa.FixedSizeListArray.from_arrays(flat, type=type_)
    return pa.array(values, type_)


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
    computed = joined(parts, embedder)
    n_bytes = record_batch(embedder, computed).nbytes
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
        counted(boxes, "box", "boxes"),
        n_bytes / 1e6,
        problems,
    )
