"""Decide what a run has to do: compare the job with its record, and find the shards that remain."""

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from hypergrit_common.config import default_settings, flatten
from hypergrit_common.errors import UserError
from hypergrit_common.remote import map_concurrently
from hypergrit_common.removed import REMOVED
from hypergrit_common.text import counted, shortened
from pipeline.config import KEYS, PipelineConfig
from pipeline.output.finished import Damage, Formats, equal_provenances, find_finished
from pipeline.output.inputs import PLAN_SETTINGS, History, plan_history
from pipeline.output.listing import list_output
from pipeline.output.manifest import plan_json, read_manifest
from pipeline.output.record import make_record, moved, plans_of, read_record, recorded_plans, settings_of, write_record
from pipeline.output.store import Store
from pipeline.read.listing import InputFiles, input_folders
from pipeline.read.plan import ShardPlans
from pipeline.read.types import ShardPlan
from pipeline.read.understood import without_rows
from schemas.files import COMMAND_FILE, REPORT_FILE, STATS_FILE
from schemas.job import JobRecord, UnderstoodInput
from schemas.manifest import Manifest, Provenance

logger = logging.getLogger("hypergrit")


# Name the differences between a job and the one that wrote the shards of its output.

MISSING: Final = "none"
SHOWN: Final = 12
"""Maximum number of differences in a message."""
FORMATS: Final = "write.formats"
"""Setting that decides which files a shard has; a shard that has more is kept."""


def setting_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """Describe the settings that differ, by key; those of the formats are found per shard.

    An `old` setting that was removed differs if it did not have its default.
    """
    implied = {**KEYS.removed, **new}
    now = {**dict.fromkeys(KEYS.removed, REMOVED), **new}
    return {
        key: f"{key}: {show(old, key)} -> {show(now, key)}"
        for key in sorted(old.keys() | new.keys())
        if key != FORMATS and show(old, key) != show(implied, key)
    }


THRESHOLD: Final = "threshold "


def provenance_differences(old: Provenance, new: Provenance) -> Iterator[str]:
    """Describe versions, models and thresholds that differ."""
    for name, label in (("hypergrit", "HyperGRIT"), ("schema", "schemas")):
        if old.get(name) != new.get(name):
            yield f"{label}: {show(old, name)} -> {show(new, name)}"
    for group, label in (("packages", "package "), ("thresholds", THRESHOLD)):
        before, after = _mapping(old.get(group)), _mapping(new.get(group))
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                yield f"{label}{name}: {show(before, name)} -> {show(after, name)}"
    for role, model in _mapping(new.get("models")).items():
        before = _mapping(_mapping(old.get("models")).get(role))
        if before != model:
            yield f"{role}: {describe_model(before)} -> {describe_model(model)}"
    before, after = ({plugin["name"]: plugin for plugin in one.get("plugins", ())} for one in (old, new))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield f"code: {describe_model(before.get(name, {}))} -> {describe_model(after.get(name, {}))}"


def describe_model(model: Mapping[str, Any]) -> str:
    """Describe a model with the beginning of its hash, or with its version."""
    identity = f"sha256 {str(model['sha256'])[:12]}" if "sha256" in model else model.get("version")
    return f"{model.get('name', MISSING)}" + (f" ({identity})" if identity else "")


def show(values: Mapping[str, Any], key: str) -> str:
    """Format a value for a message; values of JSON and of Python look the same."""
    value = values.get(key)
    return MISSING if value is None else str(list(value) if isinstance(value, tuple) else value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# The work of a run.


class Work(NamedTuple):
    """The shards of a job."""

    plans: ShardPlans
    unfinished: ShardPlans
    record: JobRecord
    old_record: JobRecord | None
    outdated: list[int]  # shards with a manifest that are computed again, or belong to another job
    stale: list[str]  # records of failures of shards that are finished
    damages: list[Damage]  # of shards of this job; those that lack only their index are not in `unfinished`

    @property
    def formats(self) -> dict[int, Formats]:
        """The formats of the shards that have to be computed again with those in which they were written."""
        return {damage.plan.index: damage.formats for damage in self.damages}

    @property
    def unindexed(self) -> list[Damage]:
        """The shards that are finished but for their index."""
        return [damage for damage in self.damages if damage.only_index]

    @property
    def damaged(self) -> list[str]:
        """The errors of the damaged input files."""
        return [file["damage"] for batch in self.record["batches"] for file in batch["files"] if "damage" in file]

    def begin(self, store: Store) -> None:
        """Prepare the output: remove the manifests of outdated shards, then write the record.

        In this order, all manifests of an output belong to its record, whenever the job is killed, and no row is in two
        shards that count.
        """
        store.discard(self.outdated, set(self.plans.indices().tolist()))
        store.remove_many(self.stale)
        if self.outdated:
            store.remove([STATS_FILE, REPORT_FILE])  # of the shards that are discarded
        if self.outdated or self.old_record is None:
            store.remove([COMMAND_FILE])  # of a command, whose shards are discarded
        if self.record != self.old_record:
            write_record(store, self.record)


def plan_work(config: PipelineConfig, files: InputFiles, provenance: Provenance, store: Store) -> Work:
    """Compare a job with the shards of its output; nothing is written.

    Raises UserError if finished shards would be discarded without `overwrite=true`, for more shards than indices, and
    like `plan_history`.
    """
    old = recorded = read_record(store)
    folders = input_folders(config.input, recorded.get("folders", []) if recorded else [], files)
    if recorded and recorded.get("folders", []) != folders:
        old = moved(recorded, folders, {path for path, _ in files}, config)
    history = plan_history(files, old, config, folders)
    plans = plans_of(history.batches, config.rows_per_shard, folders)
    listing = list_output(store)
    candidates = plans
    differences = list[str]()
    if old is not None:
        candidates, differences = compare(config, plans, provenance, old, history)
    accepted = equal_provenances(config, provenance)
    # The manifests of an output without a record are the only source. Those of a local output are read to compare the
    # sizes of the files. Elsewhere the listing is enough: a manifest was uploaded after the store had confirmed the
    # files, and all manifests belong to the record. Only those of shards whose files are missing are read.
    listed = set[int]()
    if old is not None and not store.is_local:
        listed = listing.complete(config.write.formats) & set(candidates.indices().tolist())
    doubtful = candidates.without(listed)
    finished, damages = find_finished(store, listing, doubtful, config, accepted)
    finished |= listed
    outdated = sorted(set(listing.committed()) - finished)
    # If the records agree, the manifests of these shards tell why they are of no use; damaged shards give no reason.
    unclear = set(outdated) & set(candidates.indices().tolist()) if differences else outdated
    differences += describe_manifests(store, unclear, plans, config.write.formats, accepted)
    if differences:
        report_differences(config.overwrite, store, differences, len(outdated))
    if n_again := len({damage.plan.index for damage in damages} - finished):
        shards = counted(n_again, "finished shard")
        logger.warning("%s with missing or truncated files; computed again", shards)
    if history.n_appended:
        logger.info("%s appended", counted(history.n_appended, "new input file"))
    unfinished = plans.without(finished)
    understood: UnderstoodInput = {"readings": history.readings, "not_read": dict(files.not_read)}
    if config.read.takedown or config.captions.redact or len(store.read_takedowns()):
        understood = without_rows(understood)
    record = make_record(config, provenance, history.batches, folders, understood)
    if old is not None and not (unfinished or outdated):  # a run that asks for fewer formats, for example
        record = {**old, "batches": history.batches, "input": understood}
    return Work(plans, unfinished, record, recorded, outdated, listing.stale_failures(), damages)


def compare(
    config: PipelineConfig, plans: ShardPlans, provenance: Provenance, record: JobRecord, history: History
) -> tuple[ShardPlans, list[str]]:
    """Return the plans of the shards that hold the same as in the recorded job, and the differences to it."""
    now = settings_of(config)
    defaults = {key: value for key, value in flatten(default_settings(config)).items() if key in now}
    settings = setting_differences(defaults | record["settings"], now)
    others = list(provenance_differences(record["provenance"], provenance))
    inputs = [f"input file {path}: {change}" for path, change in history.changes.items()]
    same: ShardPlans = plans.select(np.zeros(0, np.int64))
    if not others and settings.keys() <= set(PLAN_SETTINGS):
        pairs = enumerate(zip(plans, recorded_plans(record), strict=False))
        same = plans.select(
            np.array([i for i, (plan, old) in pairs if plan == old and is_unchanged(plan, history)], int)
        )
    old, new = record["provenance"].get("thresholds", {}), provenance["thresholds"]
    for key in settings:  # the values that took effect, once
        if (
            effect := f"{THRESHOLD}{(name := key.rpartition('.')[2])}: {show(old, name)} -> {show(new, name)}"
        ) in others:
            others.remove(effect)
            settings[key] = f"{key}{effect.removeprefix(THRESHOLD + name)}"
    return same, [*settings.values(), *others, *inputs]


def is_unchanged(plan: ShardPlan, history: History) -> bool:
    """Return True if no file of a shard has changed."""
    return not history.changes or not any(piece.path in history.changes for piece in plan.pieces)


def describe_manifests(
    store: Store,
    indices: Collection[int],
    plans: Sequence[ShardPlan],
    formats: Sequence[str],
    accepted: Sequence[Provenance],
) -> list[str]:
    """Describe how the jobs that committed these shards differ from this one, with the number of shards."""
    by_index = {plan.index: plan for plan in plans if plan.index in indices} if indices else {}
    counts: Counter[str] = Counter()
    manifests = map_concurrently(lambda index: (index, read_manifest(store, index)), indices)
    for index, manifest in manifests:
        if manifest is not None:
            counts.update(describe_manifest(manifest, by_index.get(index), formats, accepted))
    return [f"{text} ({counted(n, 'shard')})" for text, n in counts.most_common()]


def describe_manifest(
    manifest: Manifest, plan: ShardPlan | None, formats: Sequence[str], accepted: Sequence[Provenance]
) -> list[str]:
    """Describe how the job that wrote a manifest differs from this one."""
    old, new = manifest["provenance"], accepted[0]
    found = list(provenance_differences(old, new))
    if old.get("config_hash") not in [provenance["config_hash"] for provenance in accepted]:
        found.append("settings: compare config.yaml in the output")
    if plan is None:
        found.append("input: fewer shards than in the output")
    elif manifest["plan"] != plan_json(plan):
        found.append("input: other rows, or another size of a file")
    if lacking := sorted(set(formats) - set(manifest["formats"])):
        found.append(f"write.formats: {lacking} are missing")
    return found


def cheaper(store: Store, differences: Sequence[str]) -> str:
    """Return the advice to rewrite the output, which needs no model, if thresholds of the scores alone differ."""
    changes = {text.partition(":")[0]: text.rpartition(" -> ")[2] for text in differences}
    if not all(key.startswith("score.min_") for key in changes):
        return ""
    keys = " ".join(f"{key}={value}" for key, value in changes.items())
    return f"`hypergrit rewrite source={store.url('').rstrip('/')} output=NEW {keys}` makes it without models; "


def report_differences(overwrite: bool, store: Store, differences: Sequence[str], n_outdated: int) -> None:
    """Log the differences. Raises UserError if finished shards would be discarded without `overwrite=true`."""
    shards = counted(n_outdated, "finished shard")
    text = f"{shards} {'differs' if n_outdated == 1 else 'differ'} (changed: {shortened(differences, SHOWN)})"
    if n_outdated and not overwrite:
        them = "it" if n_outdated == 1 else "them"
        raise UserError(
            f"{store.root}: {text}; {cheaper(store, differences)}overwrite=true makes {them} again, or give another output="
        )
    logger.warning("%s; %s", text, "computed again" if n_outdated else "all remain valid")
