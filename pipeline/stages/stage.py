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
        """Return the content of a file; None if it does not exist.

        Args:
            relative: path below the output, with slashes.

        Returns:
            The bytes of the file, or None.
        """
        ...

    def write(self, relative: str, text: str) -> None:
        """Write a file atomically, replacing an older one.

        Args:
            relative: path below the output, with slashes.
            text: the new content, stored as UTF-8.
        """
        ...


@dataclass(frozen=True)
class Context:
    """What a stage is loaded with besides its own settings, and what the stages of a worker share.

    Attributes:
        settings: stage name -> its settings, an object of its `Config`, for all stages of the job.
        permits: address of the server of the requests per host of all workers; None: each worker counts alone.
        images: decoder and cache of the images of the present shard, uint8 RGB [h w 3].
        check_model: called with the role and the path of a model; raises UserError if it differs from that of the
            machine that started the job.
        files: files of the output in which a stage can store what a resumed job needs; None: nothing is stored.
        trust: classes of the user that a model may name, those of the key `trust`.
    """

    settings: Mapping[str, Any]
    permits: "PermitAddress | None" = None
    images: StoredImages = field(default_factory=StoredImages)
    check_model: Callable[[Role, str], None] = lambda role, path: None
    files: Files | None = None
    trust: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """The settings of a stage without any."""


TableFunction = Callable[[pa.Table], pa.Table | tuple[pa.Table, list[Fault]]]
"""A loaded stage. One that drops the rows on which it raises by itself, such as `download`, returns them too."""


class Stage(ABC):
    """A step of the pipeline: takes a table and returns it with more columns, or with more rows dropped.

    No row disappears: `drop` marks it. The class imports libraries of models where it uses them, so that `--help
    all`, which lists the settings of all stages, needs none of them. docs/extending.md shows how to write one.

    An exception in `__call__` drops the rows that cause it as `internal_error`, except UserError and a lack of files or
    disk space, which are not the fault of a row.

    Args:
        config: an object of `Config`, which a subclass may check and use; `self.config`.

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
    """Name in the ledger and the timings, and key of the settings: an identifier that nothing else of a job has."""
    schema: ClassVar[pa.Schema | None] = None
    """The schema of the table that it returns; None, as of every plug-in: that of the table that it takes."""
    needs_model: ClassVar[bool] = False
    """True: runs in model workers, which have the GPUs. False: runs in workers with one CPU."""
    reasons: ClassVar[Mapping[str, str]] = {}
    """Drop reason -> its meaning; names without numbers. `internal_error` need not be one of them."""
    after: ClassVar[str] = "download"
    """Of a plug-in: the stage that it follows."""

    Config: ClassVar[type] = NoSettings
    """The settings: a frozen dataclass whose fields have defaults, and comments above them for `--help`.

    No field of a plug-in is `runtime`: all count as content of the output.
    """

    def __init__(self, config: Any) -> None:
        self.config = config

    @classmethod
    def has_model(cls, config: Any) -> bool:
        """Return True if the stage runs in model workers with these settings; by default `needs_model`.

        Args:
            config: an object of `Config`.

        Returns:
            Whether it runs in the workers with GPUs, as then all stages after it do.
        """
        return cls.needs_model

    @classmethod
    def is_used(cls, config: Any) -> bool:
        """Return False if a job with these settings leaves the stage out; by default True.

        Args:
            config: an object of `Config`.

        Returns:
            Whether the stage is loaded.
        """
        return True

    @classmethod
    def load(cls, context: Context) -> TableFunction:
        """Load the stage in a worker. Stages that need more than their own settings override this method.

        Args:
            context: the settings of all stages, and what they share.

        Returns:
            The stage, which is called with each table of a shard.
        """
        return cls(context.settings[cls.name])

    @abstractmethod
    def __call__(self, table: pa.Table) -> pa.Table:
        """Process the rows that are not dropped (`kept_indices`).

        Args:
            table: rows [n] with the schema after the previous stage.

        Returns:
            The same n rows in the same order, with exactly `schema`, or that of `table` if it is None; with anything
                else the job raises RuntimeError.
        """

    def image(self, table: pa.Table, i: int) -> Image:
        """Decode the stored image of a kept row.

        Args:
            table: a table after `download`.
            i: position of a row that is not dropped: dropped ones have no image.

        Returns:
            RGB [h w 3] in uint8, upright.

        Raises:
            ImageRejected: the bytes are damaged; after `download`, none are.
        """
        return decode(table["image"][i].as_py(), STORED_IMAGE_LIMITS)

    def drop(self, table: pa.Table, drops: Mapping[int, Drop]) -> pa.Table:
        """Mark rows as dropped by this stage, and remove their images.

        Args:
            table: the table of the stage.
            drops: position of a row -> reason and detail.

        Returns:
            The table, in which these rows have `status` "dropped", `stage`, `reason` and `detail`.

        Raises:
            ValueError: a reason is not one of `reasons`.
        """
        return drop_rows(table, self.name, drops, further={self.name: self.reasons})
