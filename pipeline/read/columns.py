"""Find the columns of an input that hold URL, image, caption and identifier."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from common.errors import UserError
from pipeline.read.config import ReadConfig
from pipeline.read.formats import format_of

URL_NAMES: Final = ("url", "image_url", "link")
CAPTION_NAMES: Final = ("caption", "text", "alt_text", "alt", "title")
ID_NAMES: Final = ("id", "uid", "sample_id", "image_id", "key")
IMAGE_NAMES: Final = ("image", "img")
PATH_NAMES: Final = ("image_path", "file_name", "filename", "filepath")


class Columns(NamedTuple):
    """The columns of an input by their use; None for a missing one."""

    url: str | None
    captions: tuple[str, ...]
    id: str | None
    image: str | None
    path: str | None

    def used(self) -> set[str]:
        """Return the columns that are not part of `extra`."""
        found = (self.url, *self.captions, self.id, self.image)
        return {name for name in found if name is not None}


def find_column(names: Iterable[str], configured: str | None, known: Sequence[str]) -> str | None:
    """The configured column, or if none is configured, the first of `known` in any letter case; None if missing."""
    if configured is not None:
        return configured if configured in names else None
    by_lower_case = {name.lower(): name for name in names}
    return next((by_lower_case[name] for name in known if name in by_lower_case), None)


def find_columns(names: Iterable[str], config: ReadConfig, source: str) -> Columns:
    """Find the columns among the `names` of a row of the file `source`.

    In rows without a URL column, those with an image or its path are recognised by their names if images may be read
    from files, and that with an image in every parquet file.
    """
    names = list(names)
    url = find_column(names, config.url_column, URL_NAMES)
    has_images = bool(config.image_roots) or format_of(source) == "parquet"
    image = find_column(names, config.image_column, IMAGE_NAMES if has_images and url is None else ())
    is_path = config.image_roots and url is None and image is None
    path = find_column(names, config.image_path_column, PATH_NAMES if is_path else ())
    caption = find_column(names, config.caption_column, CAPTION_NAMES)
    more = (name for name in config.more_caption_columns if name in names)
    captions = dict.fromkeys((*([caption] if caption is not None else []), *more))
    return Columns(url, tuple(captions), find_column(names, config.id_column, ID_NAMES), image, path)


def check_columns(path: str, names: list[str] | None, config: ReadConfig) -> None:
    """Raise UserError unless the file has a column with images and one with captions, and those of `where`.

    Tars, with `names=None`, pass.
    """
    if names is None:
        return
    found = find_columns(names, config, path)
    if not any((found.url, found.image, found.path, config.url_column, config.image_column, config.image_roots)) and (
        name := find_column(names, config.image_path_column, (*PATH_NAMES, *IMAGE_NAMES))
    ):
        raise UserError(
            f"{path} has paths of images in its column {name}, which are read only from folders that "
            "read.image_roots=[FOLDER, ...] names; or set read.url_column=NAME"
        )
    in_object = "; or, if the rows are in a list within an object, read.json_key=NAME" if is_json(path) else ""
    for role, configured, known in (
        ("url", config.url_column, URL_NAMES),
        ("image", config.image_column, IMAGE_NAMES),
        ("image_path", config.image_path_column, PATH_NAMES),
        ("caption", config.caption_column, CAPTION_NAMES),
    ):
        is_optional = role != "caption" and bool(found.url or found.image or found.path or role != "url")
        if find_column(names, configured, known) is None and (configured is not None or not is_optional):
            raise UserError(
                f"{path} has no {role} column (looked for {configured or ', '.join(known)}; it has "
                f"{', '.join(names) or 'none'}); set read.{role}_column=NAME{in_object}"
            )
    for name in config.more_caption_columns:
        if name not in names:
            raise UserError(
                f"{path} has no column {name}, which read.more_caption_columns names (it has {', '.join(names)})"
            )
    if found.path and not config.image_roots:
        raise UserError("image_path_column is set, but no folder; set read.image_roots=[FOLDER, ...] too")
    if config.selection is not None:
        config.selection.check(path, names)


def check_image_type(path: str, schema: pa.Schema, config: ReadConfig) -> None:
    """Raise UserError, with the type, if the column with the images of a parquet file can hold none."""
    name = find_columns(schema.names, config, path).image
    if name is not None and not holds_images(kind := schema.field(name).type):
        raise UserError(
            f"{path}: the column {name} has the type {kind}, but images are bytes (binary), paths (string), or both "
            "(struct<bytes: binary, path: string>); set read.image_column=NAME or read.url_column=NAME"
        )


def holds_images(kind: Any) -> bool:
    """Return True for types of text and bytes, and for structs with a field `bytes` of bytes or a field `path`.

    Text in a field `bytes` is no image.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return holds_images(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return holds_images(kind.value_type)
    if pa.types.is_struct(kind):
        found = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
        has_text = any(name == "bytes" and is_text(field) for name, field in found.items())
        return not has_text and any(name in ("bytes", "path") and holds_images(field) for name, field in found.items())
    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return is_text(kind) or any(check(kind) for check in (*checks, pa.types.is_null))


def is_text(kind: Any) -> bool:
    """Return True for types of text."""
    return any(check(kind) for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def is_json(path: str) -> bool:
    """Return True for a .json file, in which the rows may be in an inner list."""
    return format_of(path) == "json"
