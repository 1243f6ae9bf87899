"""stats.json: what a run read, kept and dropped, merged from the files of all finished shards, so that it is right after a resume."""

import json
from collections import Counter
from collections.abc import Collection
from typing import Any, Final, cast

from omegaconf import OmegaConf

from common.remote import map_concurrently
from pipeline.report.shards import Manifest, read_batches, read_manifests
from pipeline.report.totals import COLUMNS, Totals
from pipeline.write.store import Store
from schemas.files import TIMINGS_FILE
from schemas.rows import VERSION
from schemas.stats import Statistics
from schemas.status import BOX_REMOVALS, PHRASE_REMOVALS, STAGES

STATS_FILE: Final = "stats.json"
TOP: Final = 30
"""Length of the lists of most frequent phrases, heads and hosts."""


def build_stats(output: str, truth: dict[str, Any] | None = None, shards: Collection[int] | None = None) -> Statistics:
    """Count the finished shards of `output` (only `shards`, where given), write stats.json and return what it holds.

    `truth` is what is known of the boxes' precision and recall, stored as it is. Raises UserError if no shard is finished, ValueError
    if a row is unaccounted for.
    """
    store = Store(output)
    manifests = read_manifests(store, shards)
    stats: dict[str, Any] = {
        "schema": VERSION,
        "shards": [manifest["shard"] for manifest in manifests],
        "without_rows": sum("arrow" not in manifest["formats"] for manifest in manifests),
        "rows": sum_rows(manifests),
        **content_of(count_shards(store, manifests)),
        "stages": sum_timings(store, manifests),
        "run": json.loads(store.read("_timings/run.json") or b"{}"),
        "provenance": manifests[0]["provenance"],
        "config": OmegaConf.to_container(OmegaConf.create((store.read("config.yaml") or b"{}").decode())),
    }
    if truth is not None:
        stats["truth"] = truth
    store.write(STATS_FILE, json.dumps(stats, ensure_ascii=False, indent=1))  # not sorted: stages keep their order
    return cast(Statistics, stats)


def content_of(totals: Totals) -> dict[str, Any]:
    """What the rows hold: the parts of stats.json that are counted row by row."""
    return {
        "phrases": {
            "found": totals.chunks.total(),
            "removed": ordered(totals.chunks, PHRASE_REMOVALS),
            "given": totals.chunks[None],
            "grounded": totals.n_grounded,
        },
        "boxes": {
            "found": totals.boxes.total(),
            "removed": ordered(totals.boxes, BOX_REMOVALS),
            "kept": totals.boxes[None],
        },
        "duplicates": totals.duplicates(),
        "top": {"phrases": most(totals.phrases), "heads": most(totals.heads)},
        "failures": failing_hosts(totals.hosts),
        "histograms": {name: histogram.to_json() for name, histogram in totals.histograms.items()},
    }


def sum_rows(manifests: list[Manifest]) -> dict[str, Any]:
    """`{"read", "kept", "dropped": {stage: {reason: n}}}` over all shards, stages in their order.

    Raises ValueError unless read = kept + dropped in each.
    """
    read = kept = 0
    dropped: dict[str, Counter[str]] = {stage: Counter() for stage in STAGES}
    for manifest in manifests:
        counts = manifest["counts"]
        n_dropped = sum(sum(reasons.values()) for reasons in counts["dropped"].values())
        if counts["read"] != counts["kept"] + n_dropped:
            raise ValueError(
                f"shard {manifest['shard']}: {counts['read']} rows read, but {counts['kept']} kept and {n_dropped} dropped"
            )
        read, kept = read + counts["read"], kept + counts["kept"]
        for stage, reasons in counts["dropped"].items():
            dropped[stage].update(reasons)
    return {"read": read, "kept": kept, "dropped": {s: dict(sorted(r.items())) for s, r in dropped.items() if r}}


def count_shards(store: Store, manifests: list[Manifest]) -> Totals:
    """What the rows tell, or their manifest for a shard without arrow/. Raises ValueError where they disagree with their manifest."""
    totals = Totals()
    for manifest in manifests:
        if "arrow" not in manifest["formats"]:
            totals.add_manifest(manifest)
            continue
        kept, drops, has_rows = totals.kept, totals.drops.copy(), False
        for batch in read_batches(store, manifest, COLUMNS):
            totals.add(batch)
            has_rows = True
        counts = manifest["counts"]
        found = totals.kept - kept, dict(totals.drops - drops)
        told = counts["kept"], {(s, r): n for s, reasons in counts["dropped"].items() for r, n in reasons.items() if n}
        if has_rows and found != told:
            raise ValueError(f"shard {manifest['shard']}: its rows and its manifest disagree: {found}, {told}")
    return totals


def sum_timings(store: Store, manifests: list[Manifest]) -> dict[str, dict[str, float]]:
    """Stage -> busy seconds, rows that entered it, and rows/s, over the shards whose timings are there."""
    stages: dict[str, dict[str, float]] = {}
    for content in map_concurrently(store.read, [TIMINGS_FILE.format(manifest["shard"]) for manifest in manifests]):
        for stage, timing in json.loads(content or b"{}").items():
            total = stages.setdefault(stage, {"seconds": 0.0, "rows": 0.0})
            total["seconds"] += timing["seconds"]
            total["rows"] += timing["rows"]
    for total in stages.values():
        total["rows_per_second"] = round(total["rows"] / total["seconds"], 2) if total["seconds"] else 0.0
        total["seconds"] = round(total["seconds"], 4)
    return {stage: stages[stage] for stage in STAGES if stage in stages}


def ordered(counter: Counter[str | None], names: Collection[str]) -> dict[str, int]:
    """The non-zero counts of `names`, in their order."""
    return {name: counter[name] for name in names if counter[name]}


def most(counter: Counter[str]) -> list[tuple[str, int]]:
    """The most frequent texts with their counts; ties in alphabetical order."""
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:TOP]


def failing_hosts(hosts: Counter[tuple[str, str]]) -> list[dict[str, Any]]:
    """Hosts whose images did not arrive, those with most rows first: `{"host", "rows", "reasons": {reason: n}}`."""
    reasons: dict[str, dict[str, int]] = {}
    for (host, reason), n in sorted(hosts.items()):
        reasons.setdefault(host, {})[reason] = n
    totals = Counter({host: sum(counts.values()) for host, counts in reasons.items()})
    return [{"host": host, "rows": n, "reasons": reasons[host]} for host, n in most(totals)]
