"""Check a shard of pipeline.retry against the attempts before it."""

from collections.abc import Iterator

from common.errors import UserError
from pipeline.report.attempts import keys_of, last_results
from pipeline.write.attempts import make_retry, read_earlier
from pipeline.write.store import Store
from schemas.manifest import Manifest


def attempt_problems(store: Store, manifest: Manifest) -> Iterator[str]:
    """Describe rows that no earlier attempt dropped, and wrong counts of the drops that the shard replaces."""
    attempts = read_earlier(store, manifest["shard"])
    if not attempts:
        yield f"shard {manifest['retry']['shard']}, whose rows it tried again, is not finished"
        return
    try:
        results = last_results(store, attempts)
        keys = keys_of(store, [manifest]).to_pylist()
    except UserError as error:
        yield f"it cannot be compared with earlier attempts: {error}"
        return
    drops = list[tuple[int, str, str]]()
    for key in keys:
        attempt, stage, reason = results.get(key, (0, None, None))
        if stage is None or reason is None:
            yield f"row {key}, which it tried again, was not dropped before"
            return
        drops.append((attempt, stage, reason))
    if (found := make_retry(manifest["shard"], drops)) != manifest["retry"]:
        yield f"its rows replace {found['replaced']}, but {manifest['retry']['replaced']} in the manifest"
