"""Places of the files of shards in an output: in one folder per kind, or in folders of 1,000 shards.

Folders with hundreds of thousands of files are slow on shared disks, and a store lists a flat folder with one request
after the other. The layout of an output is chosen when it is created and never changes.
"""

from typing import Annotated, Any, Final, NamedTuple, TypedDict


class ShardFile(NamedTuple):
    """A kind of file that a shard has once: `train` and `.tar` for train/00000.tar."""

    folder: str
    suffix: str

    def __str__(self) -> str:
        return f"{self.folder}/NNNNN{self.suffix}"


class LayoutRecord(TypedDict):
    """`_layout.json`: the names of the files of shards. An output without it has names of five digits, in one folder."""

    digits: Annotated[int, "smallest number of digits of a name"]
    per_folder: Annotated[int, "shards of a folder"]


class Layout(NamedTuple):
    """Names of the files of shards: `digits` of the index, in folders of `per_folder` shards; 0: without folders.

    >>> from schemas.files import MANIFEST_FILE
    >>> FLAT.path(MANIFEST_FILE, 12), FOLDERS.path(MANIFEST_FILE, 12_345)
    ('_manifests/00012.json', '_manifests/0012/0012345.json')
    """

    digits: int = 5
    per_folder: int = 0

    def name(self, index: int) -> str:
        """Return the path of the files of a shard below their folders, without suffix."""
        name = f"{index:0{self.digits}d}"
        if not self.per_folder:
            return name
        return f"{index // self.per_folder:0{self.digits - len(str(self.per_folder - 1))}d}/{name}"

    def path(self, file: ShardFile, index: int) -> str:
        """Return the path of a file of a shard, relative to the output."""
        return f"{file.folder}/{self.name(index)}{file.suffix}"

    def parse(self, name: str) -> int | None:
        """Return the shard of a path below the folder of its kind, without suffix; None for another file's.

        >>> FLAT.parse("00012"), FOLDERS.parse("0012/0012345"), FLAT.parse("12"), FOLDERS.parse("0012345")
        (12, 12345, None, None)
        """
        digits = name.rpartition("/")[2]
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18):
            return None
        return index if self.name(index := int(digits)) == name else None

    def shard(self, path: str) -> tuple[ShardFile, int] | None:
        """Return the kind and the shard of a path relative to the output; None for another file.

        >>> FOLDERS.shard("train/0012/0012345.tar")
        (ShardFile(folder='train', suffix='.tar'), 12345)
        """
        folder, _, name = path.partition("/")
        stem, dot, suffix = name.partition(".")
        index = self.parse(stem)
        return None if index is None else (ShardFile(folder, dot + suffix), index)


FLAT: Final = Layout()
FOLDERS: Final = Layout(digits=7, per_folder=1000)
MAX_SHARDS: Final = 10_000_000
"""Shards that an output may have."""
MAX_FLAT: Final = 10_000
"""Planned shards up to which a new output has no folders."""


def layout_for(n_shards: int) -> Layout:
    """Return the layout of a new output with this number of planned shards."""
    return FLAT if n_shards <= MAX_FLAT else FOLDERS


def parse_layout(value: Any) -> Layout:
    """Return the layout that a record holds. Raises ValueError, LookupError or TypeError for a damaged one."""
    layout = Layout(value["digits"], value["per_folder"])
    if not all(isinstance(number, int) for number in layout):
        raise TypeError("a field has another type")
    if not (0 < len(str(layout.per_folder - 1)) < layout.digits <= 18 and layout.per_folder > 1):
        raise ValueError("no layout")
    return layout


class ShardPath(NamedTuple):
    """The parts of the path or URL of a file of a shard: `root`/`folder`/`name`."""

    root: str
    folder: str
    name: str  # with the folder of 1,000 shards, if it is in one

    @property
    def stem(self) -> str:
        """The name without suffix, which is the same for all files of a shard."""
        return self.name.rpartition(".")[0]


def split_path(path: str) -> ShardPath:
    """Divide the path of a file of a shard, by the names alone.

    >>> split_path("s3://bucket/out/train/0012/0012345.tar")
    ShardPath(root='s3://bucket/out', folder='train', name='0012/0012345.tar')
    >>> split_path("out/train/00012.tar")
    ShardPath(root='out', folder='train', name='00012.tar')
    """
    parent, _, name = path.rpartition("/")
    rest, _, folder = parent.rpartition("/")
    if is_shard_folder(folder) and name.startswith(folder) and name.partition(".")[0].isdecimal():
        parent, name = rest, f"{folder}/{name}"
    root, _, folder = parent.rpartition("/")
    return ShardPath(root, folder, name)


def is_shard_folder(name: str) -> bool:
    """Return True for the name of a folder of 1,000 shards: digits."""
    return name.isascii() and name.isdecimal()
