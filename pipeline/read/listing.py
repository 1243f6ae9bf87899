"""List the input files and know their formats: a file, folder, glob, or pattern with braces, on a disk or in a store."""

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Final

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from hypergrit_common.errors import UserError, prefixed
from hypergrit_common.files import is_broken_link
from hypergrit_common.lazy import load_plugin
from hypergrit_common.locations import Locations, expand_braces, split_locations
from hypergrit_common.paths import absolute, without_protocol
from hypergrit_common.remote import map_concurrently, one_line, open_store, refusal, store_errors
from hypergrit_common.time_limits import reported
from hypergrit_common.urls import check_no_user, text_without_secrets, without_secrets
from pipeline.read.parquet import Parquet
from pipeline.read.roots import is_web, object_version, without_query
from pipeline.read.rows import pictures_beside
from pipeline.read.samples import BESIDE, Folder, Tar, count_suffixes, is_image, list_folder, suffix_of
from pipeline.read.streams import COMPRESSIONS, compression_of
from pipeline.read.text import Csv, Json, JsonLines, Tsv
from pipeline.read.types import Format, Piece

logger = logging.getLogger(__name__)

BUILT_IN: Final = (Parquet(), JsonLines(), Json(), Csv(), Tsv(), Tar(), Folder())
"""The input formats. A new one is an entry here, or a class that `read.format` names."""
FORMATS: Final[dict[str, Format]] = {kind.name: kind for kind in BUILT_IN}
"""The input formats of this process by name; the first with the suffix of a file reads it."""


def use_format(name: str | None) -> None:
    """Read files with the suffixes of the format `read.format` by it, in this process. Raises UserError."""
    found = [] if name is None else [load_plugin(name, Format, "read.format")()]
    own = {kind.name: kind for kind in found}
    formats = own | {kind.name: kind for kind in BUILT_IN} | own  # its suffixes come first
    if [*map(type, formats.values())] != [*map(type, FORMATS.values())]:  # other threads may look into it
        FORMATS.clear()
        FORMATS.update(formats)


def format_of(path: str) -> str | None:
    """The name of the format by the suffix of a file name, None if unknown; a folder of images ends with a slash."""
    if (name := without_query(path).lower()).endswith("/"):
        return Folder.name if path.endswith("/") else None  # a page of a web server, such as a sorted listing
    plain = name.removesuffix(compression_of(name))
    found = (kind for kind in FORMATS.values() if (plain if kind.is_compressible else name).endswith(kind.suffixes))
    return next((kind.name for kind in found), None)


def input_format(path: str) -> Format:
    """Return the format of a file that `list_files` has listed."""
    return FORMATS[format_of(path) or ""]


SUFFIXES: Final = ", ".join(suffix for kind in FORMATS.values() for suffix in kind.suffixes)
KNOWN: Final = f"{SUFFIXES} (all but .parquet also in {', '.join(COMPRESSIONS)})"
"""The names of input files, for messages."""

Files = list[tuple[str, int]]
"""Input files as pairs (path, size in bytes)."""


class InputFiles(Files):
    """Input files, with the number of files beside them that are not read, by suffix."""

    def __init__(self, files: Iterable[tuple[str, int]], not_read: Mapping[str, int]) -> None:
        super().__init__(files)
        self.not_read = not_read


GLOB: Final = "*?["
"""Characters of which a glob has one."""
GLOB_START: Final = re.compile(r"/[^/]*[*?\[]")


def list_files(input: Locations) -> InputFiles:
    """List the input files as pairs (path, size in bytes), sorted, but in the order of the paths that are given.

    `input` is a file, folder or glob, as a local path or an fsspec URL, or several of them (`split_locations`);
    `{00..99}` and `{a,b}` in it stand for several.
    Of tars, .json files and others in the same place, only one kind is read: img2dataset writes a parquet file with the
    same rows next to each tar, and .json files often hold statistics. A folder of images becomes the path with a slash
    at its end. Raises UserError if there are no input files, if they cannot be listed, and for a URL with a user name or
    a password, which errors of stores repeat in other forms.
    """
    items = split_locations(input)
    for item in items:
        check_no_user("input", item)
    with prefixed("input "):
        patterns = list(dict.fromkeys(pattern for item in items for pattern in expand_braces(item)))
    urls = ", ".join(item for item in items if "://" in item)
    with reported(f"waiting for the list of {urls}") if urls else nullcontext():
        lists = [*map_concurrently(partial(_list_files, checked=set()), patterns)]
        check_whole_folders(input, [(files, images) for files, images, _ in lists])
    chosen = {path: size for files, _, _ in lists for path, size in sorted(files)}
    unread = Counter(suffix_of(path) for path in {path for *_, others in lists for path in others} - chosen.keys())
    return InputFiles(chosen.items(), dict(unread))


def check_whole_folders(input: Locations, lists: Sequence[tuple[Files, Counter[str]]]) -> None:
    """Raise UserError if patterns match a part of the images of a folder, which is read as a whole."""
    for folder, n in sum((images for _, images in lists), Counter[str]()).items():
        if n < (n_all := len(list_folder(folder).images)):
            raise UserError(
                f"input {input!r} matches {n} of the {n_all} images of {folder}, and folders of images are read as a "
                "whole; give the folder, or move the others"
            )


def _list_files(input: str, checked: set[str]) -> tuple[Files, Counter[str], list[str]]:
    """Return the files, the number of images that a glob matches in each folder of images, and the files not read."""
    if "::" in input and os.path.lexists(input):
        raise chain_error(input)
    fs, root = open_store(input)
    shown = without_query(input)
    try:
        found = find_files(fs, root, checked)
        if found == [root] and format_of(root) is None:
            check_no_arrow(found)
            raise UserError(f"input file {shown!r} has no known format; its name must end in {KNOWN}")
        if not found and not fs.isdir(root):
            raise UserError(f"input {shown!r} does not exist; give a file, a folder, a glob or a URL")
        files, unread = choose_files(found)
        if not files:
            raise UserError(f"input {shown!r} holds no file of a known format; names must end in {KNOWN}")
        check_names(files)
        is_glob = any(sign in input for sign in GLOB) and files[0].endswith("/")
        names = (path.rpartition("/") for path in (found if is_glob else ()))
        counts = Counter(folder for folder, _, name in names if is_image(name))
        images = Counter({_url(fs, f"{folder}/"): n for folder, n in counts.items()})
        others = [_url(fs, path) for path in unread]
        return [(url := _url(fs, path), _size(fs, path, url)) for path in files], images, others
    except store_errors(ValueError) as error:
        reason = refusal(error, "check the URL, the credentials and their permissions")
        raise UserError(
            text_without_secrets(f"input {shown!r} cannot be listed: {reason}", strip_query=True)
        ) from error


# The names of input files in outputs, which tell nothing of the machine.

SIGN: Final = re.compile(r"/[^/]*[*?\[{]")
"""The first part of a path with a sign of globs or braces."""


def input_folders(input: Locations, known: Sequence[str], files: Iterable[tuple[str, int]]) -> list[str]:
    """Return the folders of an input, with slashes at their ends; the numbers of local ones begin the names of `files`.

    A folder of the input stands for itself, a file for its folder, a glob for the folder before its first sign. Those
    that are `known` from earlier runs keep their numbers; new ones replace those of which no file is left, then follow.
    """
    given, paths = list[str](), [_bare(path) for path, _ in files]
    for item in (_bare(absolute(without_protocol(item.rpartition("::")[2]))) for item in split_locations(input)):
        is_folder = any(path.startswith(f"{item}/") for path in paths) if "://" in item else os.path.isdir(item)
        folder = item if is_folder else SIGN.split(item, maxsplit=1)[0] if SIGN.search(item) else ""
        folder = os.path.dirname(item) if not folder or os.path.isfile(item) else folder
        given.append(os.path.join(folder, ""))
    new = iter([folder for folder in dict.fromkeys(given) if folder not in known])
    is_left = {folder: any(path.startswith(folder) for path in paths) for folder in known}
    return [*(folder if is_left[folder] else next(new, folder) for folder in known), *new]


def file_name(path: str, folders: Sequence[str]) -> str:
    """Return the name of an input file in outputs: the number of its folder and the path below it, or its URL.

    >>> file_name("/data/a/x.csv", ["/data/b/", "/data/"]), file_name("https://h/x.csv?signature=1f", [])
    ('1/a/x.csv', 'https://h/x.csv')
    """
    if "://" in (path := _bare(path)):
        return path
    number, folder = _folder_of(path, folders)
    return path.rstrip("/").rpartition("/")[2] if number is None else f"{number}/{path[len(folder) :]}"


def below(path: str, folders: Sequence[str]) -> str:
    """Return the part of the path of an input file below the first of the folders that has it; else all of it.

    >>> below("s3://b/lang=en/t/year=2024/x.csv", ["s3://b/lang=en/t/"])
    'year=2024/x.csv'
    """
    path = _bare(path)
    return path[len(_folder_of(path, folders)[1]) :]


def _folder_of(path: str, folders: Sequence[str]) -> tuple[int | None, str]:
    """Return the first of the folders that has a path, with its number; (None, "") without one."""
    return next(((i, folder) for i, folder in enumerate(folders) if path.startswith(folder)), (None, ""))


def _bare(path: str) -> str:
    """Return a path without the protocol of local files, or a URL without its secrets."""
    path = without_protocol(path)
    return without_secrets(path, strip_query=True) if "://" in path else path


def full_path(name: str, folders: Sequence[str]) -> str:
    """Return the path for which `file_name` returned a name; the name itself if it has none of the folders."""
    number, _, rest = name.partition("/")
    return f"{folders[int(number)]}{rest}" if number.isdecimal() and int(number) < len(folders) else name


def _url(fs: AbstractFileSystem, path: str) -> str:
    if isinstance(fs, LocalFileSystem):
        return path
    url = fs.unstrip_protocol(path)
    return f"{url.rstrip('/')}/" if path.endswith("/") else str(url)


def _size(fs: AbstractFileSystem, path: str, url: str) -> int:
    if format_of(path) == "folder":
        return list_folder(url).size
    return 0 if isinstance(fs, LocalFileSystem) and is_broken_link(path) else fs.size(path) or 0


def find_files(fs: AbstractFileSystem, root: str, checked: set[str]) -> list[str]:
    """Return the paths of a glob, those below a folder that are not hidden, or the path of a file that exists.

    A folder is one whatever its name: engines write tables as folders `pairs.parquet/`. `checked` has the folders above
    other paths, which are no tables.
    """
    fs.invalidate_cache()  # other machines may have added files since this process listed them
    folder = "" if is_web(root) else GLOB_START.split(f"{root}*")[0]  # above the path; `_below` checks what is in it
    while folder and (url := fs.unstrip_protocol(folder)) not in checked:  # the input may be a part of a table
        checked.add(url)
        with suppress(OSError, ValueError):  # above what a store can name, such as a repository of hf://
            check_tables(path for path in [f"{folder}/_delta_log"] if fs.exists(path))
            check_tables(fs.ls(f"{folder}/metadata", detail=False))
        folder = folder.rpartition("/")[0]
    if any(sign in root for sign in GLOB) and not fs.exists(root):
        found = fs.glob(root, detail=True)
        check_tables([*found])
        folders = {path for path, info in found.items() if info["type"] != "file" and fs.isdir(path)}
        files = [path for path in found if path not in folders]
        if any(format_of(path) for path in files):
            folders = {path for path in folders if format_of(path)}
        return list(dict.fromkeys([*files, *(path for folder in sorted(folders) for path in _below(fs, folder))]))
    has_name_of_file = is_web(root) and format_of(root) not in (None, Folder.name)  # whose listing is its content
    if not has_name_of_file and fs.isdir(root):
        return _below(fs, root)
    return [root] if fs.exists(root) else []


def _below(fs: AbstractFileSystem, folder: str) -> list[str]:
    """Return the files below a folder that are not hidden."""
    found = fs.find(folder)
    check_tables(found)
    parts = ((path, path[len(folder) :].split("/")) for path in found)
    return [path for path, names in parts if not any(name.startswith((".", "_")) for name in names)]


TABLE_LOG: Final = re.compile(
    r"(?P<Delta>/_delta_log(?:/|$))|(?P<Hudi>/\.hoodie(?:/|$))|(?P<Iceberg>/metadata/[^/]*\.metadata\.json$)"
)


def check_tables(paths: Iterable[str]) -> None:
    """Raise UserError for a table of an engine whose files also hold the rows that were deleted or replaced."""
    if found := next(filter(None, map(TABLE_LOG.search, paths)), None):
        raise UserError(
            f"the input folder {found.string[: found.start()]} is a table of {found.lastgroup}, whose files also hold "
            "deleted rows; read it by that engine, and write its rows as parquet, or by pipeline.write_input"
        )


def check_no_arrow(paths: Iterable[str]) -> None:
    """Raise UserError for Arrow files, such as those of Hugging Face's save_to_disk, whose .json files are no rows."""
    if path := next((path for path in paths if path.endswith((".arrow", ".feather"))), None):
        raise UserError(
            f"{path} is an Arrow file, which is not read; write its rows as parquet: "
            "datasets.load_from_disk(FOLDER).to_parquet(FILE), or pipeline.write_input(pyarrow.ipc.open_stream(FILE), FOLDER)"
        )


def choose_files(found: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the sorted files that are read, and those that are not; warn about what is in no file that is read.

    They are tars, or else tables, or else folders of images, or else .json files. Tables that img2dataset writes beside
    folders of images, with the same rows, do not count: all have the name of such a folder, or one has that of a shard.
    """
    of_file = {without_query(path): path for path in sorted(found, reverse=True)}  # pages link to a file more than once
    known = sorted(path for path in of_file.values() if format_of(path))
    images = {path for path in found if is_image(path.rpartition("/")[2])}
    folders = sorted({path.rpartition("/")[0] for path in images})
    tars = [path for path in known if format_of(path) == "tar"]
    tables = [path for path in known if format_of(path) != "json"]
    if not (tars or tables or folders):
        check_no_arrow(found)
        return known, sorted({*found} - {*known})
    shards = {*folders}.intersection(of_tables := {*map(_stem, tables)})
    has_folders = not tars and (shards == of_tables or any(path.rpartition("/")[2].isdigit() for path in shards))
    kind, chosen = ("tars", tars) if tars else ("tables", tables)
    if has_folders:
        kind, chosen = "folders of images", [f"{folder}/" for folder in folders]
    names = {*(folders if has_folders else map(_stem, chosen))}
    read = {*chosen} | (images if has_folders or any(map(pictures_beside, chosen)) else set())
    unread = [path for path in found if path not in read]
    if has_folders:  # what stands beside an image belongs to it
        stems = {path.rpartition(".")[0] for path in images}
        unread = [path for path in unread if not (path.lower().endswith(BESIDE) and path.rpartition(".")[0] in stems)]
    others = [path for path in unread if _stem(path).removesuffix("_stats") not in names]
    if others:
        logger.warning(
            "%s of the input are not read, only its %s (%d); the first: %s; to read others, give a folder or glob of them "
            "alone", count_suffixes(others), kind, len(chosen), others[0],
        )  # fmt: skip
    return chosen, sorted(unread)


def check_names(paths: Sequence[str]) -> None:
    """Raise UserError for a name that is not UTF-8, which no record can hold, or that fsspec takes for a chain of URLs."""
    for path in paths:
        if path != (readable := path.encode(errors="backslashreplace").decode()):
            raise UserError(f"the name of the input file {readable} is not valid UTF-8; rename the file")
        if "::" in path:
            raise chain_error(path)


def chain_error(path: str) -> UserError:
    """Return the error for a file whose name has a double colon."""
    readable = path.encode(errors="backslashreplace").decode()
    return UserError(
        f"the name of the input file {readable} contains '::', which separates chained URLs; rename the file or folder"
    )


def _stem(path: str) -> str:
    """The path of a file without its suffixes, as img2dataset names what belongs to a shard."""
    plain = without_query(path)
    plain = plain[: len(plain) - len(compression_of(plain))]
    return plain.removesuffix(".tgz").rpartition(".")[0] if "." in plain.rpartition("/")[2] else plain


# Notice that an input file changed between planning and reading.


def check_unchanged(piece: Piece) -> None:
    """Raise UserError if the file of a piece is no longer the planned one; called after reading its rows.

    A file is judged by its time of modification and size, an object by its ETag and size, a folder by its listing.
    """
    if not piece.version:
        return
    try:
        fs, name = open_store(piece.path)
        if format_of(piece.path) == "folder":
            listing = list_folder(piece.path)
            found = listing.size, listing.version
        elif isinstance(fs, LocalFileSystem):
            facts = os.stat(name)
            found = facts.st_size, str(facts.st_mtime_ns)
        else:
            fs.invalidate_cache(name)
            info = fs.info(name)
            found = int(info["size"] or 0), object_version(info)
    except store_errors(ValueError) as error:
        raise changed(piece.path, one_line(error)) from error
    if found != (piece.size, piece.version):
        raise changed(piece.path)


def changed(path: str, reason: str = "") -> UserError:
    """Return the error for an input file that changed."""
    return UserError(
        f"{path} has changed since the job was planned{f' ({reason})' if reason else ''}; run the same command again, "
        "and do not change the input while it runs"
    )
