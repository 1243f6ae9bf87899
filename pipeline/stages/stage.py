"""The base class of the stages: what a stage is called, what it takes and returns, needs, and drops."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import pyarrow as pa

from hypergrit_common.images import STORED_IMAGE_LIMITS, Image, decode
from pipeline.faults import Fault
from pipeline.images import StoredImages
from schemas.table import Drop, drop_rows

if TYPE_CHECKING:
    from pipeline.stages.download.permits import PermitAddress


Role = Literal["parser", "grounder", "scorer"]


class Files(Protocol):
    """Small files in the output of a job."""

    def read(self, relative: str) -> bytes | None:
        """Return the content of a file; None if it does not exist."""
        ...

    def write(self, relative: str, text: str) -> None:
        """Write a file atomically."""
        ...


@dataclass(frozen=True)
class Context:
    """What a stage is loaded with besides its own settings: those of all stages by name, and what the stages share.

    `permits` is the server of the requests per host of all workers, `images` are the decoded images of the present
    shard, and `check_model(role, path)` raises UserError if a model differs from that of the machine that started the
    job. `files` are those of the output in which a stage can store what a resumed job needs; None: nothing is stored.
    """

    settings: Mapping[str, Any]
    permits: "PermitAddress | None" = None
    images: StoredImages = field(default_factory=StoredImages)
    check_model: Callable[[Role, str], None] = lambda role, path: None
    files: Files | None = None


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """The settings of a stage without any."""


TableFunction = Callable[[pa.Table], pa.Table | tuple[pa.Table, list[Fault]]]
"""A loaded stage. One that drops the rows on which it raises by itself, such as `download`, returns them too."""


class Stage(ABC):
    """A step of the pipeline: takes a table and returns it with more columns, or with more rows dropped.

    No row disappears: `drop` marks it. The class imports libraries of models where it uses them, so that `--help`,
    which lists the settings of all stages, needs none of them.

    >>> import pyarrow as pa
    >>> from pipeline import Stage
    >>> from schemas.rows import READ
    >>> from schemas.table import Drop
    >>> class Nameless(Stage):
    ...     name, reasons = "nameless", {"no_id": "the row has no identifier"}
    ...     def __call__(self, table):
    ...         return self.drop(table, {i: Drop("no_id") for i, name in enumerate(table["id"]) if not name.is_valid})
    >>> row = {"key": "0", "source": "pairs.csv", "source_row": 0, "status": "kept"}
    >>> table = Nameless(Nameless.Config())(pa.Table.from_pylist([row], schema=READ))
    >>> table["stage"][0].as_py(), table["reason"][0].as_py()
    ('nameless', 'no_id')
    """

    name: ClassVar[str]
    """The name in the ledger and the timings, and the key of the settings."""
    schema: ClassVar[pa.Schema | None] = None
    """The schema of the table that it returns; None, as of every plug-in: that of the table that it takes."""
    needs_model: ClassVar[bool] = False
    """True: runs in model workers, which have the GPUs. False: runs in workers with one CPU."""
    reasons: ClassVar[Mapping[str, str]] = {}
    """Drop reason -> its meaning."""
    after: ClassVar[str] = "download"
    """Of a plug-in: the stage that it follows."""

    Config: ClassVar[type] = NoSettings
    """The settings: a frozen dataclass whose fields have defaults, and comments above them for `--help`."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @classmethod
    def has_model(cls, config: Any) -> bool:
        """Return True if the stage runs in model workers with these settings."""
        return cls.needs_model

    @classmethod
    def is_used(cls, config: Any) -> bool:
        """Return False if a job with these settings leaves the stage out."""
        return True

    @classmethod
    def load(cls, context: Context) -> TableFunction:
        """Load the stage in a worker. Stages that need more than their own settings override this method."""
        return cls(context.settings[cls.name])

    @abstractmethod
    def __call__(self, table: pa.Table) -> pa.Table:
        """Process the rows that are not dropped, and return the rows in the same order."""

    def image(self, table: pa.Table, i: int) -> Image:
        """Decode the stored image of a kept row, RGB [h w 3] in uint8."""
        return decode(table["image"][i].as_py(), STORED_IMAGE_LIMITS)

    def drop(self, table: pa.Table, drops: Mapping[int, Drop]) -> pa.Table:
        """Mark rows (position -> Drop) as dropped by this stage, and remove their images."""
        return drop_rows(table, self.name, drops, further={self.name: self.reasons})
