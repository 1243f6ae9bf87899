"""The options of the explorer."""

from dataclasses import dataclass

from hypergrit_common.config import check_range
from hypergrit_common.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ExploreOptions:
    """The options of the explorer."""

    # write report.html and stats.json again, from the finished shards
    report: bool = False
    # print the whole life of a row: its key, its id or its URL
    row: str | None = None
    # write the explorer and its files into this new folder, for any file server, instead of serving it
    static: str | None = None
    # number of pictures that static= writes: a random sample of the rows with a stored image
    images: int = 2000
    # seed of that sample
    seed: int = 0
    # CSV for the marks of boxes, which `hypergrit quality OUT marks=` reads; an existing one is continued
    marks: str = "explore.csv"
    # Poincaré disks of one or two models: files of `python -m trainer.analyses.disk`
    disk: tuple[str, ...] = ()
    # address on which the server listens; anything but a loopback address lets other machines reach it
    address: str = "127.0.0.1"
    # port of the server; 0: a free one
    port: int = 0
    # folder for the indexes of outputs; null: hypergrit/explore in XDG_CACHE_HOME or ~/.cache
    cache: str | None = None

    def __post_init__(self) -> None:
        check_range(self, "images", "seed", least=0)
        check_range(self, "port", least=0, most=65535)
        if len(self.disk) > 2:
            raise UserError(f"disk names {len(self.disk)} files; give one or two")
        for name in ("static", "marks", "address", "cache"):
            if getattr(self, name) == "":
                raise UserError(f"{name} is empty; give a value or leave it out")
        for name in ("static", "marks", "cache"):
            if "://" in (getattr(self, name) or ""):
                raise UserError(f"{name} is a URL, but it must be a local path; copy the files there afterwards")
