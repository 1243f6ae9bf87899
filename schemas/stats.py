"""stats.json: the statistics of a run, over all finished shards.

The second argument of each `Annotated` is the description of the field in docs/schemas.md.
"""

from typing import Annotated, Any, NotRequired, TypedDict

from schemas.job import UnderstoodInput
from schemas.manifest import Counts, Provenance, RunTimings


class PhraseCounts(TypedDict):
    """Noun chunks of all rows."""

    found: Annotated[int, "noun chunks found"]
    removed: Annotated[dict[str, int], "noun chunks removed: {reason of PHRASE_REMOVALS: n}"]
    given: Annotated[int, "noun chunks that were not removed: passed to the grounder, or with boxes from the input"]
    grounded: Annotated[int, "noun chunks with at least one kept box"]


class BoxCounts(TypedDict):
    """Boxes of all rows; found = kept + the sum of removed."""

    found: Annotated[int, "boxes found by the grounder or in the input"]
    removed: Annotated[dict[str, int], "boxes removed: {reason of GIVEN_REMOVALS or BOX_REMOVALS, or row_dropped: n}"]
    kept: Annotated[int, "boxes kept, in kept rows"]
    unconfirmed: NotRequired[
        Annotated[int, "those without a referring expression; absent without `ground.check_expressions`"]
    ]
    given: NotRequired[
        Annotated[
            dict[str, int],
            "in the input, absent without any: boxes; rows with boxes; split: those in which a span begins or ends inside a "
            "word, inside a grapheme or at a space",
        ]
    ]


class DuplicateCounts(TypedDict):
    """Images that occur more than once, in any shard."""

    images: Annotated[int, "images received"]
    distinct: Annotated[int, "distinct images by SHA-256; an estimate from 65,536 of them on"]
    repeated: Annotated[int, "images received minus distinct images"]
    error: NotRequired[Annotated[float, "relative standard error of `distinct`; absent if it is exact"]]


class MostFrequent(TypedDict):
    """The most frequent texts, each with its count."""

    phrases: Annotated[list[tuple[str, int]], "grounded phrases, lower case"]
    heads: Annotated[list[tuple[str, int]], "their head nouns in the singular"]
    kept_heads: NotRequired[Annotated[list[tuple[str, int]], "head nouns in the singular of all chunks that were kept"]]
    removed: NotRequired[
        Annotated[
            dict[str, list[tuple[str, int]]], "reason of PHRASE_REMOVALS -> most frequent removed chunks, lower case"
        ]
    ]
    errors: NotRequired[
        Annotated[
            dict[str, int],
            "list -> largest possible excess of its counts; lists: phrases, heads, kept_heads, hosts, host_rows, or a "
            "reason of PHRASE_REMOVALS; the counts of lists that are missing here are exact",
        ]
    ]


class DamagedFile(TypedDict):
    """An input file that is damaged; only the rows before the damage are read."""

    path: Annotated[str, "path or URL"]
    rows: Annotated[int, "rows before the damage"]
    error: Annotated[str, "the error at which reading ended"]


class HostFailures(TypedDict):
    """A host whose images could not be downloaded."""

    host: Annotated[str, "host name"]
    rows: Annotated[int, "rows dropped by download"]
    reasons: Annotated[dict[str, int], "rows by drop reason"]
    of: NotRequired[Annotated[int, "rows with a URL of this host"]]


class HistogramJson(TypedDict):
    """Counts in fixed bins, for one or several series."""

    edges: Annotated[list[float], "edges of the bins; values outside are counted in the first or last bin"]
    counts: Annotated[dict[str, list[int]], "series -> count of each bin"]
    n: Annotated[dict[str, int], "series -> number of values"]
    mean: Annotated[dict[str, float | None], "series -> mean, null without values"]
    percentiles: NotRequired[
        Annotated[
            dict[str, dict[str, float]],
            "series -> 5th, 25th, 50th, 75th and 95th percentile, each within 1 % of the exact one",
        ]
    ]


class StageSpeed(TypedDict):
    """Time of one stage over all shards."""

    seconds: Annotated[float, "wall-clock time in seconds, summed over the workers"]
    rows: Annotated[float, "kept rows that entered the stage"]
    rows_per_second: Annotated[float, "rows per second of one worker"]


class RowStatistics(TypedDict):
    """The part of stats.json that is counted from the rows of arrow/."""

    phrases: Annotated[PhraseCounts, "noun chunks"]
    boxes: Annotated[BoxCounts, "boxes"]
    duplicates: Annotated[DuplicateCounts, "repeated images"]
    top: Annotated[MostFrequent, "most frequent phrases and head nouns"]
    failures: Annotated[list[HostFailures], "hosts with failed downloads, most rows first"]
    http_statuses: NotRequired[Annotated[dict[str, int], "HTTP status of rows dropped as http_error -> rows"]]
    null_captions: NotRequired[
        Annotated[
            dict[str, int],
            "captions of the input that are the text of a missing value, such as `nan`, or of a list -> rows",
        ]
    ]
    histograms: Annotated[dict[str, HistogramJson], "name -> histogram"]


class Places(TypedDict):
    """Some shards, for the pictures and examples of the report."""

    kept: Annotated[list[int], "shards with kept rows, chosen at random"]
    dropped: Annotated[
        dict[str, dict[str, list[int]]], "the first shards with rows dropped: {stage: {reason: indices}}"
    ]


class Statistics(RowStatistics):
    """stats.json."""

    schema: Annotated[str, "version of the schemas (VERSION)"]
    shards: Annotated[list[int], "indices of the finished shards"]
    planned: NotRequired[Annotated[int, "number of shards of the job or command; absent if unknown"]]
    without_rows: Annotated[int, "number of shards without a file in arrow/; only their manifests are counted"]
    rows: Annotated[Counts, "rows read, kept and dropped"]
    pairs: NotRequired[Annotated[int, "rows kept without a box; absent if there are none"]]
    stages: Annotated[dict[str, StageSpeed], "stage -> time"]
    run: Annotated[RunTimings, "time of the last run; empty if unknown"]
    provenance: Annotated[Provenance, "provenance of the first shard"]
    config: Annotated[dict[str, Any], "the resolved configuration"]
    places: NotRequired[Annotated[Places, "shards for pictures and examples"]]
    bytes: NotRequired[Annotated[dict[str, int], "format -> bytes of its files in all shards"]]
    input: NotRequired[Annotated[UnderstoodInput, "how the input was understood; absent for outputs of commands"]]
    damaged: NotRequired[Annotated[list[DamagedFile], "damaged input files; the rows after the damage are not counted"]]
    truth: NotRequired[
        Annotated[dict[str, Any], "precision and recall of the boxes, if the ground truth is known (demo)"]
    ]
