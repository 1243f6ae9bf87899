"""Rows: what the columns of an input mean, and the conversion of a record of any format to a row of the READ schema."""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from numbers import Real
from typing import Any, Final, NamedTuple

import pyarrow as pa

from hypergrit_common.errors import UserError
from hypergrit_common.text import counted, quoted
from pipeline.read.config import ReadConfig
from pipeline.read.nested import (
    END,
    has_bytes,
    holds_picture,
    holds_text_of_picture,
    is_text,
    look_up,
    path_columns,
    picture_in,
    root_of,
    types_of,
)
from pipeline.read.roots import SCHEME, Location, RefusedError, Roots, is_web
from pipeline.read.types import IMAGE, LACK, BadRecord, BadRowError, ColumnNames, Format, Record
from pipeline.read.where import WhereError
from schemas.rows import GIVEN_BOX
from schemas.status import DROPPED, given_code

# One caption of a row that has several.


def choose_caption(values: Iterable[Any], url: str | None, config: ReadConfig) -> str | None:
    """Return the caption of a row by the rule `read.captions`; `values` are texts and lists of texts.

    Empty texts do not count. Of equally long captions the first is the longest. A random one depends on
    `captions_seed`, the URL and the captions, and not on the place of the row. Raises BadRowError for other types, and
    if there is no rule.
    """
    if config.captions is None:
        raise BadRowError("the caption is a list, not text; set read.captions=first, longest, join, random or all")
    found = [text for value in values for text in _texts(value) if text.strip()]
    if len(found) <= 1:
        return found[0] if found else None
    match config.captions:
        case "first" | "all":
            return found[0]
        case "longest":
            return max(found, key=len)
        case "join":
            return " ".join(text.strip() for text in found)
        case "random":
            content = json.dumps([config.captions_seed, url, found]).encode()
            return found[int.from_bytes(hashlib.sha256(content).digest()[:8], "big") % len(found)]


def _texts(value: Any) -> list[str]:
    """Return the captions of a value. Raises BadRowError unless it is a text, a list of texts, or null."""
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        value = [value]
    texts = [_text(item, "the caption", len(item)) if isinstance(item, bytes) else item for item in value]
    if wrong := next((text for text in texts if text is not None and not isinstance(text, str)), None):
        raise BadRowError(f"the caption is a {type(wrong).__name__}, not text")
    return [text for text in texts if isinstance(text, str)]


# The labels of a taxonomy.


def read_levels(record: Record, config: ReadConfig) -> list[str | None]:
    """The labels of a row by `read.levels`, from general to specific; None for an empty level.

    In a path, a species given as "Setophaga ruticilla" after its genus "Setophaga" names the genus once.

    >>> config = ReadConfig(levels="class,genus,species")
    >>> read_levels({"class": "Aves", "genus": None, "species": "ruticilla"}, config)
    ['Aves', None, 'Aves ruticilla']
    """
    rule = config.level_rule
    if rule is None:
        return []
    values: list[Any] = [record.get(name) for name in rule.columns]
    if rule.pattern is not None:
        found = rule.pattern.search(str(values[0] or ""))
        values = list(found.groups()) if found else []
    names = ["" if value is None else " ".join(str(value).split()) for value in values]
    if not rule.are_paths:
        return [name or None for name in names]
    own = [name.removeprefix(f"{before} ") for before, name in pairwise(["", *names])]
    return [" ".join(filter(None, own[: i + 1])) if name else None for i, name in enumerate(own)]


# Find the columns of an input that hold URL, image, caption and identifier.

URL_NAMES: Final = ("url", "image_url", "link")
CAPTION_NAMES: Final = ("caption", "text", "alt_text", "alt", "title")
ID_NAMES: Final = ("id", "uid", "sample_id", "image_id", "key")
IMAGE_NAMES: Final = (
    *("image", "img", "jpg", "jpeg", "png", "webp", "image_bytes", "image_data", "image_base64", "images", "bytes"),
)
PATH_NAMES: Final = ("image_path", "file_name", "filename", "filepath")
PATHS: Final = (*PATH_NAMES, *IMAGE_NAMES)
ANNOTATIONS: Final = {
    ("images", "annotations"): "captions of COCO, run jobs/pipeline/coco.sh",
    ("filename", "grounding"): "lines of ODVG, make rows of them as docs/inputs.md shows (Boxes of ODVG)",
}
"""Columns of formats whose records are no pairs -> what they are, and what to do with them."""


class Columns(NamedTuple):
    """The columns of an input by their use; None for a missing one."""

    url: str | None
    captions: tuple[str, ...]
    id: str | None
    image: str | None
    path: str | None


def find_column(names: Iterable[str], configured: str | None, known: Sequence[str]) -> str | None:
    """The configured column, or if none is configured, the first of `known` in any letter case; None if missing."""
    if configured is not None:
        return configured if configured in names else None
    by_lower_case = names_by_lower_case(tuple(names))
    return next((by_lower_case[name] for name in known if name in by_lower_case), None)


@lru_cache(maxsize=64)
def names_by_lower_case(names: tuple[str, ...]) -> dict[str, str]:
    """Map names in lower case to the names; one in lower case comes first, else the first in the alphabet."""
    return {name.lower(): name for name in sorted(names, reverse=True)} | {name: name for name in names}


def find_columns(names: Iterable[str], config: ReadConfig, has_images: bool, source: str = "") -> Columns:
    """Find the columns of a row among `names`: a mapping of them to values or types, or names alone.

    The column of the image is recognised by its name. Beside a URL column it must hold the bytes of a picture, of which
    the URL need not be fetched, and so beside a column of paths. Without both, paths and web addresses will do, in
    formats that have images (`Format.has_images`), and if images may be read from files. A path comes before the URL of
    a web server, which is for rows without the file, and after that of a store, beside which it may be but a name.
    """
    columns = names if isinstance(names, Mapping) else dict.fromkeys(names, "")
    url = find_column(columns, config.url_column, URL_NAMES)
    image = find_column(columns, config.image_column, ())
    has_pictures_beside = pictures_beside(source) is not None
    has_files = bool(config.image_roots) or has_pictures_beside
    if config.image_column is None:
        image = picture_column(columns, BYTES)
    is_path = image is None and (has_pictures_beside or (config.image_roots and not in_store(columns.get(url or ""))))
    path = find_column(columns, config.image_path_column, PATH_NAMES if is_path else ())
    if config.image_column is image is url is None and (has_images or has_files):
        has_path = path is not None and picture_rank(columns[path]) == TEXT
        image = None if has_path else picture_column(columns, ABSENT if path is None else TEXT)
    captions = (find_column(columns, name or None, CAPTION_NAMES) for name in dict.fromkeys(config.caption_columns))
    return Columns(url, tuple(filter(None, captions)), find_column(columns, config.id_column, ID_NAMES), image, path)


def in_store(url: Any) -> bool:
    """Return True for the URL of an object or a file, which is read as a path is; not for those of web servers."""
    return isinstance(url, str) and bool(SCHEME.match(url)) and not is_web(url)


NONE, ABSENT, TEXT, BYTES = range(4)
"""What a value or type holds of a picture: nothing, nothing in this row, text or bytes that may name it, its bytes."""


def picture_column(columns: Mapping[str, Any], least: int) -> str | None:
    """Return the column with a name of IMAGE_NAMES that holds most of a picture, and at least `least`."""
    ranks = {name: picture_rank(columns[name]) for name in _picture_names(tuple(columns))}
    best = max(ranks, key=ranks.__getitem__, default=None)
    return best if best is not None and ranks[best] >= least else None


@lru_cache(maxsize=64)
def _picture_names(names: tuple[str, ...]) -> list[str]:
    by_lower_case = names_by_lower_case(names)
    return [by_lower_case[name] for name in IMAGE_NAMES if name in by_lower_case]


def picture_rank(value: Any) -> int:
    """Return NONE, ABSENT, TEXT or BYTES for a value or an Arrow type."""
    match value:
        case pa.DataType():
            return NONE if not holds_images(value) else BYTES if has_bytes(value) else TEXT
        case None | "" | b"" | []:
            return ABSENT
        case bytes() | str():
            return BYTES if holds_picture(value) else TEXT
        case {"bytes": _} | {"path": _}:
            return max(picture_rank(value.get("bytes")), min(TEXT, picture_rank(value.get("path"))))
        case [item]:
            return picture_rank(item)
        case [item, *_]:  # several pictures, of which none can be chosen
            return min(TEXT, picture_rank(item))
    return NONE


def with_named(columns: Mapping[str, Any], config: ReadConfig, below: str = "") -> dict[str, Any]:
    """Return columns, and what settings name beyond them: columns in the path `below` the input, and fields."""
    folders = path_columns(below)
    found = {**{name: folders[name] for name in folders if name in config.named_columns}, **columns}
    for name in config.named_columns:
        if name not in found and END.search(name):
            with suppress(LookupError):
                found[name] = look_up(found, name)
    return found


METADATA: Final = re.compile(r"(^|/)metadata\.(csv|tsv|jsonl|ndjson|parquet)(\.[a-z0-9]+)?$")


@lru_cache(maxsize=4096)
def pictures_beside(path: str) -> str | None:
    """Return the folder of a file metadata.csv or the like, whose rows name pictures below it; None for other files."""
    return (path.rpartition("/")[0] or ".") if METADATA.search(path) and not is_web(path) else None


def check_columns(path: str, columns: ColumnNames | None, config: ReadConfig, kind: Format, below: str = "") -> None:
    """Raise UserError unless the file has a column with images and one with captions, and those of `where`.

    `columns` are their names, or a mapping of them to types or to values of a row. Tars, with None, pass. `below`: the path
    below the input.
    """
    if columns is None:
        return
    if twice := next((name for name, n in Counter(filter(None, columns)).items() if n > 1), None):
        raise UserError(
            f"{path} has several columns {twice!r}; give each a name of its own, in CSV by read.columns=[...]"
        )
    own = columns if isinstance(columns, Mapping) else dict.fromkeys(columns, "")
    names = with_named(own, config, below)
    has_files = bool(config.image_roots or pictures_beside(path))
    found = find_columns(names, config, kind.has_images, path)
    if not any((found.url, found.image, found.path, config.url_column, config.image_column, has_files)) and (
        name := find_column(filter(lambda name: picture_rank(names[name]), names), config.image_path_column, PATHS)
    ):
        raise UserError(
            f"{path} has paths of images in its column {name!r}, which are read only from folders that "
            "read.image_roots=[FOLDER, ...] names; or set read.url_column=NAME"
        )
    more = "; or, if the rows are in a list within an object, read.json_key=NAME" if kind.name == "json" else ""
    if kind.name in ("csv", "tsv") and len(own) == 1:
        more = next((f"; or read.delimiter={sign!r}" for sign in ",;|\t" if sign in next(iter(own))), "")
    if fix := next((fix for keys, fix in ANNOTATIONS.items() if own.keys() >= set(keys)), None):
        more += f"; or, if these are {fix}"
    for role, configured, known in (
        ("url", config.url_column, URL_NAMES),
        ("image", config.image_column, IMAGE_NAMES),
        ("image_path", config.image_path_column, PATH_NAMES),
        ("id", config.id_column, ID_NAMES),
        *(("caption", name or None, CAPTION_NAMES) for name in config.caption_columns),
    ):
        has_image = bool(found.url or found.image or found.path or role != "url")
        is_optional = has_image if role != "caption" else config.levels is not None
        if find_column(names, configured, known) is None and (configured is not None or not is_optional):
            pictures = ", or read.image_column=NAME for pictures in the file" if role == "url" else ""
            raise UserError(
                f"{path} has no {role} column (looked for {quoted([configured] if configured else known)}; it has "
                f"{quoted(names)}); set read.{role}_column=NAME{pictures}{more}"
            )
    for name in config.level_rule.columns if config.level_rule else ():
        if name not in names:
            raise UserError(f"{path} has no column {name!r}, which read.levels names (it has {quoted(names)})")
    if found.path and not has_files:
        raise UserError("image_path_column is set, but no folder; set read.image_roots=[FOLDER, ...] too")
    if config.selection is not None:
        config.selection.check(path, list({**path_columns(below), **names}))


def check_image_type(path: str, schema: pa.Schema, config: ReadConfig) -> None:
    """Raise UserError, with the type, if the column with the images of a file with types can hold none."""
    found = find_columns(columns := with_named(types_of(schema), config), config, has_images=True)
    known = IMAGE_NAMES if found.url is None and found.path is None else ()
    name = found.image or find_column(columns, config.image_column, known)
    if name is not None and not holds_images(kind := columns[name]):
        raise UserError(
            f"{path}: the column {name!r} has the type {kind}, but images are bytes (binary), paths (string), or both "
            "(struct<bytes: binary, path: string>); set read.image_column=NAME or read.url_column=NAME"
        )


def holds_images(kind: Any) -> bool:
    """Return True for types of text and bytes, structs with a field `bytes` of bytes or a field `path`, and lists of these.

    Text in a field `bytes` is no image.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return holds_images(kind.storage_type)
    if hasattr(kind, "value_type"):  # of lists and dictionaries
        return holds_images(kind.value_type)
    if pa.types.is_struct(kind):
        found = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
        has_text = any(name == "bytes" and is_text(field) for name, field in found.items())
        return not has_text and any(name in ("bytes", "path") and holds_images(field) for name, field in found.items())
    return is_text(kind) or has_bytes(kind) or pa.types.is_null(kind)


BOX_FIELDS: Final = tuple(item.name for item in GIVEN_BOX)
GRIT_COLUMNS: Final = ("noun_chunks", "ref_exps")
FINEHARD_COLUMN: Final = "bbox_info"
UNPLACED: Final = (given_code("not_in_caption"),) * 2
"""The span of a box whose phrase has no place in the caption."""
LOCATION: Final = "location"
"""Key of a row for the Location of its image, until the image is read."""


class Context(NamedTuple):
    """Facts about an input file that the conversion of its rows needs."""

    config: ReadConfig
    roots: Roots
    source: str
    kind: Format
    below: str  # its path below the input


def to_row(record: Record | BadRecord, context: Context) -> dict[str, Any]:
    """Convert a record to a row of READ, without its origin. Raises BadRowError for one that cannot become a row.

    If the image is to be read from a file, the row has its place under LOCATION.
    """
    if isinstance(record, BadRecord):
        raise BadRowError(record.message)
    config = context.config
    image, lack = record.pop(IMAGE, None), record.pop(LACK, None)
    if not isinstance(image, bytes | Location):  # the value of a JSON key with the same name
        image = None
    own = {**path_columns(context.below), **record}
    record = with_named(record, config, context.below)
    columns = find_columns(record, config, context.kind.has_images, context.source)
    is_selected = config.selection is None or _is_selected({**own, **record}, context)
    url = _text(_value(record, columns.url), "the URL", config.max_url_characters) or None
    found, path = _image(record, columns, config)
    image = image or found
    caption = _caption(record, columns, url, config)
    if record.get(FINEHARD_COLUMN) is not None and record.get("noun_chunks") is None:
        record["noun_chunks"] = finehard_boxes(record[FINEHARD_COLUMN], caption or "", config.max_boxes)
    boxes = {column: _given_boxes(record, column, config.max_boxes) for column in GRIT_COLUMNS}
    row: dict[str, Any] = {
        "url": url,
        "caption_original": caption,
        "captions": _all_captions(record, columns, config) if config.captions == "all" else None,
        "id": _text(_id(_value(record, columns.id)), "the id", config.max_row_bytes),
        "given_noun_chunks": boxes["noun_chunks"] or boxes["ref_exps"] or boxes["noun_chunks"],
        "given_ref_exps": boxes["ref_exps"],
        "extra": _extra(own, columns, config, read_levels(record, config)),
    }
    if not is_selected:
        return row | dropped("not_selected", "")
    if url and is_web(url) and not context.roots:  # without a place where it may be read, the path is no use
        path = None
    if image is None and (place := path or (url if in_store(url) else None)):
        if is_web(place):
            return row | {"url": url or place}
        if context.roots or path:
            try:
                image = context.roots.locate(place, context.source)
            except RefusedError as error:
                if is_web(url or ""):  # which the download stage fetches
                    return row
                return row | dropped("image_refused", f"{place[:300]}: {error}")
    if isinstance(image, Location):
        return row | {LOCATION: image}
    if url or image:
        return row | {"image": image}
    column = columns.image or columns.path
    return row | dropped("missing_url", lack or (f"the column {column!r} is empty" if column else ""))


def dropped(reason: str, detail: str) -> dict[str, Any]:
    """Return the columns of a row that `read` drops."""
    return {"status": DROPPED, "stage": "read", "reason": reason, "detail": utf8(detail)[:500] or None}


def _value(record: Record, name: str | None) -> Any:
    return record[name] if name is not None else None


def _is_selected(record: Record, context: Context) -> bool:
    """Return True for a row that `read.where` selects. An empty field of an untyped format is a missing value."""
    where = context.config.selection
    if where is not None and context.kind.is_untyped:
        record = {name: None if record.get(name) == "" else record.get(name) for name in where.columns}
    try:
        return where is None or where(record)
    except WhereError as error:
        raise BadRowError(f"read.where: {error}") from None


def _image(record: Record, columns: Columns, config: ReadConfig) -> tuple[bytes | None, str | None]:
    """Return the bytes of an image, or its path or URL. A dictionary {bytes, path} is that of Hugging Face datasets."""
    value = _value(record, columns.image)
    path = _value(record, columns.path)
    has_url = isinstance(url := _value(record, columns.url), str) and is_web(url)
    if isinstance(value, list) and len(value) > 1:
        raise BadRowError(f"the row has {len(value)} images; name one, such as read.image_column={columns.image}[0]")
    if isinstance(value, list):
        value = value[0] if value else None
    if isinstance(value, dict):
        path = value.get("path") if value.get("path") is not None else path
        value = value.get("bytes")
    if isinstance(value, bytes) and has_url and not holds_picture(value):
        value = None  # the picture is that of the URL
    elif isinstance(value, bytes | str) and holds_text_of_picture(value):
        value = picture_in(value)
        if value is None and not has_url:
            raise BadRowError("the image begins as base64 or hexadecimal digits, but is not valid base64")
    elif isinstance(value, str):
        path, value = value, None
    if value is not None and not isinstance(value, bytes):
        raise BadRowError(f"the image is a {type(value).__name__}, not bytes or a path")
    if value is not None and len(value) > config.max_image_bytes:
        raise BadRowError(f"the image has {len(value)} bytes, more than the limit of {config.max_image_bytes}")
    if value:
        return value, None
    return None, _text(path, "the path of the image", config.max_url_characters) or None


def _caption(record: Record, columns: Columns, url: str | None, config: ReadConfig) -> str | None:
    values = [record[name] for name in columns.captions if name in record]
    if not columns.captions:
        values = [label for label in read_levels(record, config) if label][-1:]
    if len(values) > 1 or isinstance(next(iter(values), None), list | tuple):
        if any(record.get(name) is not None for name in GRIT_COLUMNS) and config.captions != "first":
            raise BadRowError("noun_chunks refer to one caption, but the row has several; set read.captions=first")
        value = choose_caption(values, url, config)
    else:
        value = values[0] if values else None
    return _text(value, "the caption", config.max_row_bytes)


def _all_captions(record: Record, columns: Columns, config: ReadConfig) -> list[dict[str, Any]] | None:
    """Return the captions of a row that has several, each text once, with the names of their columns; else None.

    Raises BadRowError for more than `max_captions`.
    """
    found: dict[str, str] = {}
    for name in columns.captions:
        for text in _texts(record.get(name)):
            if text.strip():
                found.setdefault(_text(text, "a caption", config.max_row_bytes) or "", name)
    if len(found) > config.max_captions:
        raise BadRowError(f"the row has {len(found)} captions, more than the limit of {config.max_captions}")
    return [{"kind": kind, "text": text} for text, kind in found.items()] if len(found) > 1 else None


def _extra(record: Record, columns: Columns, config: ReadConfig, levels: list[str | None]) -> str | None:
    """Return the other columns as JSON. Raises BadRowError if they are too long."""
    root = root_of(columns.image, record) if columns.image is not None else ""
    used = {columns.url, *columns.captions, columns.id, *GRIT_COLUMNS}
    others = {name: value for name, value in record.items() if name not in used}
    for name in others.keys() & {root, *_picture_names(tuple(record))}:
        if (left := _without_pictures(others[name])) is not None:
            others[name] = left
        elif name == root or others[name]:
            del others[name]
    if config.levels is not None:
        others["levels"] = levels
    text = json.dumps(_json_value(others), sort_keys=True) if others else None
    if text and len(text) > 2 * config.max_row_bytes:  # JSON may escape characters
        raise BadRowError(
            f"the other columns have {len(text)} bytes, more than the limit of {2 * config.max_row_bytes}"
        )
    return text


def _without_pictures(value: Any) -> Any:
    """Return what a column of pictures holds beside them; None for nothing."""
    match value:
        case dict():
            return {name: left for name, item in value.items() if (left := _without_pictures(item)) is not None} or None
        case list():
            return [left for item in value if (left := _without_pictures(item)) is not None] or None
        case bytes() | str():
            return None if isinstance(value, bytes) or not value or holds_picture(value) else value
    return value


def _id(value: Any) -> str | None:
    """Return the text of an identifier of any type: hexadecimal digits of bytes that are no text, JSON of nested values.

    Whole floats are integers: pandas makes floats of integers as soon as one is missing.
    """
    if isinstance(value, float):
        return None if math.isnan(value) else str(int(value) if value.is_integer() and abs(value) < 2**53 else value)
    if isinstance(value, bytes):
        text = value.decode(errors="replace")
        return text if text.isprintable() and "\ufffd" not in text else value.hex()
    return json.dumps(_json_value(value)) if isinstance(value, dict | list) else value if value is None else str(value)


def _text(value: Any, what: str, most: int) -> str | None:
    """Return text or None unchanged, and UTF-8 bytes as text.

    Raises BadRowError for other types, for more than `most` characters, for other bytes and for lone surrogates; `what`
    names the value.
    """
    if value is None:
        return None
    if isinstance(value, bytes | str) and len(value) > most:
        raise BadRowError(f"{what} has {len(value)} characters, more than the limit of {most}")
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            raise BadRowError(f"{what} has bytes that are not UTF-8, at byte {error.start}; write it as text") from None
    if not isinstance(value, str):
        raise BadRowError(f"{what} is a {type(value).__name__}, not text")
    if lone := re.search(r"[\ud800-\udfff]", value):
        raise LoneSurrogateError(what, lone[0])
    return value


class LoneSurrogateError(BadRowError):
    """Text with half of a pair of surrogates: what JSON may escape, and what bytes become that are not in the encoding."""

    def explained(self, kind: Format, encoding: str) -> str:
        """Return the message for a file of this format and encoding."""
        what, half = self.args
        if kind.name in ("csv", "tsv"):  # pipeline.read.text.csv_rows
            return f"{what} has bytes that are not valid {encoding}; see read.encoding"
        return f"{what} has {half!a}, half of a pair for one character; write that character, or both halves"


def finehard_boxes(entries: Any, caption: str, most: int) -> list[list[float]]:
    """Convert the regions of FineHARD, at least the first `most`, to GRIT's noun_chunks. Raises BadRowError if they are none.

    A region is {"bbox": [x_min, y_min, x_max, y_max, score], "short_expr": ..., ...}; its phrase is the first place of the
    expression in the caption as whole words, in any letter case, [-1, -1) if it has none. `extra` has the regions with
    the long expressions and the hard negatives, which train/ has too.

    >>> finehard_boxes([{"bbox": [0.1, 0.2, 0.3, 0.4, 0.9], "short_expr": "a red hat"}], "A man in A red hat", 10)
    [[9, 18, 0.1, 0.2, 0.3, 0.4, 0.9]]
    """
    found = list[list[float]]()
    try:
        for number, entry in enumerate(entries[: most + 1]):
            box, text = entry["bbox"], entry["short_expr"].strip()
            if len(box) not in (4, 5):
                raise ValueError(f"the bbox of region {number} (from 0) is a list of {len(box)} numbers, not 4 or 5")
            place = re.search(rf"(?<!\w){re.escape(text)}(?!\w)", caption, re.IGNORECASE) if text else None
            found.append([*(place.span() if place else UNPLACED), *box, *([1.0] if len(box) == 4 else [])])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadRowError(f"{FINEHARD_COLUMN} does not hold FineHARD's regions: {error!r}") from None
    return found


def _given_boxes(record: Record, column: str, most: int) -> list[dict[str, Any]] | None:
    """The boxes of a GRIT column: lists [start, end, x_min, y_min, x_max, y_max, score], or their JSON text."""
    value, place, boxes = record.get(column), "", list[dict[str, Any]]()
    try:
        entries = json.loads(value or "null") if isinstance(value, str) else value
        if entries is None:
            return None
        if not isinstance(entries, list | tuple):
            raise ValueError(f"it is {entries!r:.40}, not a list of boxes")
        if len(entries) > most:
            raise BadRowError(f"{column} has {len(entries)} boxes, more than the limit of {most}")
        for number, entry in enumerate(entries):
            place = f"box {number} (from 0): "
            boxes.append(_given_box(entry))
    except BadRowError:
        raise
    except (ValueError, OverflowError, RecursionError) as error:
        raise BadRowError(f"{column} does not hold GRIT's lists of 7 numbers: {place}{error}") from None
    return boxes


def _given_box(entry: Any) -> dict[str, Any]:
    """Convert one list of GRIT to a schemas.rows.GIVEN_BOX.

    Edges slightly outside the image are accepted because grounders predict them; edges in pixels are far outside and
    are an error. Raises ValueError or OverflowError for an invalid list.
    """
    if not isinstance(entry, list | tuple):
        raise ValueError(f"{entry!r:.40}, not a list of 7 numbers")
    if len(entry) != len(BOX_FIELDS):
        raise ValueError(f"a list of {counted(len(entry), 'number')}, not 7")
    for name, value in zip(BOX_FIELDS, entry, strict=True):
        if isinstance(value, bool) or not isinstance(value, Real | Decimal):
            raise ValueError(f"{name} is {value!r:.40}, not a number")
    box = dict(zip(BOX_FIELDS, map(float, entry), strict=True))
    start, end, x_min, y_min, x_max, y_max, score = box.values()
    for name, place in (("start", start), ("end", end)):
        if not place.is_integer():
            raise ValueError(f"{name} is {place}, not a whole number")
        if abs(place) >= 2**31:
            raise ValueError(f"{name} is {place:.0f}, out of range")
    if not (-1 <= x_min <= x_max <= 2 and -1 <= y_min <= y_max <= 2):
        edges = ", ".join(f"{name} {box[name]:g}" for name in ("x_min", "y_min", "x_max", "y_max"))
        raise ValueError(f"edges must be fractions of the image, the smaller one first: {edges}")
    if not -1e-6 <= score <= 1 + 1e-6:
        raise ValueError(f"a score is {score}, not within [0, 1]")
    least = given_code("outside_caption")  # any span before the caption, but UNPLACED, is outside of it
    span = {"start": max(int(start), least), "end": max(int(end), least)}
    return box | span | {"score": min(max(score, 0.0), 1.0)}


def _json_value(value: Any) -> Any:
    """Convert a value to strict JSON in UTF-8: NaN becomes null, a lone surrogate "?", a date text."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {utf8(str(key)): _json_value(item) for key, item in value.items()}
        case list() | tuple():
            return [_json_value(item) for item in value]
        case None | bool() | int() | float():
            return value
        case bytes():  # a text column of binary type that `where` or the captions use
            return value.decode(errors="replace")
        case _:
            return utf8(str(value))


def utf8(text: str) -> str:
    """Replace each lone surrogate, which JSON can express (\\ud800) but UTF-8 cannot, by a question mark."""
    return text.encode(errors="replace").decode()
