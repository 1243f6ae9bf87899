"""The options of the commands, besides the settings of the job."""

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from common.config import check_positive, check_range
from common.errors import UserError

Criterion = Literal["url", "bytes", "picture"]
CRITERIA: Final[tuple[Criterion, ...]] = get_args(Criterion)
"""What makes two rows duplicates, in the order in which the criteria are applied."""
MAX_RADIUS: Final = 8
MAX_EVALUATION_RADIUS: Final = 16
"""Largest radius of decontaminate: hashes of unrelated images differ in 32 bits on average, 1 of 4,000 pairs in at most 16."""


@dataclass(frozen=True, kw_only=True)
class DeriveOptions:
    """The options of all commands that make an output from finished outputs, and all of those of refilter."""

    # also read a source with unfinished shards of the job, whose rows are left out; the new output records their number
    incomplete: bool = False


@dataclass(frozen=True, kw_only=True)
class MergeOptions(DeriveOptions):
    """The options of merge."""

    # also join outputs whose settings, models or versions differ; each shard keeps its own in its manifest
    mixed: bool = False


@dataclass(frozen=True, kw_only=True)
class ReshardOptions(DeriveOptions):
    """The options of reshard."""

    # kept rows, which are the samples of train/ and grit/, of a new shard; the last one may have fewer
    samples_per_shard: int
    # shuffle the samples across shards; false: keep their order
    shuffle: bool = True
    # seed of the order
    seed: int = 0
    # shards of the source whose samples are mixed: first the shards are shuffled, then the samples of this many of
    # them; each shard of arrow/ is read about this many times. null: all, so that every order is equally likely
    mix_shards: int | None = 64

    def __post_init__(self) -> None:
        check_range(self, "samples_per_shard", "mix_shards", least=1)
        check_range(self, "seed", least=0, most=2**64 - 1)


@dataclass(frozen=True, kw_only=True)
class DedupeOptions(DeriveOptions):
    """The options of dedupe."""

    # what makes two kept rows duplicates, one or more of: url (equal URLs), bytes (equal SHA-256 of the bytes that were
    # received), picture (perceptual hashes of the stored images within `radius`)
    by: tuple[str, ...] = field(default=("url", "bytes"))
    # number of the 64 bits in which the hashes of duplicates may differ, 0 to 8; must be given for picture. Two pictures
    # differ in an even number of bits, nearly always
    radius: int | None = None
    # memory that the comparison may use, in GB; beyond it, it uses the disk of TMPDIR
    memory_gb: float = 4.0

    def __post_init__(self) -> None:
        if not self.by or set(self.by) - set(CRITERIA):
            raise UserError(f"by is {list(self.by)}; give one or more of {list(CRITERIA)}")
        check_range(self, "radius", least=0, most=MAX_RADIUS)
        check_positive(self, "memory_gb")
        if ("picture" in self.by) != (self.radius is not None):
            raise UserError("by=[picture] and radius=BITS belong together, such as by=[url,bytes,picture] radius=4")

    @property
    def criteria(self) -> list[Criterion]:
        """The criteria in the order in which they are applied."""
        return [name for name in CRITERIA if name in self.by]


@dataclass(frozen=True, kw_only=True)
class DecontaminateOptions(DeriveOptions):
    """The options of decontaminate."""

    # number of the 64 bits, 0 to 16, in which the perceptual hashes of the same image may differ; 6 finds 93 % of copies
    # with another size, quality, brightness or colour, and 4 of 10^6 pairs of different images (docs/outputs.md)
    radius: int = 6

    def __post_init__(self) -> None:
        check_range(self, "radius", least=0, most=MAX_EVALUATION_RADIUS)


@dataclass(frozen=True, kw_only=True)
class TakedownOptions:
    """The options of takedown."""

    # print the rows that would be removed, and change nothing
    dry_run: bool = False
