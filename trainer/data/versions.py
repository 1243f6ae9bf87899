"""The versions of the shards of a run: a resumed run must read the shards that it began with.

The file with the versions lies in the output of the run. A version is the size of a shard, the ETag or modification time
that its store gives, and the SHA-256 in its manifest if the pipeline wrote it. A copied shard has another modification
time: it counts as the same if its bytes still have that SHA-256.
"""

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from common.errors import UserError
from common.json_file import read_object, write_object
from common.remote import open_file
from common.shards import read_errors_explained
from trainer.data.listing import ShardFacts

logger = logging.getLogger(__name__)

VERSIONS_FILE: Final = "shards.json"
SHOWN: Final = 3


class ShardVersion(NamedTuple):
    """The identity of the content of a shard, as far as it is known without reading it."""

    name: str
    size: int
    modified: str  # ETag, else modification time, else empty
    sha256: str  # by its manifest; empty if it has none


def version_of(facts: ShardFacts) -> ShardVersion:
    """Return the version of a shard."""
    return ShardVersion(facts.name, facts.size, facts.modified, facts.recorded["sha256"] if facts.recorded else "")


def altered_shards(before: Sequence[ShardVersion], now: Sequence[ShardVersion], urls: Sequence[str]) -> list[str]:
    """Describe each shard whose content is not known to be the same; `urls` are those of `now`."""
    if [version.name for version in before] != [version.name for version in now]:
        return ["the names of the shards"]
    found = []
    for old, new, url in zip(before, now, urls, strict=True):
        if old.size != new.size:
            found.append(f"{url} has {new.size} bytes, not {old.size}")
        elif old.sha256 != new.sha256:
            found.append(f"{url} was written again")
        elif old.modified != new.modified and (not new.sha256 or _sha256(url) != new.sha256):
            found.append(f"{url} was modified ({new.modified}, not {old.modified})")
    return found


def check_shards(versions: Sequence[ShardVersion], urls: Sequence[str], output: Path, shown: str = "") -> None:
    """Compare shards with those that the run in `output` began with; does nothing if it did not record them.

    `urls` are those of `versions`; messages name the output `shown`. A shard with another modification time is read, if
    its hash is known. Raises UserError, naming the shards that differ, and for a shard that cannot be read.
    """
    path = output / VERSIONS_FILE
    if not path.exists():
        return
    try:
        before = [ShardVersion(*values) for values in read_object(path)["shards"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s cannot be read (%s): changed shards are not noticed", path, error)
        return
    altered = altered_shards(before, versions, urls)
    if altered:
        more = f"; and {len(altered) - SHOWN} more" if len(altered) > SHOWN else ""
        raise UserError(
            f"data.shards: the shards differ from those that the run in {shown or output} began with: "
            f"{'; '.join(altered[:SHOWN])}{more}. Restore them, give another output=, or set resume=anyway to resume "
            "with the new shards"
        )


def record_shards(versions: Sequence[ShardVersion], output: Path) -> None:
    """Write the versions of the shards to the output of a run. Raises OSError."""
    write_object({"shards": [list(version) for version in versions]}, output / VERSIONS_FILE)


def _sha256(url: str) -> str:
    with read_errors_explained(url), open_file(url) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
