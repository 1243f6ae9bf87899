"""The files of cached features, which `hypergrit features` writes and `data.features` reads.

    OUTPUT/features.json             what made the features: `FeatureRecord`
    OUTPUT/features/NNNNN.arrow      the features of consecutive samples: `feature_schema`, one record batch
    OUTPUT/_manifests/NNNNN.json     `FeatureManifest`, written last: a shard without one does not exist

Shapes: f and g widths of the image and the text tower.
"""

from typing import Annotated, Any, Final, NotRequired, TypedDict

import pyarrow as pa

from schemas.rows import VERSION, field

RECORD_NAME: Final = "features.json"
FOLDER: Final = "features"


def _list(item: pa.DataType, n: int = -1) -> pa.DataType:
    return pa.list_(pa.field("item", item, nullable=False), n)


def feature_schema(image_width: int, text_width: int, with_tokens: bool, n_patches: int = 0) -> pa.Schema:
    """The schema of a shard. `image_width` is that of all views of an image: their number times f.

    With tokens, each caption also has the states of its tokens and its tree, for models that need the parse. With patches,
    each image has their states, and the texts that can be its queries.
    """
    image, text = _list(pa.float16(), image_width), _list(pa.float16(), text_width)
    columns = [
        field("key", pa.string(), "SHARD/KEY of the sample"),
        field("caption", pa.string(), "the caption"),
        field("image", image, "features of the views of the image, one after the other"),
        field("text", text, "features of the caption"),
        field("box_image", _list(image), "features of each box, as those of the image"),
        field("phrase", _list(pa.string()), "phrase of each box"),
        field("box_text", _list(text), "features of each phrase"),
        field("equal", _list(pa.bool_()), "true for a phrase with the tokens of its caption"),
        field("label", _list(pa.string()), "known labels of a taxonomy, from general to specific; may be empty"),
        field("depth", _list(pa.int16()), "level of each label, counted from 0"),
        field("label_text", _list(text), "features of each label"),
    ]
    if with_tokens:
        columns += [
            field("initial", _list(text), "states of the caption's tokens at the input of the text tower"),
            field("contextual", _list(text), "states of the caption's tokens at its output"),
            field("word_of_token", _list(pa.int16()), "word of each token; -1 for none"),
            field("head", _list(pa.int16()), "head of each word; the word itself if it has none"),
            field("relation", _list(pa.int16()), "dependency relation of each word: its index in RELATIONS"),
        ]
    if n_patches:
        patches = _list(pa.float16(), n_patches * image_width)
        columns += [
            field("patches", patches, "states of the patches of the views of the image, one after the other"),
            field("query", _list(pa.string()), "parts of the caption, and phrases, that can be queries"),
            field("query_text", _list(text), "features of each of them"),
        ]
    return pa.schema(columns, metadata={"hypergrit_schema": VERSION})


class TowerRecord(TypedDict):
    """The model whose towers made the features."""

    path: Annotated[str, "folder or released file, as it was given"]
    name: Annotated[str, "name of the model, such as clip"]
    sha256: Annotated[str, "hex SHA-256 of its file of weights"]


class FeatureRecord(TypedDict):
    """The settings that made the features. A run with another record adds none to them; `shards` may have moved."""

    schema: Annotated[str, "version of the schemas"]
    hypergrit: Annotated[str, "version of HyperGRIT"]
    tower: Annotated[TowerRecord, "the frozen model"]
    settings: Annotated[dict[str, Any], "settings that decide the content"]
    sources: Annotated[
        str, "SHA-256 of the names, sizes and hashes of the training shards, or modification times of those without"
    ]
    n_samples: Annotated[int, "samples of the training shards, usable or not"]
    training: Annotated[dict[str, Any], "settings of a training that follow from the towers"]
    shards: Annotated[str, "the training shards, as they were given"]


class ArrowFacts(TypedDict):
    """Size and content of a shard."""

    bytes: Annotated[int, "size in bytes"]
    sha256: Annotated[str, "hex SHA-256 of the content"]
    rows: Annotated[int, "number of samples"]


class FeatureManifest(TypedDict):
    """`_manifests/NNNNN.json` of cached features. The samples read are the rows plus the bad ones."""

    schema: Annotated[str, "version of the schemas"]
    files: Annotated[dict[str, ArrowFacts], "path relative to the output -> size and content"]
    first: Annotated[int, "number of the first sample among those of the training shards"]
    read: Annotated[int, "samples read"]
    bad: Annotated[dict[str, int], "samples that cannot be used, by reason"]
    boxes: Annotated[int, "boxes"]
    pairs: NotRequired[Annotated[int, "samples without a box; absent if there are none"]]
