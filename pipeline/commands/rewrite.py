"""The verb `rewrite`: one pass over one or several finished outputs to a new one, without a model."""

import dataclasses
import hashlib
import json
import logging
import secrets
import textwrap
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa

from hypergrit_common.cli import EXIT_CODES
from hypergrit_common.config import check_positive, check_range, content_layers, flatten, split_runtime
from hypergrit_common.errors import UserError
from hypergrit_common.remote import map_concurrently
from pipeline.commands.evaluation_set import EvaluationSet, read_evaluation_set
from pipeline.commands.frame import check_keys, derive_command, new_config, take_options, take_path, take_paths
from pipeline.commands.rewrite_order import MixedShard, key_end, make_mixed, plan_order
from pipeline.commands.rewrite_rows import PartReader, SourcePart, check_thresholds
from pipeline.commands.rewrite_survey import CRITERIA, Criterion, Survey
from pipeline.config import PipelineConfig, content_hash
from pipeline.output.finished import formats_by_hash
from pipeline.output.ledger import read_batches
from pipeline.output.lock import Lease
from pipeline.output.manifest import plan_from_json, read_manifest
from pipeline.output.record import read_record, settings_of
from pipeline.output.source import Source, check_hashes, unchanged_manifest
from pipeline.output.store import Store, indices
from pipeline.run.derived import NewShard, check_overwrite, is_outdated, source_hashes, write_output
from pipeline.run.loop import connected
from pipeline.run.provenance import place_of
from pipeline.stages.score.filters import ScoreConfig, resolve_thresholds
from schemas.files import MANIFEST_FILE, MANIFEST_FOLDER
from schemas.manifest import Manifest, Origin, Provenance
from schemas.scores import ROW_COLUMNS, SCORES, THRESHOLDS

logger = logging.getLogger("hypergrit")

OPTIONAL: Final = [score for score in SCORES if not score.is_calibrated]
USAGE: Final = f"""\
usage: hypergrit rewrite source=A [source=B ...] output=NEW [key=value ...]

Makes a new output from one or several finished ones: other thresholds or formats, several outputs in one, without
duplicates, without evaluation images, in shards of another size. No model runs; the sources are left alone. The
options combine, in this order: thresholds, duplicates (dedupe), evaluation images (against), shards of another size and
the shuffle.

  hypergrit rewrite source=out/demo output=out/strict score.min_score=0.6 score.min_side_px=40
  hypergrit rewrite source=out/coyo source=out/laion output=out/both
  hypergrit rewrite source=out/both output=out/unique dedupe=[url,bytes,picture] dedupe_radius=4
  hypergrit rewrite source=out/demo output=out/clean against=data/coco/val2017 against=urls.txt
  hypergrit rewrite source=s3://data/coyo output=s3://data/train samples_per_shard=10000 seed=1 ray.address=auto

  source               output folder or URL of a job or of this command, with arrow/, and with grit/ or
                       write.image_bytes=true; several are joined as if their inputs had been concatenated
  output               folder or URL for the new shards
  score.min_score, score.min_clip_score, score.min_side_px, score.size_rule, score.keep_all
                       thresholds can be raised; they can be lowered if the job ran with score.keep_all=true
  {", ".join(f"score.{score.setting}" for score in OPTIONAL)}
{textwrap.indent(textwrap.fill("; ".join(score.threshold for score in OPTIONAL), 97), 23 * " ")}
  ground.keep_pairs=false
                       drop the rows without a box, which HyCoCLIP's own loader cannot read
  against              evaluation images to drop: a folder (with its subfolders), or a text file with a URL, a SHA-256
                       or a perceptual hash (16 hex digits) a line; may be given several times
  write.*              formats and other settings of the files, such as formats=[train]
  ray.*, report.*      as in the job; ray.runner=local: processes of this machine
  quiet, log.*         as in the job
  overwrite            true: discard other shards in `output`

{EXIT_CODES}
3 done, but some shards failed: NEW/_failed/ has their errors, and the same command tries them again. 4 done, but no row
  was kept; the report shows why.
"""
MAX_RADIUS: Final = 8
MAX_EVALUATION_RADIUS: Final = 16
"""Largest `against_radius`: hashes of unrelated images differ in 32 bits on average, 1 of 4,000 pairs in at most 16."""
FILTERS: Final = (*(f"score.{name}" for name in THRESHOLDS), "score.keep_all", "ground.keep_pairs")
"""Settings of the filters, which decide anew what is kept."""
BOX_FILTERS: Final = {f"score.{name}" for name in THRESHOLDS} - {f"score.{s.setting}" for s in ROW_COLUMNS.values()}
"""Thresholds of boxes, and of the share of phrases that have one; the others are of rows."""
SETTINGS: Final = (*FILTERS, "write", "overwrite", "trust")
"""Settings of the job that the command takes, besides those of every command."""
NEEDED: Final = {
    "dedupe_radius": "dedupe=[picture]", "memory_gb": "dedupe=[url]", "against_radius": "against=FOLDER",
    "shuffle": "samples_per_shard=10000", "seed": "samples_per_shard=10000",
}  # fmt: skip
"""Option -> an example of the option without which it has no effect."""
ROW_KEYS: Final = ("input", "output", "limit", "rows_per_shard")
"""Settings that select rows, and do not decide what becomes of them."""


@dataclass(frozen=True, kw_only=True)
class RewriteOptions:
    """The options of the command, besides the settings of the job."""

    # also join outputs whose settings, models or versions differ; each shard keeps its own in its manifest
    mixed: bool = False
    # what makes two kept rows duplicates, one or more of: url (equal URLs), bytes (equal SHA-256 of the bytes that were
    # received), picture (perceptual hashes of the stored images within `dedupe_radius`). The lowest key stays
    dedupe: tuple[str, ...] = ()
    # number of the 64 bits in which the hashes of duplicates may differ, 0 to 8; must be given for picture. Two pictures
    # differ in an even number of bits, nearly always
    dedupe_radius: int | None = None
    # memory that the comparison may use, in GB; beyond it, it uses the disk of TMPDIR
    memory_gb: float = 4.0
    # number of the 64 bits, 0 to 16, in which the perceptual hashes of the same image may differ; 6 finds 93 % of copies
    # with another size, quality, brightness or colour, and 4 of 10^6 pairs of different images (docs/outputs.md)
    against_radius: int = 6
    # kept rows, which are the samples of train/ and grit/, of a new shard; the last one may have fewer. null: the shards
    # of the sources
    samples_per_shard: int | None = None
    # shuffle the shards, and the samples across groups of 64 of them; false: keep their order
    shuffle: bool = True
    # seed of the order
    seed: int = 0
    # also read a source with unfinished shards of the job, whose rows are left out; the new output records their number
    incomplete: bool = False

    def __post_init__(self) -> None:
        if set(self.dedupe) - set(CRITERIA):
            raise UserError(f"dedupe is {list(self.dedupe)}; give one or more of {list(CRITERIA)}")
        check_range(self, "dedupe_radius", least=0, most=MAX_RADIUS)
        check_positive(self, "memory_gb")
        if ("picture" in self.dedupe) != (self.dedupe_radius is not None):
            raise UserError(
                "dedupe=[picture] and dedupe_radius=BITS belong together, such as dedupe=[url,bytes,picture] "
                "dedupe_radius=4"
            )
        check_range(self, "against_radius", least=0, most=MAX_EVALUATION_RADIUS)
        check_range(self, "samples_per_shard", least=1)
        check_range(self, "seed", least=0, most=2**64 - 1)

    @property
    def criteria(self) -> list[Criterion]:
        """The criteria of duplicates in the order in which they are applied."""
        return [name for name in CRITERIA if name in self.dedupe]


# The command: what it is asked for, and the new shards.


def rewrite(arguments: Sequence[str]) -> int:
    """Write the output; return the exit code. Raises UserError."""
    output, rest = take_path(arguments, "output")
    folders, rest = take_paths(rest, "source")
    names = {item.partition("=")[0] for item in rest}
    for name, example in NEEDED.items():
        if name in names and (needed := example.partition("=")[0]) not in names:
            raise UserError(f"{name} has no effect without {needed}=; add it, such as {example}, or leave out {name}")
    against, rest = take_paths(rest, "against") if "against" in names else ([], rest)
    options, changes = take_options(rest, RewriteOptions)
    sources = [Source(folder, options.incomplete) for folder in folders]
    places = [place_of(source.store) for source in sources]
    if twice := next((folders[i] for i, place in enumerate(places) if place in places[:i]), None):
        raise UserError(f"source={twice} is given twice; every row would be in the output twice")
    own = ("source", "output", "against", *RewriteOptions.__dataclass_fields__)
    given = check_keys(changes, SETTINGS, "rewrite", own=own)
    new = new_config(sources[0], changes, output)
    olds = [source.config for source in sources]
    new = joint_config(olds, new, given)
    owns = [own_config(old, new, given) for old in olds]
    try:
        parts = plan_parts(sources, olds, owns, given)
    except KeyError as error:
        raise UserError(f"a manifest of the sources lacks {error}; see hypergrit verify") from error
    if len(sources) > 1 and not options.mixed and (found := differences(sources, owns, parts)):
        raise UserError(f"the sources differ in {'; '.join(found)}. Give mixed=true to join them all the same")
    evaluation = read_evaluation_set(against, options.against_radius, new.write.strip_url_queries) if against else None
    this = Pass(parts=parts, config=new, options=options, evaluation=evaluation, filters=bool(given & set(FILTERS)))
    record = None
    if len(sources) == 1 and this.keeps_shards and (record := read_record(sources[0].store)):
        record = {**record, "settings": settings_of(new), "provenance": parts[0].provenance}
    left_out = [left for source in sources for left in source.left_out]
    result = write_output(
        partial(make_table, this.reader), this.plan, [source.store for source in sources], new, left_out, record,
        this.prepare,
    )  # fmt: skip
    if not result.n_failures:
        this.survey.clean(Store(output))
    return result.exit_code


@dataclass(frozen=True)
class PartShard(NewShard):
    """A new shard with the rows of a shard of a source."""

    part: SourcePart


def make_table(reader: PartReader, shard: NewShard) -> pa.Table:
    """Return the rows of a new shard."""
    if isinstance(shard, MixedShard):
        return make_mixed(shard, reader)
    assert isinstance(shard, PartShard)
    check_part(shard.part)
    return reader.table(shard.part)


def check_part(part: SourcePart) -> SourcePart:
    """Return a part. Raises ShardError if its files are not those of its manifest."""
    store = Store(part.source["output"])
    check_hashes(store, unchanged_manifest(store, part.source))
    return part


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One pass of the command over the rows of `parts`; `filters`: thresholds are applied again. `token` marks its files."""

    parts: Sequence[SourcePart]
    config: PipelineConfig
    options: RewriteOptions
    evaluation: EvaluationSet | None
    filters: bool
    token: str = field(default_factory=partial(secrets.token_hex, 16))

    @property
    def keeps_shards(self) -> bool:
        """True if every shard has the rows of one of the job, so that the job can resume the output."""
        return not (self.options.dedupe or self.evaluation or self.options.samples_per_shard)

    @property
    def counts(self) -> bool:
        """True if the rows of the new shards depend on how many rows of each part the other steps keep."""
        return bool(self.options.samples_per_shard and (self.filters or self.options.dedupe or self.evaluation))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that decide the content, as the manifests record them."""
        options, found = self.options, dict[str, Any]()
        if any(part.takes_out_pairs for part in self.parts):  # no setting of a job tells it
            found["keep_pairs"] = False
        if options.dedupe:
            identities = json.dumps([part.identity for part in self.parts])
            found |= {"dedupe": options.criteria, "parts": hashlib.sha256(identities.encode()).hexdigest()}
            found |= {} if options.dedupe_radius is None else {"dedupe_radius": options.dedupe_radius}
        if self.evaluation is not None:
            found |= {"against": self.evaluation.digest, "against_radius": options.against_radius}
        if options.samples_per_shard is not None:
            found |= {"samples_per_shard": options.samples_per_shard, "shuffle": options.shuffle}
            found |= {"seed": options.seed} if options.shuffle else {}
        return found

    @property
    def reader(self) -> PartReader:
        """Reads the rows of the new shards."""
        has_drops = self.options.dedupe or self.counts
        return PartReader(self.config.output, self.token if has_drops else None, self.evaluation)

    @property
    def survey(self) -> Survey:
        """The survey that is made before a shard is written."""
        options = self.options
        return Survey(
            parts=self.parts, reader=self.reader, config=self.config, criteria=options.criteria,
            radius=options.dedupe_radius or 0, memory_gb=options.memory_gb, counts=self.counts,
        )  # fmt: skip

    def prepare(self, store: Store, lease: Lease) -> None:
        """Find the duplicates, unless `plan` has done so. Raises UserError if a part to be divided is damaged."""
        if self.options.dedupe and not self.counts:
            self.survey.run(lease)
        if self.options.samples_per_shard is not None:  # the new shards read pieces of it
            deque(self.survey.each(check_part, "checked", lease), maxlen=0)

    def plan(self, store: Store, lease: Lease) -> Sequence[NewShard]:
        """Return the new shards: those of the sources, or shards of equal numbers of samples."""
        settings, kept = self.settings, [part.n_kept for part in self.parts]
        if self.counts:
            manifests = map_concurrently(partial(read_manifest, store), indices(store, MANIFEST_FILE))
            now = source_hashes(part.source for part in self.parts)
            others = [is_outdated(manifest, now) for manifest in manifests if not self.has_made(manifest)]
            check_overwrite(store, self.config.overwrite, others)
            with connected(self.config.ray):
                kept = self.survey.run(lease)
        if self.options.samples_per_shard is not None:
            return plan_order(self.parts, kept, settings)
        return [PartShard(part.plan, part.provenance, self.origin(part), part) for part in self.parts]

    def origin(self, part: SourcePart) -> Origin:
        """Return the origin of the shard that has the rows of a part."""
        offset = {} if part.offset is None else {"key_offset": part.offset}
        return {"command": "rewrite", "sources": [part.source], "settings": {**self.settings, **offset}}

    def has_made(self, manifest: Manifest | None) -> bool:
        """Return True for a shard of this command, or of one with the same settings that was interrupted."""
        return manifest is not None and (
            self.settings.items() <= manifest.get("origin", {}).get("settings", {}).items()
        )


# The shards of the sources: their rows in the new output, their settings and their provenance.


def plan_parts(
    sources: Sequence[Source], olds: Sequence[PipelineConfig], owns: Sequence[PipelineConfig], given: set[str]
) -> list[SourcePart]:
    """Return one part for each shard of the sources, one source after the other.

    Rows, keys and indices of a source are shifted by those of the sources before it. `olds` and `owns` are the settings of
    the sources and of their rows in the new output.
    """
    parts, offset = list[SourcePart](), 0
    for order, (source, old, own) in enumerate(zip(sources, olds, owns, strict=True)):
        lacks_boxes = not any(shard["boxes"] or shard["removed"]["boxes"] for shard in source.manifests.values())
        if lacks_boxes and (useless := sorted(given & BOX_FILTERS)):
            logger.warning("without effect on %s, which has no boxes: %s", source.output, ", ".join(useless))
        if "score.min_presence" in given and own.score.min_presence is not None:
            check_presence(source)
        keeps_pairs = own.ground.keep_pairs if "ground.keep_pairs" in given else own.ground.keeps_pairs
        plans, known = list[Any](), dict[str, Provenance]()
        for index, manifest in source.manifests.items():
            text = json.dumps(manifest["provenance"], sort_keys=True)
            if text not in known:
                known[text] = new_provenance(manifest["provenance"], source, old, own, given)
            plan = plan_from_json(manifest["plan"])
            plans.append(plan)
            if len(sources) > 1:
                appends = tuple(row + offset for row in plan.appends)
                first = plan.first_row + offset
                plan = dataclasses.replace(plan, index=len(parts), first_row=first, appends=appends)
            thresholds = ScoreConfig(**known[text]["thresholds"]) if given & set(FILTERS) else None
            parts.append(
                SourcePart(
                    source=source.shard(index),
                    number=len(parts),
                    plan=plan,
                    provenance=known[text],
                    n_kept=manifest["counts"]["kept"],
                    offset=offset if len(sources) > 1 else None,
                    order=order,
                    thresholds=thresholds,
                    keep_all=own.score.keep_all,
                    keeps_pairs=keeps_pairs,
                    takes_out_pairs=keeps_pairs != own.ground.keeps_pairs,
                )
            )
        offset += key_end(plans)
    return parts


def check_presence(source: Source) -> None:
    """Raise UserError if the first boxes of a source have no presence: its grounder does not predict it."""
    first = next((manifest for manifest in source.manifests.values() if manifest["boxes"]), None)
    if first is None:
        return
    batches = read_batches(source.store, first, ("presence",))
    if all(batch["presence"].null_count == len(batch) for batch in batches):
        raise UserError(
            f"score.min_presence: {source.store.root} has no presence of phrases; its grounder "
            f"{first['provenance']['models']['grounder']['name']} does not predict it (docs/models.md: SAM 3 does)"
        )


def joint_config(olds: Sequence[PipelineConfig], new: PipelineConfig, given: Collection[str]) -> PipelineConfig:
    """Return the configuration of an output with settings that hold for the rows of all sources.

    Scores of removed boxes are there only if all sources have them; URLs have no queries if those of one source have none.
    """
    keep_all = all(own_config(old, new, given).score.keep_all for old in olds)
    strips = new.write.strip_url_queries or any(old.write.strip_url_queries for old in olds)
    if strips and not new.write.strip_url_queries:
        logger.warning("the URLs of a source have no queries any more: write.strip_url_queries=true for all rows")
    return dataclasses.replace(
        new,
        score=dataclasses.replace(new.score, keep_all=keep_all),
        write=dataclasses.replace(new.write, strip_url_queries=strips),
    )


def own_config(old: PipelineConfig, new: PipelineConfig, given: Iterable[str]) -> PipelineConfig:
    """Return the settings of the rows of a source in the new output: its own, with those that are given, and the files.

    Which private hosts a job was allowed to ask says nothing about its rows.
    """
    names = (key.removeprefix("score.") for key in given if key in FILTERS and key.startswith("score."))
    score = dataclasses.replace(old.score, **{name: getattr(new.score, name) for name in names})
    ground = new.ground if "ground.keep_pairs" in given else old.ground
    keep_pairs = dataclasses.replace(old.ground, keep_pairs=ground.keep_pairs)
    hosts = new.download.allowed_private_hosts
    download = dataclasses.replace(old.download, allowed_private_hosts=hosts)
    return dataclasses.replace(old, score=score, ground=keep_pairs, download=download, write=new.write, trust=new.trust)


def new_provenance(
    before: Provenance, source: Source, old: PipelineConfig, own: PipelineConfig, given: Collection[str]
) -> Provenance:
    """Return the provenance of rows with the settings `own`. Raises UserError if their thresholds cannot be applied.

    A threshold that is not among the keys `given` remains that of the shard: its model may not be here, and the shards
    of a mixed output have thresholds that its configuration does not tell. So have their other settings, which their
    hash therefore keeps apart.
    """
    values = settings_of(own)
    names = [name for name in THRESHOLDS if f"score.{name}" in given]
    names = [name for name in names if source.is_mixed or getattr(own.score, name) != getattr(old.score, name)]
    keys = {key for key, value in settings_of(old).items() if values[key] != value} | {
        f"score.{name}" for name in names
    }
    if not keys:
        return before
    changed = {name: getattr(own.score, name) for name in names}
    if None in changed.values():
        scorer, grounder = (before["models"][name]["name"] for name in ("scorer", "grounder"))
        models = {"score": {"scorer": scorer}, "ground": {"grounder": grounder}}
        content_layers(PipelineConfig, [(models, source.store.url(MANIFEST_FOLDER))], [], trusted=own.trust)
        calibrated = resolve_thresholds(dataclasses.replace(own.score, scorer=scorer), grounder)
        changed = {name: getattr(calibrated, name) for name in names}
    thresholds = ScoreConfig(**before["thresholds"])
    after = dataclasses.replace(thresholds, **changed)
    check_thresholds(thresholds, after, old.score.keep_all)
    if "min_head_score" in names and "head" not in before["models"]:
        raise UserError("score.min_head_score: the source has no scores of a head; run the job with score.head=FILE")
    if own.score.keep_all and not old.score.keep_all:
        raise UserError("score.keep_all=true: the source has no scores of removed boxes; run the job with this setting")
    config_hash = content_hash(own)
    if source.is_mixed and before["config_hash"] not in formats_by_hash(old):  # other settings than in config.yaml
        content = json.dumps([before["config_hash"], {key: values[key] for key in keys}], sort_keys=True)
        config_hash = hashlib.sha256(content.encode()).hexdigest()
    if own.ground.keeps_pairs and not old.ground.keeps_pairs:
        raise UserError(
            "ground.keep_pairs=true: the source has no images of rows without a box; run the job with this setting"
        )
    return {**before, "config_hash": config_hash, "thresholds": after.recorded}


def differences(sources: Sequence[Source], owns: Sequence[PipelineConfig], parts: Sequence[SourcePart]) -> list[str]:
    """Return what differs between the rows of the sources: `key: value, value`, one for each key.

    The settings of `write` are left out, since the shards are written anew.
    """
    texts = dict.fromkeys(json.dumps({**part.provenance, "config_hash": ""}, sort_keys=True) for part in parts)
    mixed = [source for source in sources if source.is_mixed]
    return [
        *differing([json.loads(text) for text in texts]),
        *differing([row_settings(own) for own in owns]),
        *(f"{source.output} itself holds shards with {source.n_settings} different settings" for source in mixed),
    ]


def row_settings(config: PipelineConfig) -> dict[str, Any]:
    """Return the settings that decide what becomes of a row, without those of `write`."""
    fixed, _ = split_runtime(config)
    return {name: value for name, value in fixed.items() if name not in (*ROW_KEYS, "write")}


def differing(values: Iterable[dict[str, Any]]) -> list[str]:
    """Return `key: value, value` for each key of nested values that has more than one."""
    flat = [flatten(value) for value in values]
    by_key = {key: list(dict.fromkeys(json.dumps(item.get(key)) for item in flat)) for item in flat for key in item}
    return [f"{key}: {', '.join(found)}" for key, found in by_key.items() if len(found) > 1]


main = derive_command(USAGE, rewrite, RewriteOptions, SETTINGS)
