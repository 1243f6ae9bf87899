"""Check a model of transformers before it is loaded: its files choose neither code nor other files, models or sizes."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from hypergrit_common.errors import UserError
from hypergrit_common.files import check_folder_files
from hypergrit_common.json_file import read_object

CONFIG: Final = "config.json"
SETTINGS: Final = (
    CONFIG,
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "tokenizer_config.json",
)
"""Files whose keys transformers follows."""
FURTHER: Final = ("adapter_config.json", "audio_tokenizer_config.json")
"""Files that make transformers load a further model."""
WEIGHTS_INDEX: Final = "model.safetensors.index.json"
TOKENIZER: Final = "tokenizer.json"

SELECTING: Final = frozenset(
    {"attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation"}
    | {"quantization_config", "fusion_config", "transformers_weights", "configuration_files", "attribute_map"}
    | {"backbone", "backbone_kwargs", "use_pretrained_backbone", "checkpoint_path", "model_args", "pretrained_cfg"}
    | {"audio_tokenizer", "repo_path", "class_info_file", "speaker_embeddings"}
)
"""Keys of SETTINGS that select code, such as kernels of the hub, or other files and models (`attribute_map` gives these
keys other names)."""
LOADING: Final = ("timm_backbone", "timm_wrapper")
"""Values of `model_type` whose other keys are names of models for timm, which takes them from anywhere."""
CLASSES: Final = frozenset(
    {"processor_class", "tokenizer_class", "image_processor_class", "feature_extractor_class", "video_processor_class"}
    | {"image_processor_type", "feature_extractor_type", "video_processor_type"}
)
"""Keys of SETTINGS that name a class of transformers: some start programs, or load further files and models."""
KINDS: Final = frozenset(
    {"clip", "siglip", "siglip2", "metaclip_2", "altclip", "align", "chinese_clip", "clipseg", "groupvit"}
    | {"blip", "flava", "vit", "bit", "dinov2", "owlvit", "owlv2", "grounding-dino", "mm-grounding-dino"}
    | {"sam2_video", "sam3", "sam3_video", "sam3_lite_text"}
)
"""Types of models whose processors are used."""
SIDES: Final = frozenset({"size", "crop_size", "pad_size", "max_num_patches"})
MAX_SIDE: Final = 4096
"""Largest value of SIDES, in pixels: an image of this size takes 200 MB."""
MAX_GROWTH: Final = 1024
"""Largest factor by which the normalizers of a tokenizer lengthen a text."""
IGNORED: Final = frozenset({"auto_map", "_name_or_path"})
"""Keys that do so only where they are trusted: here, never."""


def check_settings(values: Any, source: str, keys: Collection[str] = SELECTING, prefix: str = "") -> None:
    """Raise UserError if the configuration of a model, or one within it, has one of the `keys`, or a value out of bounds.

    `source` is the file that the message names. The implementations of attention in transformers itself are allowed.
    """
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        if key in SIDES and not all(map(is_side, value.values() if isinstance(value, dict) else [value])):
            raise UserError(
                f"{source}: {prefix}{key}={str(value)[:80]!r} has a side that is not in 1 to {MAX_SIDE:,} pixels"
            )
        is_loading = (key == "model_type" and value in LOADING) or (key in CLASSES and not is_usual(value))
        if is_loading or (key in keys and value not in (None, False, {}, "eager", "sdpa")):
            raise UserError(
                f"{source}: {prefix}{key}={str(value)[:80]!r} is not allowed, since transformers would load other code or "
                "files; remove this key if the model works without it"
            )
        check_settings(value, source, keys, f"{prefix}{key}.")


def is_side(value: Any) -> bool:
    """Return True for a number of pixels, or none, that an image may have."""
    return value is None or isinstance(value, bool) or (isinstance(value, int) and 0 < value <= MAX_SIDE)


def is_usual(name: Any) -> bool:
    """Return True for a class of transformers that reads texts or images by itself; a name of none is the default."""
    import transformers

    if name is None or name == "SiglipTokenizer":  # which is a class only with the package sentencepiece
        return True
    if not isinstance(name, str):
        return False
    found = getattr(transformers, name, None)
    is_tokenizer = isinstance(found, type) and issubclass(found, transformers.PreTrainedTokenizerFast)
    return is_tokenizer or _stem(name) in _processors()


def _stem(name: str) -> str:
    return name.removesuffix("Fast").removesuffix("Pil").replace("FeatureExtractor", "ImageProcessor")


@cache
def _processors() -> frozenset[str]:
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES as IMAGES
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES as PROCESSORS
    from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES as VIDEOS

    parts = (name for names in (IMAGES, VIDEOS) for kind in KINDS & {*names} for name in _names(names[kind]))
    return frozenset(map(_stem, parts)) | {PROCESSORS[kind] for kind in KINDS & {*PROCESSORS}}


def _names(classes: Any) -> list[str]:
    """Return the names of a kind's classes: by version of transformers one name, a tuple with None, or a dict by backend.

    >>> _names("SlowProcessor"), _names(("SlowProcessor", None)), _names({"pil": "SlowProcessorPil"})
    (['SlowProcessor'], ['SlowProcessor'], ['SlowProcessorPil'])
    """
    names = [classes] if isinstance(classes, str) else classes.values() if isinstance(classes, dict) else classes
    return [name for name in names if name is not None]


def check_model(path: str) -> None:
    """Check the files of a model, in a folder or on the hub, from which transformers learns what to load.

    Raises:
        UserError: a setting selects code, another file or model, an unusual class or a huge size; a file names a further
            model; or an index names weights outside of the folder.
        ValueError: a file holds no JSON object, or a tokenizer lengthens texts without bound.
        OSError: a file cannot be read.
    """
    from transformers import PreTrainedConfig
    from transformers.utils import cached_file

    check_folder_files(path)
    others = {WEIGHTS_INDEX: check_index, TOKENIZER: check_normalizer}
    for name in (*SETTINGS, *FURTHER, *others):
        found = cached_file(
            path, name, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
        )
        if found is None:
            continue
        if name in FURTHER:
            raise UserError(
                f"{path}/{name} makes transformers load a further model; merge it into its model, or remove it"
            )
        values = read_object(Path(found))
        if name == CONFIG:  # which may point to another file
            values = PreTrainedConfig.get_config_dict(path)[0]
        others.get(name, check_settings)(values, f"{path}/{name}")


def loading(path: str) -> dict[str, bool]:
    """Return how `from_pretrained` loads a checked model: no code of it, and nothing else than the files of a folder."""
    return {"local_files_only": Path(path).is_dir(), "trust_remote_code": False}


def check_index(values: dict[str, Any], source: str) -> None:
    """Raise UserError unless an index of weights names safetensors files of its folder alone."""
    weight_map = values.get("weight_map")
    names = {str(name) for name in weight_map.values()} if isinstance(weight_map, dict) else {"None"}
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(
                f"{source} names the file {name[:80]!r}; weights are read from safetensors files of the same folder only"
            )


def check_normalizer(values: dict[str, Any], source: str) -> None:
    """Raise ValueError if the normalizers of a tokenizer.json can make a text more than MAX_GROWTH times as long."""
    growth, pending = 1, [values.get("normalizer")]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            inserted = (value.get(key) for key in ("content", "prepend"))
            growth *= max([1, *(len(text) for text in inserted if isinstance(text, str))])
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        if growth > MAX_GROWTH:
            raise ValueError(
                f"{source} makes texts more than {MAX_GROWTH:,} times as long; shorten what its normalizers insert"
            )


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turn a panic of the tokenizers, which is no Exception, into a ValueError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"the tokenizer is damaged: {error}") from error
