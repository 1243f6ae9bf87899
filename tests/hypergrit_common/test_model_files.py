"""The files of a model of transformers choose no code, no other file or model, and no size out of bounds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.model_files import check_model
from pipeline.stages.ground.hf_grounders import load_hf_grounder
from pipeline.stages.score.scorers import load_scorer
from tests.pipeline.stages.ground.test_hf import tiny_grounding_dino
from tests.pipeline.stages.score.test_scorers import small_transformers_clip
from trainer.text.fast_tokenizer import load_fast_tokenizer

PANICKING = {"type": "Split", "pattern": {"Regex": "^(x+)+$"}, "behavior": "Isolated", "invert": False}
"""A step of a tokenizer whose search gives up, which is a panic of the library."""

UNMERGED = {"type": "BPE", "vocab": {"xx": 0, "yy": 1, "x": 2}, "merges": [["xx", "yy"]]}
"""A vocabulary without the result of a merge, which is a panic too."""


def growing(*contents: str) -> dict[str, Any]:
    steps = [{"type": "Replace", "pattern": {"String": "e"}, "content": content} for content in contents]
    return {"normalizer": {"type": "Sequence", "normalizers": steps}}


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        ("processor_config.json", {"audio_tokenizer": {"audio_tokenizer_class": "AutoModel"}}, "audio_tokenizer="),
        ("audio_tokenizer_config.json", {}, "further model"),
        ("adapter_config.json", {}, "further model"),
        ("processor_config.json", {"processor_class": "BarkProcessor"}, "processor_class='BarkProcessor'"),
        ("processor_config.json", {"feature_extractor": {"feature_extractor_type": "os"}}, "feature_extractor_type="),
        ("preprocessor_config.json", {"image_processor_type": "LayoutLMv3ImageProcessor"}, "image_processor_type="),
        ("preprocessor_config.json", {"class_info_file": "labels.json"}, "class_info_file="),
        ("tokenizer_config.json", {"tokenizer_class": "ByT5Tokenizer"}, "tokenizer_class='ByT5Tokenizer'"),
        ("tokenizer_config.json", {"tokenizer_class": "AutoTokenizer"}, "tokenizer_class='AutoTokenizer'"),
        ("config.json", {"model_type": "clip", "tokenizer_class": ["CLIPTokenizer"]}, "tokenizer_class="),
        ("preprocessor_config.json", {"size": {"height": 48, "width": 70_000}}, "not in 1 to 4,096 pixels"),
        ("preprocessor_config.json", {"crop_size": -3}, "not in 1 to 4,096 pixels"),
        ("processor_config.json", {"image_processor": {"pad_size": {"height": 2.5}}}, "image_processor.pad_size="),
        ("model.safetensors.index.json", {"weight_map": {"a": "../b/model.safetensors"}}, "names the file '../b/model"),
        ("model.safetensors.index.json", {"weight_map": {"a": "/srv/model.safetensors"}}, "names the file '/srv/model"),
        ("model.safetensors.index.json", {"weight_map": {"a": "part.bin"}}, "names the file 'part.bin'"),
        ("model.safetensors.index.json", {"weight_map": 3}, "names the file 'None'"),
        ("tokenizer.json", growing("e" * 40, "e" * 40), "1,024 times as long"),
        ("tokenizer.json", {"normalizer": {"type": "Prepend", "prepend": "e" * 2000}}, "1,024 times as long"),
    ],
)
def test_a_file_that_reaches_out_of_its_model_is_refused_by_name(
    tmp_path: Path, name: str, values: dict[str, Any], text: str
) -> None:
    (tmp_path / name).write_text(json.dumps(values))
    with pytest.raises((UserError, ValueError)) as error:
        check_model(str(tmp_path))
    assert f"{tmp_path}/{name}" in str(error.value)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("preprocessor_config.json", {"image_processor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224}),
        ("preprocessor_config.json", {"feature_extractor_type": "OwlViTFeatureExtractor", "processor_class": None}),
        (
            "preprocessor_config.json",
            {"image_processor_type": "SiglipImageProcessorFast", "size": {"shortest_edge": 378}},
        ),
        ("processor_config.json", {"processor_class": "Siglip2Processor", "image_processor": {"pad_size": None}}),
        ("processor_config.json", {"processor_class": "GroundingDinoProcessor"}),
        ("processor_config.json", {"video_processor": {"video_processor_type": "Sam2VideoVideoProcessor"}}),
        ("tokenizer_config.json", {"tokenizer_class": "ElectraTokenizer"}),
        ("tokenizer_config.json", {"tokenizer_class": "BertTokenizerFast", "processor_class": "Sam3Processor"}),
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"}),
        ("tokenizer_config.json", {"tokenizer_class": "SiglipTokenizer"}),
        ("tokenizer.json", growing("▁", "", "<br>")),
    ],
)
def test_files_as_models_have_them_are_accepted(tmp_path: Path, name: str, values: dict[str, Any]) -> None:
    (tmp_path / name).write_text(json.dumps(values))
    check_model(str(tmp_path))


def set_keys(name: str, **values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def set_processor(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = next(
            path for path in (folder / "processor_config.json", folder / "preprocessor_config.json") if path.exists()
        )
        found = json.loads(path.read_text())
        found.get("image_processor", found).update(values)
        path.write_text(json.dumps(found))

    return change


WRONG = [
    set_keys("tokenizer_config.json", model_max_length="long"),
    set_processor(image_mean=[0.1] * 7),
    set_processor(resample=77),
]


@pytest.mark.parametrize(
    "change",
    [*WRONG, set_processor(image_mean=[float("nan")] * 3), set_keys("tokenizer.json", model=UNMERGED)],
)
def test_a_scorer_with_wrong_settings_is_refused_when_it_is_loaded(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    small_transformers_clip(tmp_path)
    set_keys("tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")(tmp_path)
    change(tmp_path)
    with pytest.raises(UserError, match=f"score.scorer='{tmp_path}'"):
        load_scorer(str(tmp_path), "cpu", 1)


@pytest.mark.parametrize("change", WRONG)
def test_a_grounder_with_wrong_settings_is_refused_when_it_is_loaded(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    tiny_grounding_dino(tmp_path)
    change(tmp_path)
    with pytest.raises(UserError, match=f"ground.grounder='{tmp_path}'"):
        load_hf_grounder(str(tmp_path), "cpu", 0.1)


def test_a_panic_of_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    small_transformers_clip(tmp_path)
    set_keys("tokenizer.json", pre_tokenizer=PANICKING)(tmp_path)
    tokenizer = load_fast_tokenizer(tmp_path / "tokenizer.json", 0, 16)
    with pytest.raises(ValueError, match="the tokenizer is damaged"):
        tokenizer.encode("x" * 40 + "y")
    (tmp_path / "tokenizer.json").write_text(json.dumps(growing("e" * 2000)))
    with pytest.raises(ValueError, match="1,024 times as long"):
        load_fast_tokenizer(tmp_path / "tokenizer.json", 0, 16)
