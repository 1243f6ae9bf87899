"""Compare the samples of train/ and grit/ with the rows that they were written from, with the functions of the writer."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args, get_type_hints

from common.images import STORED_IMAGE_LIMITS, ImageRejected, decode
from pipeline.verify.streams import Row
from pipeline.write.config import WriteConfig
from pipeline.write.grit import grit_columns, grit_sample
from pipeline.write.samples import GroundedPhrase, kept_boxes, shortest_float, to_json
from pipeline.write.train import SIDE_PX, annotations, distinct_phrases
from schemas.files import (
    GRIT_CAPTION,
    GRIT_IMAGE,
    GRIT_JSON,
    TRAIN_ANNOTATIONS,
    TRAIN_BOX_IMAGE,
    TRAIN_BOX_PHRASE,
    TRAIN_CAPTION,
    TRAIN_IMAGE,
    TRAIN_N_PARENTS,
)

MODES: Final = get_args(get_type_hints(WriteConfig)["ref_exps"])
"""The values of `write.ref_exps`. A manifest does not tell which one was set, so each is accepted."""

Members = Mapping[str, bytes]


def columns_problem(row: Row, columns: Row, similarity: str) -> str:
    """Describe how a row of the parquet differs from its row of arrow/; "" if it does not."""
    found: list[str] = []
    for mode in MODES:
        expected = grit_columns(row, mode, similarity) | {similarity: row["clip_similarity"]}
        differing = [name for name in expected if name in columns and expected[name] != columns[name]]
        if not differing:
            return ""
        found = found if found and len(found) <= len(differing) else differing
    return f"differs from arrow/ in {', '.join(found)}"


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
    parents = fields["parents"]
    if list(members) != (expected := member_names(len(parents))):
        yield f"its members are {', '.join(members)}, but should be {', '.join(expected)}"
        return
    caption: str = fields["caption"]
    texts = {TRAIN_CAPTION: caption, TRAIN_N_PARENTS: str(len(parents))}
    texts |= {TRAIN_BOX_PHRASE.format(i): caption[p["start"] : p["end"]] for i, p in enumerate(parents)}
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
    for name in (TRAIN_IMAGE, *(TRAIN_BOX_IMAGE.format(i) for i in range(len(parents)))):
        yield from image_problems(name, members[name], SIDE_PX, SIDE_PX)


def member_names(n_parents: int) -> list[str]:
    """Return the members of a sample with this number of boxes and phrases, in their order."""
    pairs = (name.format(i) for i in range(n_parents) for name in (TRAIN_BOX_IMAGE, TRAIN_BOX_PHRASE))
    return [TRAIN_IMAGE, TRAIN_CAPTION, TRAIN_N_PARENTS, *pairs, TRAIN_ANNOTATIONS]


def annotation_problems(row: Row, fields: dict[str, Any], content: bytes, config_hash: str) -> Iterator[str]:
    """Describe how the JSON of a sample differs from what the writer makes of its row of arrow/."""
    kept = kept_boxes(row)
    phrases = [GroundedPhrase(p["kind"], p["start"], p["end"], kept[p["box"]]) for p in fields["parents"]]
    if not any(distinct_phrases(row, mode) == phrases for mode in MODES):
        yield "its phrases are not those of arrow/"
    expected = annotations(row, phrases, config_hash)
    if to_json(expected) == content:
        return
    plain = json.loads(to_json(expected))
    differing = [name for name in plain if name in fields and plain[name] != fields[name]]
    if differing:  # a field that another version did not write is no difference
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
