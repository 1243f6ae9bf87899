"""Compare the formats of an output row by row, with the functions of the writer, and the tars with webdataset's reading."""

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from webdataset.tariterators import group_by_keys, tar_file_expander

from hypergrit_common.images import STORED_IMAGE_LIMITS, ImageRejected, decode
from pipeline.commands.verify import Checker, Sample, read_samples
from pipeline.output.commit import read_places
from pipeline.output.ledger import read_manifests
from pipeline.output.store import Store, indices
from pipeline.output.write.grit import grit_columns, grit_sample, similarity_column
from pipeline.output.write.samples import GroundedPhrase, check_row, kept_boxes, shortest_float, to_json
from pipeline.output.write.train import SIDE_PX, annotations, distinct_phrases
from schemas.files import (
    FILES,
    GRIT_CAPTION,
    GRIT_IMAGE,
    GRIT_JSON,
    MANIFEST_FILE,
    TARS,
    TRAIN_ANNOTATIONS,
    TRAIN_BOX_IMAGE,
    TRAIN_BOX_PHRASE,
    TRAIN_CAPTION,
    TRAIN_IMAGE,
    TRAIN_N_PARENTS,
    grit_schema,
)
from schemas.manifest import Manifest
from schemas.rows import SCORED
from schemas.status import KEPT, further_reasons

Row = dict[str, Any]
Members = Mapping[str, bytes]


def defects(output: Path | str) -> list[str]:
    """Check all shards of an output in this process as `verify` does, and compare their formats."""
    checker, shards = Checker(str(output)), indices(Store(str(output)), MANIFEST_FILE)
    found = [str(problem) for index in shards for problem in checker.check(index).problems]
    return found or differences(output)


def differences(output: Path | str) -> list[str]:
    """Describe how the rows and samples of all shards of an output on this machine differ between its formats."""
    store = Store(str(output))
    return [text for manifest in read_manifests(store) for text in shard_differences(store, manifest)]


def shard_differences(store: Store, manifest: Manifest) -> Iterator[str]:
    """Describe the differences of a shard. Rows have the schemas of their files, and each a sample if it is kept."""
    index, formats = manifest["shard"], manifest["formats"]
    names = {kind: [file.path(index) for file in FILES[kind]] for kind in formats}
    similarity = similarity_column(manifest["provenance"]["models"]["scorer"]["name"])
    rows: list[Row] | None = None
    columns: list[Row] | None = None
    if "arrow" in formats:
        with pa.memory_map(store.path(names["arrow"][0])) as source:
            table = pa.ipc.open_file(source).read_all()
            assert table.schema == SCORED
            rows = table.to_pylist()
        for row in rows:
            check_row({**row, "image": row["image"] or b"elsewhere"}, further_reasons(manifest["provenance"]))
    if "grit" in formats:
        with pq.ParquetFile(store.path(names["grit"][1])) as file:
            assert file.schema_arrow.equals(grit_schema(similarity))
            columns = file.read().to_pylist()
    samples = {kind: read_tar(store, names[kind][0]) for kind in TARS if kind in formats}
    if rows is not None and columns is not None:
        for row, values in zip(rows, columns, strict=True):
            if text := columns_problem(row, values, similarity):
                yield f"{names['grit'][1]}: row {row['key']} {text}"
    ledger = rows if rows is not None else columns
    if ledger is None:
        ledger = [{"key": key, "status": KEPT} for key, _ in samples["train"]]
    kept = [i for i, row in enumerate(ledger) if row["status"] in (KEPT, "success")]
    for kind, found in samples.items():
        assert [key for key, _ in found] == [ledger[i]["key"] for i in kept], names[kind]
        for i, (key, members) in zip(kept, found, strict=True):
            row, values = rows and rows[i], columns and columns[i]
            if kind == "train":
                texts = train_problems(row or None, values or None, members, manifest["provenance"]["config_hash"])
            else:
                assert values
                texts = grit_problems(values, members, similarity)
                if row and row["image"] not in (None, members.get(GRIT_IMAGE)):
                    yield f"{names[kind][0]}: sample {key}: its image is not that of arrow/"
            yield from (f"{names[kind][0]}: sample {key}: {text}" for text in texts)


def read_tar(store: Store, name: str) -> list[Sample]:
    """Return the samples of a tar, which webdataset, a usual reader, reads as they are."""
    samples = list(read_samples(store, name, read_places(store, name)))
    with store.open(name) as file:
        theirs = group_by_keys(tar_file_expander([{"url": name, "stream": file}]))
        for ours, found in zip_longest(samples, theirs):
            assert ours is not None
            assert found == {"__key__": ours[0], "__url__": name, **ours[1]}
    return samples


def columns_problem(row: Row, columns: Row, similarity: str) -> str:
    """Describe how a row of the parquet differs from its row of arrow/; "" if it does not."""
    expected = grit_columns(row, similarity) | {similarity: row["clip_similarity"]}
    differing = [name for name in expected if name in columns and expected[name] != columns[name]]
    return f"differs from arrow/ in {', '.join(differing)}" if differing else ""


def grit_problems(columns: Row, members: Members, similarity: str) -> Iterator[str]:
    """Describe how a sample of grit/ differs from its row of the parquet."""
    values = {**columns, similarity: shortest_float(columns[similarity])}
    expected = dict(grit_sample({**columns, "image": members.get(GRIT_IMAGE, b"")}, values))
    if list(members) != list(expected):
        yield f"its members are {', '.join(members)}, but should be {', '.join(expected)}"
        return
    if members[GRIT_CAPTION] != expected[GRIT_CAPTION]:
        yield f"{GRIT_CAPTION} is not the caption of its row in the parquet"
    if json.loads(members[GRIT_JSON]) != json.loads(expected[GRIT_JSON]):  # parquet has offsets as floats
        yield f"{GRIT_JSON} is not that of its row in the parquet"
    yield from image_problems(GRIT_IMAGE, members[GRIT_IMAGE], columns["width"], columns["height"])


def train_problems(row: Row | None, columns: Row | None, members: Members, config_hash: str) -> Iterator[str]:
    """Describe how a sample of train/ differs from its row of arrow/, or if there is none of the parquet."""
    fields: dict[str, Any] = json.loads(members[TRAIN_ANNOTATIONS])
    phrases = [fields["caption"][p["start"] : p["end"]] for p in fields["parents"]]
    if list(members) != (expected := member_names(len(phrases))):
        yield f"its members are {', '.join(members)}, but should be {', '.join(expected)}"
        return
    texts = {TRAIN_CAPTION: fields["caption"], TRAIN_N_PARENTS: str(len(phrases))}
    texts |= {TRAIN_BOX_PHRASE.format(i): phrase for i, phrase in enumerate(phrases)}
    for name, text in texts.items():
        if members[name] != text.encode():
            yield f"{name} is not that of its JSON"
    if row is not None:
        yield from annotation_problems(row, fields, members[TRAIN_ANNOTATIONS], config_hash)
    elif columns is not None:
        values = {**fields, **fields["provenance"]}
        names = ("key", "caption", "width", "height", "id", "url", "sha256")
        if differing := [name for name in names if values[name] != columns[name]]:
            yield f"differs from grit/ in {', '.join(differing)}"
    for name in (TRAIN_IMAGE, *(TRAIN_BOX_IMAGE.format(i) for i in range(len(phrases)))):
        yield from image_problems(name, members[name], SIDE_PX, SIDE_PX)


def member_names(n_parents: int) -> list[str]:
    """Return the members of a sample with this number of boxes and phrases, in their order."""
    pairs = (name.format(i) for i in range(n_parents) for name in (TRAIN_BOX_IMAGE, TRAIN_BOX_PHRASE))
    return [TRAIN_IMAGE, TRAIN_CAPTION, TRAIN_N_PARENTS, *pairs, TRAIN_ANNOTATIONS]


def annotation_problems(row: Row, fields: dict[str, Any], content: bytes, config_hash: str) -> Iterator[str]:
    """Describe how the JSON of a sample differs from what the writer makes of its row of arrow/."""
    kept = kept_boxes(row)
    phrases = [GroundedPhrase(p["kind"], p["start"], p["end"], kept[p["box"]]) for p in fields["parents"]]
    if distinct_phrases(row) != phrases:
        yield "its phrases are not those of arrow/"
    expected = annotations(row, phrases, config_hash)
    if to_json(expected) == content:
        return
    plain = json.loads(to_json(expected))
    if differing := [name for name in plain if plain[name] != fields.get(name)]:
        yield f"differs from arrow/ in {', '.join(differing)}"


def image_problems(name: str, data: bytes, width: int, height: int) -> Iterator[str]:
    """Describe an image that cannot be decoded or does not have this size in pixels."""
    try:
        pixels = decode(data, STORED_IMAGE_LIMITS)
    except ImageRejected as error:
        yield f"{name} cannot be decoded ({error})"
        return
    if pixels.shape != (height, width, 3):
        yield f"{name} has {pixels.shape[1]} x {pixels.shape[0]} px, but should have {width} x {height}"
