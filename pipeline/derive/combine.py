"""Compare the settings, models and versions of shards that shall be in one output."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from common.config import split_runtime
from common.errors import UserError
from pipeline.config import PipelineConfig, content_hash
from pipeline.derive.source import Source
from pipeline.resume.finished import formats_by_hash
from pipeline.resume.record import flatten
from schemas.manifest import Manifest, Provenance

ROW_KEYS = ("input", "output", "limit", "rows_per_shard")
"""Settings that select rows, and do not decide what becomes of them."""


def differences(sources: Sequence[Source], configs: Sequence[PipelineConfig]) -> list[str]:
    """Return what differs between the shards of several outputs: `key: value, value`, one for each key.

    The settings of `write` are left out, since the shards are written anew.
    """
    found = [json.loads(text) for text in provenances(sources)]
    for provenance in found:
        del provenance["config_hash"]
    named = [*differing("", found), *differing("", [settings(config) for config in configs])]
    mixed = [source for source in sources if source.is_mixed]
    return [
        *named,
        *(f"{source.output} itself holds shards with {source.n_settings} different settings" for source in mixed),
    ]


def provenances(sources: Iterable[Source]) -> list[str]:
    """Return the distinct provenances of all shards but attempts of pipeline.retry, as JSON, in the order of the shards."""
    shards = (manifest for source in sources for manifest in source.manifests.values() if "retry" not in manifest)
    found = (manifest["provenance"] for manifest in shards)
    return list(dict.fromkeys(json.dumps(provenance, sort_keys=True) for provenance in found))


def settings(config: PipelineConfig) -> dict[str, Any]:
    """Return the settings that decide what becomes of a row, without those of `write`."""
    fixed, _ = split_runtime(config)
    return {name: value for name, value in fixed.items() if name not in (*ROW_KEYS, "write")}


def differing(prefix: str, values: Iterable[dict[str, Any]]) -> list[str]:
    """Return `key: value, value` for each key of nested values that has more than one."""
    flat = [flatten(value, prefix) for value in values]
    by_key = {key: list(dict.fromkeys(json.dumps(item.get(key)) for item in flat)) for item in flat for key in item}
    return [f"{key}: {', '.join(found)}" for key, found in by_key.items() if len(found) > 1]


def new_provenance(manifest: Manifest, source: Source, old: PipelineConfig, new: PipelineConfig) -> Provenance:
    """Return the provenance of the rows of a shard that are written with the files and formats of `new`.

    `old` is the configuration of the source. Raises UserError if it is not that of all shards.
    """
    if old.write == new.write:
        return manifest["provenance"]
    if source.is_mixed:
        raise UserError(
            f"{source.output} holds shards with different settings (merge with mixed=true), so write.* cannot change "
            "here; change it with pipeline.refilter first"
        )
    config_hash = content_hash(dataclasses.replace(old, write=new.write))
    old_hash = manifest["provenance"]["config_hash"]
    if "retry" in manifest and old_hash not in formats_by_hash(old):  # other settings of the download
        config_hash = hash_with(old_hash, {"write": dataclasses.asdict(new.write)})
    return cast(Provenance, {**manifest["provenance"], "config_hash": config_hash})


def hash_with(config_hash: str, changes: Mapping[str, Any]) -> str:
    """Return the hash for a shard whose settings are those with `config_hash`, which are not known, and these changes."""
    content = json.dumps([config_hash, changes], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest() if changes else config_hash


def key_end(source: Source) -> int:
    """Return a number above the keys of all rows of an output, as integers.

    Every command keeps this rule: no key of an output reaches the end of the rows that its plans count.
    """
    return max(manifest["plan"]["first_row"] + manifest["plan"]["n_rows"] for manifest in source.manifests.values())


def key_number(key: str, source: str) -> int:
    """Return the number of a row of `source`, an output. Raises UserError unless the key is one that `read` gives."""
    if not (key.isascii() and key.isdigit() and format_key(int(key)) == key):
        raise UserError(f"row {key!r} of {source}: its key is no row number of at least 12 digits; only shards of the "
                        "job and of its commands have a place in the order of the rows")  # fmt: skip
    return int(key)


def format_key(number: int) -> str:
    """Return the key of the row with this number."""
    return f"{number:012d}"
