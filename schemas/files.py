"""The files of an output folder: their paths, the members of a sample, and the columns of GRIT's parquet.

All code that writes or reads these files, including the trainer, takes their names from here. The JSON files are
declared in `schemas.manifest` and `schemas.stats`.
"""

from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, NotRequired, TypedDict

import pyarrow as pa

from schemas.rows import field


class ShardFile(NamedTuple):
    """A kind of file that a shard has once: `train` and `.tar` for train/00000.tar."""

    folder: str
    suffix: str

    def __str__(self) -> str:
        return f"{self.folder}/NNNNN{self.suffix}"

    def path(self, index: int) -> str:
        """Return the path of the file of a shard, relative to the output.

        >>> MANIFEST_FILE.path(12)
        '_manifests/00012.json'
        """
        return f"{self.folder}/{index:05d}{self.suffix}"

    @classmethod
    def parse(cls, path: str) -> "tuple[ShardFile, int] | None":
        """Return the kind and the shard of a path relative to the output; None for another file.

        >>> ShardFile.parse("train/00012.tar"), ShardFile.parse("train/12.tar")
        ((ShardFile(folder='train', suffix='.tar'), 12), None)
        """
        folder, _, name = path.partition("/")
        stem, dot, suffix = name.partition(".")
        if not (stem.isascii() and stem.isdecimal() and len(stem) <= 18) or f"{int(stem):05d}" != stem:
            return None
        return cls(folder, dot + suffix), int(stem)


class ShardPath(NamedTuple):
    """The parts of the path or URL of a file of a shard: `root`/`folder`/`name`."""

    root: str
    folder: str
    name: str

    @property
    def stem(self) -> str:
        """The name without suffix, which is the same for all files of a shard."""
        return self.name.rpartition(".")[0]

    @classmethod
    def split(cls, path: str) -> "ShardPath":
        """Divide the path of a file of a shard, by the names alone.

        >>> ShardPath.split("s3://bucket/out/train/00012.tar")
        ShardPath(root='s3://bucket/out', folder='train', name='00012.tar')
        """
        parent, _, name = path.rpartition("/")
        root, _, folder = parent.rpartition("/")
        return cls(root, folder, name)


FILES: Final = MappingProxyType(
    {
        "train": (ShardFile("train", ".tar"),),
        "grit": (ShardFile("grit", ".tar"), ShardFile("grit", ".parquet")),
        "arrow": (ShardFile("arrow", ".arrow"),),
    }
)
"""Files of each format."""
TARS: Final = MappingProxyType({kind: files[0] for kind, files in FILES.items() if files[0].suffix == ".tar"})
"""Format -> its tar; a shard with one has an index."""
MANIFEST_FOLDER: Final = "_manifests"
MANIFEST_FILE: Final = ShardFile(MANIFEST_FOLDER, ".json")
INDEX_FOLDER: Final = "_index"
INDEX_FILE: Final = ShardFile(INDEX_FOLDER, ".arrow")
TIMINGS_FOLDER: Final = "_timings"
TIMINGS_FILE: Final = ShardFile(TIMINGS_FOLDER, ".json")
RUN_TIMINGS_FILE: Final = f"{TIMINGS_FOLDER}/run.json"
FAILED_FOLDER: Final = "_failed"
FAILED_FILE: Final = ShardFile(FAILED_FOLDER, ".json")
DROPPED_FOLDER: Final = "_dropped"
DROPPED_FILE: Final = ShardFile(DROPPED_FOLDER, ".arrow")
SUMMARY_FOLDER: Final = "_summaries"
SUMMARY_FILE: Final = ShardFile(SUMMARY_FOLDER, ".json.zst")
ROLLUP_FOLDER: Final = "_rollup"
ROLLUP_FILE: Final = ShardFile(ROLLUP_FOLDER, ".json.zst")
"""The sums of many shards; the number is that of `rollup_of`."""
ROLLUP_TIMINGS_FILE: Final = f"{TIMINGS_FOLDER}/rollup-{{:05d}}.json"
SHARDS_PER_ROLLUP: Final = 1000
"""Shards whose summaries are in a rollup."""
JOURNAL_FOLDER: Final = "_replace"
JOURNAL_FILE: Final = ShardFile(JOURNAL_FOLDER, ".json")
ANSWERS_FOLDER: Final = "_recaptions"
ANSWERS_FILE: Final = f"{ANSWERS_FOLDER}/{{}}.json"
"""Answers of the captioner about the rows of a shard, by the key of its first row, until the shard is written."""
TAKEDOWNS_FILE: Final = "_takedowns.json"
FOLDERS_RECORD: Final = "_layout.json"
"""File of an output in folders of 1,000 shards, which earlier versions wrote and none reads any more."""
JOB_FILE: Final = "_job.json"
COMMAND_FILE: Final = "_command.json"
LEASE_FILE: Final = "_lease.json"
DEDUPE_FOLDER: Final = "_dedupe"
DROPS_FILE: Final = ShardFile(DEDUPE_FOLDER, ".drops.arrow")
"""Rows that `hypergrit rewrite` drops, of each shard of its sources, while it runs: their keys, and the reasons."""
OUTPUT_FOLDERS: Final = (
    *FILES, INDEX_FOLDER, MANIFEST_FOLDER, FAILED_FOLDER, TIMINGS_FOLDER, JOURNAL_FOLDER, DROPPED_FOLDER,
    SUMMARY_FOLDER, DEDUPE_FOLDER,
)  # fmt: skip
"""All folders with files of shards, relative to the output."""
STATS_FILE: Final = "stats.json"
REPORT_FILE: Final = "report.html"

TRAIN_IMAGE: Final = "child.jpg"
TRAIN_CAPTION: Final = "child.txt"
TRAIN_N_PARENTS: Final = "numparents.txt"
TRAIN_BOX_IMAGE: Final = "parent{:03d}.jpg"
TRAIN_BOX_PHRASE: Final = "parent{:03d}.txt"
TRAIN_ANNOTATIONS: Final = "json"
TRAIN_MEMBERS: Final = MappingProxyType(
    {
        TRAIN_IMAGE: "the full image, longest side 224, centred on a white 224 x 224 square",
        TRAIN_CAPTION: "the caption, UTF-8",
        TRAIN_N_PARENTS: "number of box-phrase pairs that follow, decimal, at least 1",
        TRAIN_BOX_IMAGE.format(0): "the first box, cut out of the stored image and padded like child.jpg; "
        "the next ones are parent001.jpg, parent002.jpg, ...",
        TRAIN_BOX_PHRASE.format(0): "the phrase of that box: noun chunks first, then referring expressions; "
        "each distinct text once, with its best kept box",
        TRAIN_ANNOTATIONS: "boxes, parse and provenance of the sample (TrainAnnotations)",
    }
)
"""Members of one sample of train/NNNNN.tar, in this order: those of HyCoCLIP's format, then a JSON file.

Each is named `<key>.<member>`.
"""

GRIT_IMAGE: Final = "jpg"
GRIT_CAPTION: Final = "txt"
GRIT_JSON: Final = "json"
GRIT_MEMBERS: Final = MappingProxyType(
    {
        GRIT_IMAGE: "the stored image",
        GRIT_CAPTION: "the caption, UTF-8",
        GRIT_JSON: "the columns below without `extra`, and the other columns of the input",
    }
)
"""Members of one sample of grit/NNNNN.tar, named `<key>.<member>`; the same as in tars of img2dataset."""


class Parent(TypedDict):
    """One box-phrase pair of a training sample: parentNNN.jpg and parentNNN.txt."""

    kind: Annotated[Literal["noun_chunk", "ref_exp"], "kind of the phrase"]
    start: Annotated[int, "first character of the phrase in `caption`"]
    end: Annotated[int, "one past its last character"]
    box: Annotated[int, "index in `boxes`"]


class HardNegatives(TypedDict):
    """Texts that are like the phrase of a training sample, but are not true of its box."""

    parent: Annotated[int, "index of the phrase in `parents`"]
    texts: Annotated[list[str], "the texts"]


class SampleProvenance(TypedDict):
    """Origin of a training sample."""

    config_hash: Annotated[
        str, "hash of the settings that decide the content; the manifest has the complete provenance"
    ]
    source: Annotated[str, "input file of the row, as in `arrow/`: nothing of the machine"]
    source_row: Annotated[int, "index of the row in that file, from 0"]
    id: Annotated[str | None, "identifier of the row in the input"]
    url: Annotated[str | None, "URL of the image"]
    sha256: Annotated[str, "hex SHA-256 of the image bytes that were received"]


class TrainAnnotations(TypedDict):
    """`<key>.json` of train/: keys sorted, UTF-8, float32 values in their shortest decimal form."""

    parents: Annotated[list[Parent], "phrase and box of each parentNNN"]
    boxes: Annotated[
        list[dict[str, Any]],
        "the kept boxes: fields of BOX and BOX_SCORE without `removed`; `has_expression` as in arrow/, if it is not null",
    ]
    noun_chunks: Annotated[list[dict[str, Any]], "as in arrow/, removed ones included"]
    ref_exps: Annotated[list[dict[str, Any]], "as in arrow/"]
    key: Annotated[str, "key of the row"]
    caption: Annotated[str, "the caption, to which all offsets refer"]
    tokens: Annotated[list[dict[str, Any]], "the parse, as in arrow/"]
    clip_similarity: Annotated[float | None, "cosine of image and caption, as in arrow/"]
    width: Annotated[int, "width in pixels of the stored image, to which the box fractions refer"]
    height: Annotated[int, "height in pixels of the stored image"]
    provenance: Annotated[SampleProvenance, "origin of the sample"]
    captions: NotRequired[
        Annotated[
            list[dict[str, Any]],
            "all captions if the row has several (kind, text, tokens); the first is `caption`",
        ]
    ]
    extra: NotRequired[Annotated[dict[str, Any], "the columns of the input that `write.train_columns` names"]]
    hard_negatives: NotRequired[
        Annotated[list[HardNegatives], "hard negatives of phrases, if the input has some (FineHARD); no loss uses them"]
    ]
    levels: NotRequired[
        Annotated[
            list[str | None],
            "labels of a taxonomy, from general to specific, null for an empty level: `read.levels`",
        ]
    ]
    subreddit: NotRequired[
        Annotated[
            str, "column `subreddit` of the input, if it has one (RedCaps); the trainer puts it in front of captions"
        ]
    ]


INDEX_MEMBER: Final = pa.struct(
    [
        field("name", pa.dictionary(pa.int16(), pa.string()), "name without the key, such as child.jpg"),
        field("offset", pa.int64(), "first byte of the content in the tar"),
        field("size", pa.int64(), "bytes of the content"),
    ]
)
INDEX: Final = pa.schema(
    [
        field("format", pa.dictionary(pa.int16(), pa.string()), "format of the tar: train or grit"),
        field("key", pa.string(), "key of the sample"),
        field("offset", pa.int64(), "first byte of the sample in the tar: the header of its first member"),
        field("size", pa.int64(), "bytes from there to the header of the next sample"),
        field("members", pa.list_(pa.field("item", INDEX_MEMBER, nullable=False)), "its members, in their order"),
    ]
)
"""Schema of `_index/NNNNN.arrow`: the samples of the tars of a shard, in their order."""

INDEX_SUBREDDITS: Final = "subreddits"
"""Metadata of `_index/NNNNN.arrow`: "true" if a kept row has a subreddit, which the JSON in train/ names."""

THUMBNAIL: Final = pa.schema(
    [
        field("key", pa.string(), "key of the dropped row"),
        field("jpeg", pa.binary(), "the image as a small JPEG"),
        field("width", pa.int32(), "its width in pixels"),
        field("height", pa.int32(), "its height in pixels"),
    ]
)
"""Schema of `_dropped/NNNNN.arrow`: images of some rows that `captions`, `parse`, `ground` or `score` dropped."""

_SPAN: Final = pa.list_(pa.list_(pa.float64()))


def grit_schema(similarity: str) -> pa.Schema:
    """Return the schema of grit/NNNNN.parquet; `similarity` names the column with the cosine of image and caption."""
    return pa.schema(
        [
            field("key", pa.string(), "key of the row; its tar members begin with it"),
            field("id", pa.string(), "identifier of the row in the input", True),
            field("url", pa.string(), "URL of the image", True),
            field(
                "caption", pa.string(), "cleaned caption; the original one if the row was dropped before cleaning", True
            ),
            field("width", pa.int32(), "width of the stored image in pixels", True),
            field("height", pa.int32(), "height of the stored image in pixels", True),
            field("original_width", pa.int32(), "width in pixels before resizing", True),
            field("original_height", pa.int32(), "height in pixels before resizing", True),
            field(similarity, pa.float32(), "cosine of image and caption; the column name ends with the scorer", True),
            field(
                "noun_chunks",
                _SPAN,
                "[start, end, x_min, y_min, x_max, y_max, score] of each kept box, best first",
                True,
            ),
            field("ref_exps", _SPAN, "the same boxes with the spans of their referring expressions", True),
            field("sha256", pa.string(), "hex SHA-256 of the image bytes that were received", True),
            field(
                "status",
                pa.string(),
                "success or failed_to_download as in img2dataset, or dropped if a later stage dropped the row",
            ),
            field("error_message", pa.string(), "`stage: reason: detail` of a dropped row", True),
            field("extra", pa.string(), "the other columns of the input, as a JSON object with sorted keys", True),
        ]
    )


def shard_files(index: int) -> list[str]:
    """Return the paths of all files that a shard may have besides its manifest, relative to the output folder."""
    kinds = [kind for kinds in FILES.values() for kind in kinds]
    return [kind.path(index) for kind in (*kinds, INDEX_FILE, DROPPED_FILE, SUMMARY_FILE)]


def rollup_of(index: int) -> int:
    """Return the number of the rollup that a shard belongs to."""
    return index // SHARDS_PER_ROLLUP
