"""Compare the summary of a shard, which the report adds up, with the rows of the shard."""

import json
from typing import Any

import pyarrow as pa

from common.errors import UserError
from pipeline.report.ledger import count_shard, stamp_of
from pipeline.summary.summary import DAMAGE, VERSION, Summary, decompressed
from pipeline.verify.finding import Problem
from pipeline.write.attempts import read_earlier
from pipeline.write.store import Store
from schemas.files import MANIFEST_FILE, ROLLUP_FILE, SUMMARY_FILE, rollup_of
from schemas.manifest import Manifest

TEXT_LENGTH = 60
"""Characters of a value that a message shows."""


def summary_problem(store: Store, rows: Store, manifest: Manifest) -> Problem | None:
    """Return how the summary of a shard differs from its rows; None if the report would not read it, or it agrees.

    The report ignores a summary of other manifests, such as those of before a retry, or of another version of its
    content. `rows` is the output, or a copy of it with arrow/ of this shard. Raises ValueError if rows and manifests
    disagree.
    """
    index = manifest["shard"]
    name, rollup = store.file(SUMMARY_FILE, index), ROLLUP_FILE.format(rollup_of(index))
    content = store.read(name)
    if content is None:
        return None
    fix = (
        f"remove it and {rollup}, if it exists, and run `python -m pipeline.report {store.url('').rstrip('/')}`, which "
        "counts the rows again"
    )
    try:
        found = json.loads(decompressed(content))
        version, manifests = found.pop("version"), found.pop("manifests")
    except (*DAMAGE, pa.ArrowException, OSError):
        return Problem(name, f"damaged; {fix}")
    is_retry = "retry" in manifest
    attempts = [*read_earlier(store, index), manifest] if is_retry else [manifest]
    if version != VERSION or manifests != {str(i): stamp(store, i) for i in (item["shard"] for item in attempts)}:
        return None
    try:
        expected = stored_form(count_shard(store if is_retry else rows, attempts))
    except UserError as error:
        return Problem(name, f"it cannot be compared with the rows: {error}")
    text = difference(found, expected)
    return Problem(name, f"{text} in the rows; {fix}") if text else None


def stamp(store: Store, index: int) -> str:
    """Return the hash by which a summary knows the manifest of a shard."""
    return stamp_of(store.read(store.file(MANIFEST_FILE, index)) or b"")


def stored_form(summary: Summary) -> Any:
    """Return a summary as it is read back from its file."""
    return json.loads(json.dumps(summary.to_json()))


def difference(found: Any, expected: Any, key: str = "") -> str:
    """Return the first difference of two JSON values as `key is value, but value`; "" without one.

    >>> difference({"rows": {"kept": 4, "read": 9}}, {"rows": {"kept": 3, "read": 9}})
    'rows.kept is 4, but 3'
    """
    if isinstance(found, dict) and isinstance(expected, dict):
        names = dict.fromkeys([*expected, *found])
        parts = (difference(found.get(name), expected.get(name), f"{key}.{name}" if key else name) for name in names)
        return next(filter(None, parts), "")
    return "" if found == expected else f"{key} is {shown(found)}, but {shown(expected)}"


def shown(value: Any) -> str:
    """Return a JSON value, shortened to TEXT_LENGTH."""
    text = json.dumps(value)
    return text if len(text) <= TEXT_LENGTH else f"{text[:TEXT_LENGTH]}..."
