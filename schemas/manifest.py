"""The JSON files of a shard: the manifest, which commits it, and its timings.

The second argument of each `Annotated` is the description of the field in docs/schemas.md.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NotRequired, TypedDict

from schemas.scores import THRESHOLDS

NO_MODEL: Final = "none"
"""Name of the grounder, scorer or parser of a job without one."""


class PieceJson(TypedDict):
    """Consecutive rows of one input file (pipeline.read.types.Piece)."""

    path: Annotated[str, "name of the file, as in `source` of its rows"]
    first_row: Annotated[int, "index of the first row in the file, from 0"]
    n_rows: Annotated[int, "number of rows"]
    size: Annotated[int, "size of the file in bytes when the job was planned"]
    offset: Annotated[int, "byte of the decompressed file at which the first row starts; 0 for parquet"]
    line: Annotated[int, "line at which the first row starts, from 1"]


class PlanJson(TypedDict):
    """The input rows of a shard (pipeline.read.types.ShardPlan)."""

    index: Annotated[int, "index of the shard"]
    first_row: Annotated[int, "index of the first row in the input, from 0"]
    n_rows: Annotated[int, "number of rows"]
    pieces: Annotated[list[PieceJson], "the rows by file"]
    appends: NotRequired[
        Annotated[list[int], "first row in the input of each batch of appended files, up to the batch of this shard"]
    ]


class FileFacts(TypedDict):
    """Size and content of one output file."""

    bytes: Annotated[int, "size in bytes"]
    sha256: Annotated[str, "hex SHA-256 of the content"]
    rows: Annotated[int, "number of rows; for a tar, number of samples"]


class Counts(TypedDict):
    """Rows of a shard or of a run; read = kept + the sum of dropped + unfinished."""

    read: Annotated[int, "rows read"]
    kept: Annotated[int, "rows kept"]
    dropped: Annotated[dict[str, dict[str, int]], "rows dropped: {stage: {reason: n}}"]
    unfinished: NotRequired[Annotated[int, "rows of failed shards; stats.json only, a manifest has none"]]


class Removed(TypedDict):
    """Phrases and boxes that were removed, including those of dropped rows."""

    phrases: Annotated[dict[str, int], "noun chunks removed: {reason of PHRASE_REMOVALS: n}"]
    boxes: Annotated[dict[str, int], "boxes removed: {reason of GIVEN_REMOVALS or BOX_REMOVALS: n}"]


class ModelIdentity(TypedDict):
    """A grounder or scorer."""

    name: Annotated[str, "name in the configuration"]
    sha256: NotRequired[
        Annotated[str, "hash of the files of a local model; absent for a model of the Hugging Face hub"]
    ]


class ParserIdentity(ModelIdentity):
    """The spaCy pipeline of a run."""

    version: Annotated[str, "version of its package"]


class CaptionerIdentity(TypedDict):
    """A model behind an endpoint that wrote captions."""

    name: Annotated[str, "openai:URL#MODEL"]
    prompt: Annotated[str, "what it was asked"]


class Models(TypedDict):
    """The models of a run."""

    parser: Annotated[ParserIdentity, "parser of the captions"]
    grounder: Annotated[ModelIdentity, "grounding model"]
    scorer: Annotated[ModelIdentity, "CLIP model"]
    head: NotRequired[Annotated[ModelIdentity, "model of `score.head`; absent without one"]]
    captioner: NotRequired[Annotated[CaptionerIdentity, "model of further captions; absent without one"]]


if TYPE_CHECKING:
    ThresholdValues = dict[str, Any]
else:  # by which the manifests of strangers are checked
    _TYPES = {"min_side_px": int, "size_rule": Literal["area", "side", "released"]}
    _FIELDS = {name: Annotated[_TYPES.get(name, float), doc] for name, doc in THRESHOLDS.items()}
    ThresholdValues = TypedDict("ThresholdValues", _FIELDS, total=False)
    ThresholdValues.__doc__ = "The thresholds that a box had to reach: configured, or calibrated for the model."


class Plugin(TypedDict):
    """A class from a package of the user that took part in a shard. Reading an output never imports it."""

    name: Annotated[str, "module:Class"]
    sha256: Annotated[str, "hash of the file with the module"]
    stage: NotRequired[Annotated[str, "of a stage: its name"]]
    after: NotRequired[Annotated[str, "of a stage: the one before it"]]
    reasons: NotRequired[Annotated[dict[str, str], "of a stage: its drop reasons and their meanings"]]


class Provenance(TypedDict):
    """Everything that decides the content of a shard; a finished shard is reused only if all of it is equal."""

    hypergrit: Annotated[str, "version of HyperGRIT"]
    schema: Annotated[str, "version of the schemas"]
    config_hash: Annotated[str, "SHA-256 of the settings that decide the content"]
    packages: Annotated[dict[str, str], "versions of the installed packages that the content depends on"]
    models: Annotated[Models, "the models"]
    thresholds: Annotated[ThresholdValues, "the thresholds"]
    plugins: NotRequired[Annotated[list[Plugin], "classes of the user, stages in their order; absent without any"]]


def has_grounder(provenance: Mapping[str, Any]) -> bool:
    """Return True if a grounder looked for the phrases of the rows without given boxes."""
    return bool(provenance.get("models", {}).get("grounder", {}).get("name") != NO_MODEL)


class SourceShard(TypedDict):
    """A finished shard from which another one was made."""

    output: Annotated[str, "path or URL of its output"]
    shard: Annotated[int, "its index"]
    manifest: Annotated[str, "SHA-256 of its manifest"]


class Origin(TypedDict):
    """The command that made a shard from finished shards, without running the job."""

    command: Annotated[str, "name of the command, such as rewrite"]
    sources: Annotated[list[SourceShard], "the shards whose rows it holds"]
    settings: Annotated[dict[str, Any], "settings of the command that decide the content"]


class Manifest(TypedDict):
    """`_manifests/NNNNN.json`, written last: readers ignore the files of a shard without a manifest."""

    schema: Annotated[str, "version of the schemas (VERSION)"]
    shard: Annotated[int, "index of the shard"]
    plan: Annotated[PlanJson, "the input rows"]
    formats: Annotated[list[str], "formats that were written: train, grit, arrow"]
    files: Annotated[dict[str, FileFacts], "path relative to the output folder -> size and content"]
    counts: Annotated[Counts, "rows read, kept and dropped"]
    boxes: Annotated[int, "kept boxes of the kept rows"]
    phrases: Annotated[int, "noun chunks of the kept rows that have at least one kept box"]
    pairs: NotRequired[Annotated[int, "kept rows without a box; absent if there are none"]]
    unconfirmed: NotRequired[
        Annotated[int, "those of `boxes` without a referring expression; absent if there are none"]
    ]
    asked: Annotated[
        int, "noun chunks that were not removed, over all rows: passed to the grounder, or with boxes from the input"
    ]
    removed: Annotated[Removed, "phrases and boxes removed"]
    provenance: Annotated[Provenance, "versions, models, thresholds and configuration"]
    runtime: Annotated[
        dict[str, Any], "settings that may differ between the shards of one output, such as devices and batch sizes"
    ]
    origin: NotRequired[
        Annotated[Origin, "finished shards from which a command made this one; absent in a job's shards"]
    ]


class StagedFile(FileFacts):
    """A new file of a shard that is being replaced."""

    draft: Annotated[str, "its temporary name, relative to the output folder"]


class Journal(TypedDict):
    """`_replace/NNNNN.json`: a finished shard that is being replaced. After a kill, the next command ends that."""

    manifest: Annotated[Manifest, "its new manifest"]
    files: Annotated[dict[str, StagedFile], "its new files, by their names"]
    unused: Annotated[list[str], "files that it has no more"]


class FailedShard(TypedDict):
    """`_failed/NNNNN.json`: a shard that failed. The next run tries it again, and removes the file if it succeeds."""

    shard: Annotated[int, "index of the shard"]
    rows: Annotated[int, "number of its rows, which count as unfinished"]
    step: Annotated[str, "step that failed: prepare, infer or write"]
    error: Annotated[str, "the last error, in one line"]
    traceback: Annotated[str, "its traceback, which may be empty"]
    attempts: Annotated[int, "number of attempts"]


class StageTiming(TypedDict):
    """Time that one stage spent on a shard."""

    seconds: Annotated[float, "wall-clock time in seconds"]
    rows: Annotated[float, "kept rows that entered the stage"]


Timings = dict[str, StageTiming]
"""`_timings/NNNNN.json`: the time of each stage, the only file of a shard that differs from run to run."""


class RunTimings(TypedDict, total=False):
    """`_timings/run.json`: the last run that wrote shards."""

    wall_seconds: Annotated[float, "wall-clock time of the run in seconds"]
    shards: Annotated[int, "number of shards that the run wrote"]
    rows: Annotated[int, "number of their rows"]
    started: Annotated[str, "start of the run, ISO 8601, in UTC"]
    command: Annotated[str, "the command, without the values of secret settings"]
