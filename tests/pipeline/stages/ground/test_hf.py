import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertTokenizerFast,
    GroundingDinoConfig,
    GroundingDinoForObjectDetection,
    GroundingDinoImageProcessor,
    GroundingDinoProcessor,
    MMGroundingDinoConfig,
    MMGroundingDinoForObjectDetection,
    Owlv2Config,
    Owlv2ForObjectDetection,
    Owlv2ImageProcessor,
    Owlv2Processor,
    Sam3Config,
    Sam3ImageProcessor,
    Sam3Model,
    Sam3Processor,
    SwinConfig,
)

from hypergrit_common.devices import Precision
from hypergrit_common.errors import UserError
from pipeline.stages.ground.grounder import Detection, Grounder
from pipeline.stages.ground.hf_grounders import GroundingDino
from pipeline.stages.ground.load import GroundConfig, make_grounder
from tests.pipeline.clip_tokenizer import small_clip_tokenizer
from tests.selecting import select_code

CAPTION = "A red dog and the blue house"
SPANS = [(0, 9), (14, 28)]


def load_grounder(name: str, floor: float = 0.0, **settings: Any) -> Grounder:
    return make_grounder(GroundConfig(grounder=name, device="cpu", floor=floor, **settings))


def tiny_grounding_dino(folder: Path) -> None:
    save_tiny_dino(folder, GroundingDinoConfig, GroundingDinoForObjectDetection)


def tiny_mm_grounding_dino(folder: Path) -> None:
    save_tiny_dino(folder, MMGroundingDinoConfig, MMGroundingDinoForObjectDetection)


def save_tiny_dino(folder: Path, config_class: Any, model_class: Any) -> None:
    letters = [chr(c) for c in range(97, 123)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", "red", "dog", "blue", "house", *letters]
    (folder / "vocab.txt").write_text("\n".join([*words, *(f"##{c}" for c in letters)]))
    tokenizer = BertTokenizerFast(str(folder / "vocab.txt"))
    backbone = SwinConfig(
        image_size=64, window_size=4, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2],
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = config_class(
        backbone_config=backbone, d_model=32, encoder_layers=1, decoder_layers=2, num_queries=7, max_text_len=16,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        text_config={
            "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 16, "vocab_size": len(tokenizer), "max_position_embeddings": 32,
        },
        use_pretrained_backbone=False, backbone=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model_class(config).save_pretrained(folder)
    images = GroundingDinoImageProcessor(size={"shortest_edge": 64, "longest_edge": 96})
    GroundingDinoProcessor(images, tokenizer).save_pretrained(folder)


def tiny_owlv2(folder: Path) -> None:
    tokenizer = small_clip_tokenizer(folder, extra=["!"], pad_token="!")
    ends = {f"{end}_token_id": getattr(tokenizer, f"{end}_token_id") for end in ("bos", "eos", "pad")}
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Owlv2Config(
        text_config={**size, "vocab_size": len(tokenizer), "max_position_embeddings": 16, **ends},
        vision_config={**size, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    torch.manual_seed(0)
    Owlv2ForObjectDetection(config).save_pretrained(folder)
    Owlv2Processor(Owlv2ImageProcessor(size={"height": 32, "width": 32}), tokenizer).save_pretrained(folder)


def tiny_sam3(folder: Path) -> None:
    tokenizer = small_clip_tokenizer(folder, extra=["!"], pad_token="!")
    tokenizer.model_max_length = 32
    ends = {f"{end}_token_id": getattr(tokenizer, f"{end}_token_id") for end in ("bos", "eos", "pad")}
    size = {"hidden_size": 16, "num_attention_heads": 2}
    layers = {**size, "num_layers": 1, "intermediate_size": 16}
    config = Sam3Config(
        vision_config={
            "backbone_config": {
                "model_type": "sam3_vit_model", **size, "intermediate_size": 16, "num_hidden_layers": 2, "image_size": 56,
                "patch_size": 14, "window_size": 2, "global_attn_indexes": [1], "pretrain_image_size": 28,
            },
            "fpn_hidden_size": 16, "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
        },
        text_config={
            "model_type": "clip_text_model", **size, **ends, "intermediate_size": 16, "num_hidden_layers": 1,
            "vocab_size": len(tokenizer), "max_position_embeddings": 32, "projection_dim": 8,
        },
        geometry_encoder_config=layers, detr_encoder_config=layers,
        detr_decoder_config={**layers, "num_layers": 2, "num_queries": 7}, mask_decoder_config=size,
    )  # fmt: skip
    torch.manual_seed(0)
    Sam3Model(config).save_pretrained(folder)
    Sam3Processor(Sam3ImageProcessor(size={"height": 56, "width": 56}), tokenizer).save_pretrained(folder)


Save = Callable[[Path], None]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Save], Path]:
    """The folder of a model, which is saved once. Tests must not change it."""

    @cache
    def folder_of(save: Save) -> Path:
        path = tmp_path_factory.mktemp("model")
        save(path)
        return path

    return folder_of


@pytest.fixture(scope="module")
def loaded(saved: Callable[[Save], Path]) -> Callable[..., Any]:
    """The grounder of a model without a floor, which is loaded once in each number format."""

    @cache
    def load(save: Save, precision: Precision = "auto") -> Grounder:
        return load_grounder(str(saved(save)), precision=precision)

    return load


@pytest.fixture(scope="module", params=[tiny_grounding_dino, tiny_mm_grounding_dino, tiny_owlv2, tiny_sam3])
def model(request: pytest.FixtureRequest) -> Save:
    """A function that saves a model."""
    save: Save = request.param
    return save


@pytest.fixture(scope="module")
def folder(saved: Callable[[Save], Path], model: Save) -> Path:
    return saved(model)


@pytest.fixture(scope="module")
def grounder(loaded: Callable[..., Any], model: Save) -> Any:
    return loaded(model)


def image(height: int = 48, width: int = 64) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)


def detect(grounder: Grounder, *batch: Any) -> list[list[Detection]]:
    """Boxes of a batch without phrases that cannot be grounded."""
    results = grounder.collect(grounder.forward(grounder.prepare(*batch)))
    assert not any(result.dropped for result in results)
    return [result.boxes for result in results]


def test_saved_model_finds_boxes_inside_the_image_for_every_phrase(grounder: Any) -> None:
    (found,) = detect(grounder, [image()], [CAPTION], [SPANS])
    assert {d.phrase for d in found} == {0, 1}
    assert all(0 <= d.score <= 1 and all(0 <= v <= 1 for v in d.box) for d in found)


def test_boxes_do_not_depend_on_the_other_images_of_the_batch(grounder: Any) -> None:
    (alone,) = detect(grounder, [image()], [CAPTION], [SPANS])
    _, beside = detect(grounder, [image() // 2, image()], ["a dog", CAPTION], [[(0, 5)], SPANS])
    assert [d.phrase for d in alone] == [d.phrase for d in beside]
    for a, b in zip(alone, beside, strict=True):
        assert (a.score, *a.box) == pytest.approx((b.score, *b.box), abs=1e-4)


def test_an_expression_has_boxes_too_and_those_of_the_noun_chunks_inside_it_stay(grounder: Any) -> None:
    caption, spans = "a dog on a hat", [(0, 5), (9, 14), (0, 14)]
    (without,) = detect(grounder, [image()], [caption], [spans[:2]])
    (beside,) = detect(grounder, [image()], [caption], [spans])
    assert {d.phrase for d in beside} == {0, 1, 2}
    for phrase in range(2):
        for box, other in zip(of_phrase(without, phrase), of_phrase(beside, phrase), strict=True):
            assert box == pytest.approx(other, abs=1e-6)


@pytest.mark.parametrize("caption", ["St. Peter's Sq?", "U.S. flag", "2.5 mm", "a.jpg", "a b c."])
@pytest.mark.parametrize("save", [tiny_grounding_dino, tiny_mm_grounding_dino])
def test_full_stops_and_question_marks_within_a_phrase_divide_no_prompt(
    save: Save, caption: str, loaded: Callable[..., Any]
) -> None:
    grounder = loaded(save)
    spans = [(0, len(caption)), (len(caption) + 1, len(caption) + 4)]
    batch = [image()], [caption + " dog"], [spans]
    (item,) = grounder.prepare(*batch).passes
    words = grounder.processor.tokenizer.convert_ids_to_tokens(item.text.input_ids[0])
    (columns,) = item.columns
    assert words.count(".") == 2  # ours
    assert "?" not in words
    own = {word for column in columns.values() for i in column for word in [words[i]]}
    assert not own & {".", "?", "[CLS]", "[SEP]"}
    assert len(columns[0]) + len(columns[1]) == len(words) - 4
    spaced = caption.translate(str.maketrans(".?", "  "))
    assert detect(grounder, *batch) == detect(grounder, [image()], [spaced + " dog"], [spans])
    assert grounder.prepare([image()], ["a ... ?"], [[(0, 1), (2, 7)]]).dropped == [{1: "no_word_piece"}]


@pytest.mark.parametrize("save", [tiny_owlv2, tiny_sam3])
def test_tokens_of_the_tokenizer_within_a_phrase_do_not_end_it(save: Save, loaded: Callable[..., Any]) -> None:
    found = [
        detect(loaded(save), [image()], [caption], [[(0, len(caption))]])
        for caption in ("a dog<|endoftext|> hat", "a dog" + " " * 13 + " hat")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(("of_tokenizer", "of_config"), [(10**30, 12), (9, 12), (16, 7)])
def test_length_of_a_phrase_is_the_smaller_of_tokenizer_and_configuration(
    folder: Path, of_tokenizer: int, of_config: int
) -> None:
    grounder: Any = load_grounder(str(folder))
    grounder.processor.tokenizer.model_max_length = of_tokenizer
    grounder.model.config.text_config.max_position_embeddings = of_config
    least = min(of_tokenizer, of_config)
    n_own = 3 if isinstance(grounder, GroundingDino) else 2
    caption = " ".join(["a"] * (least - n_own + 1))
    prepared = grounder.prepare([image()], [caption], [[(0, len(caption) - 2), (0, len(caption))]])
    assert prepared.dropped == [{1: "too_many_word_pieces"}]
    (item,) = prepared.passes
    if not isinstance(item.text, list):
        assert item.text.input_ids.shape[1] == least
    else:
        assert grounder._embed(item.text[0])[1].shape[1] == least


def test_boxes_below_the_floor_are_not_returned(folder: Path, grounder: Any) -> None:
    (every,) = detect(grounder, [image()], [CAPTION], [SPANS])
    floor = sorted(d.score for d in every)[len(every) // 2]
    (some,) = detect(load_grounder(str(folder), floor), [image()], [CAPTION], [SPANS])
    assert some == [d for d in every if d.score >= floor]


def test_phrases_that_exceed_the_prompt_of_grounding_dino_are_split_into_several_prompts(
    loaded: Callable[..., Any],
) -> None:
    grounder = loaded(tiny_grounding_dino)
    assert isinstance(grounder, GroundingDino)
    caption = "red dog, blue house, red house, blue dog, dog, house, red, blue"
    starts = [0, *(i + 2 for i, c in enumerate(caption) if c == ",")]
    spans = [(start, caption.find(",", start) if "," in caption[start:] else len(caption)) for start in starts]
    (found,) = detect(grounder, [image()], [caption], [spans])
    assert {d.phrase for d in found} == set(range(8))


def test_error_for_another_kind_of_model_names_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match="'bert' model"):
        load_grounder(str(tmp_path), 0.1)


@pytest.mark.parametrize("size", [(1, 200), (200, 1), (1, 2)])
def test_very_narrow_image_is_grounded(grounder: Any, size: tuple[int, int]) -> None:
    (found,) = detect(grounder, [image(*size)], [CAPTION], [SPANS])
    assert {d.phrase for d in found} == {0, 1}
    assert all(0 <= v <= 1 for d in found for v in d.box)


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def test_weights_stored_in_half_precision_are_read(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "half"))
    change_weights(copy, lambda state: {k: v.half() if v.is_floating_point() else v for k, v in state.items()})
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
    (found,) = detect(load_grounder(str(copy)), [image()], [CAPTION], [SPANS])
    assert {d.phrase for d in found} == {0, 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: {k: v for i, (k, v) in enumerate(state.items()) if i % 2}, "weights are missing, such as"),
        (lambda state: {k: v * float("nan") for k, v in state.items()}, "weights are not finite, such as"),
        (
            lambda state: {k: v[:1].clone() if v.ndim > 1 else v for k, v in state.items()},
            "can be fetched: RuntimeErr",
        ),
    ],
    ids=["missing", "nan", "shapes"],
)
def test_weights_that_do_not_fit_are_refused(
    folder: Path, tmp_path: Path, change: Callable[[dict], dict], message: str
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "wrong"))
    change_weights(copy, change)
    with pytest.raises(UserError, match=message):
        load_grounder(str(copy))


def test_damaged_model_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "cut"))
    weights = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(UserError, match="SafetensorError"):
        load_grounder(str(copy))
    (copy / "config.json").write_text('{"model_type": "owlv2", "vision_config": 3}')
    with pytest.raises(UserError, match="vision_config"):
        load_grounder(str(copy))


def test_phrase_that_cannot_be_grounded_is_dropped_with_the_reason(grounder: Any) -> None:
    caption = "dog  " + "house " * 200
    (result,) = grounder.collect(
        grounder.forward(grounder.prepare([image()], [caption], [[(0, 3), (3, 5), (5, len(caption))]]))
    )
    assert {d.phrase for d in result.boxes} == {0}
    assert result.dropped == {1: "no_word_piece", 2: "too_many_word_pieces"}


def test_owlv2_finds_nearly_the_same_boxes_in_bfloat16(loaded: Callable[..., Any]) -> None:
    (exact,) = detect(loaded(tiny_owlv2), [image()], [CAPTION], [SPANS])
    (half,) = detect(loaded(tiny_owlv2, "bf16"), [image()], [CAPTION], [SPANS])
    assert len(exact) == len(half)
    scores = [[d.score for d in sorted(found, key=lambda d: (d.phrase, d.box))] for found in (exact, half)]
    assert sorted(scores[0]) == pytest.approx(sorted(scores[1]), abs=0.03)


HALF = [("fp32", torch.float32), ("bf16", torch.bfloat16)]
WORDS = [(2, 5), (6, 9)]  # of "a red dog": one word piece each, so that a mean over word pieces is a maximum


def within(grounder: Any, dtype: torch.dtype) -> torch.autocast:
    is_half = dtype != torch.float32
    return torch.autocast("cpu", dtype if is_half else None, enabled=is_half)


def as_fractions(result: dict[str, Any], height: int = 48, width: int = 64) -> list[tuple[float, ...]]:
    """Score and corners of the boxes of transformers' post-processing, clipped to the image, in a fixed order."""
    boxes = (result["boxes"] / torch.tensor([width, height]).repeat(2)).clamp(0, 1)
    return sorted((float(s), *b) for s, b in zip(result["scores"], boxes.tolist(), strict=True))


def of_phrase(found: list[Detection], phrase: int) -> list[tuple[float, ...]]:
    return sorted((d.score, *d.box) for d in found if d.phrase == phrase)


@pytest.mark.parametrize(("precision", "dtype"), HALF)
@pytest.mark.parametrize("save", [tiny_grounding_dino, tiny_mm_grounding_dino])
def test_boxes_of_a_word_are_those_of_transformers_post_processing(
    save: Save, precision: Precision, dtype: torch.dtype, loaded: Callable[..., Any]
) -> None:
    grounder = loaded(save, precision)
    (found,) = detect(grounder, [image()], ["a red dog"], [WORDS])
    processor = grounder.processor
    inputs = processor(images=[image()], text="red. dog.", return_tensors="pt")
    with torch.inference_mode(), within(grounder, dtype):
        output = grounder.model(**inputs)
    for phrase, column in enumerate((1, 3)):  # [CLS] red . dog . [SEP]
        of_word = torch.full_like(output.logits, -torch.inf)
        of_word[..., column] = output.logits[..., column]
        of_word = type(output)(logits=of_word.float(), pred_boxes=output.pred_boxes.float())
        (expected,) = processor.post_process_grounded_object_detection(
            of_word, inputs.input_ids, threshold=-1, target_sizes=[(48, 64)]
        )
        assert len(expected["scores"]) == 7
        for box, other in zip(of_phrase(found, phrase), as_fractions(expected), strict=True):
            assert box == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize(("precision", "dtype"), HALF)
@pytest.mark.parametrize("size", [(48, 64), (64, 40)])
def test_boxes_of_owlv2_are_those_of_transformers_post_processing(
    precision: Precision, dtype: torch.dtype, size: tuple[int, int], loaded: Callable[..., Any]
) -> None:
    grounder = loaded(tiny_owlv2, precision)
    (found,) = detect(grounder, [image(*size)], ["a red dog"], [WORDS])
    inputs = grounder.processor(images=[image(*size)], text=[["red", "dog"]], return_tensors="pt")
    with torch.inference_mode(), within(grounder, dtype):
        output = grounder.model(**inputs)
    for phrase in range(2):
        of_phrase_alone = type(output)(
            logits=output.logits[..., [phrase]].float(), pred_boxes=output.pred_boxes.float()
        )
        (expected,) = grounder.processor.post_process_grounded_object_detection(
            of_phrase_alone, threshold=-1, target_sizes=[size]
        )
        assert len(expected["scores"]) == 16
        for box, other in zip(of_phrase(found, phrase), as_fractions(expected, *size), strict=True):
            assert box == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize(("precision", "dtype"), HALF)
def test_boxes_of_sam3_are_those_of_transformers_post_processing(
    precision: Precision, dtype: torch.dtype, loaded: Callable[..., Any]
) -> None:
    grounder = loaded(tiny_sam3, precision)
    results = grounder.collect(
        grounder.forward(grounder.prepare([image(), image(56, 56)], [CAPTION] * 2, [SPANS[:1], SPANS]))
    )
    for result, pixels, spans in zip(results, (image(), image(56, 56)), (SPANS[:1], SPANS), strict=True):
        for phrase, (start, end) in enumerate(spans):
            inputs = grounder.processor(images=[pixels], text=CAPTION[start:end], return_tensors="pt")
            with torch.inference_mode(), within(grounder, dtype):
                output = grounder.model(
                    pixel_values=inputs.pixel_values, input_ids=inputs.input_ids, attention_mask=inputs.attention_mask
                )
            size = pixels.shape[:2]
            output = type(output)(**{name: getattr(output, name).float() for name in NAMES})
            (expected,) = grounder.processor.post_process_object_detection(output, threshold=-1, target_sizes=[size])
            for box, other in zip(of_phrase(result.boxes, phrase), as_fractions(expected, *size), strict=True):
                assert box == pytest.approx(other, abs=2e-3 if dtype == torch.bfloat16 else 1e-5)
            assert result.presence[phrase] == pytest.approx(float(output.presence_logits.sigmoid()), abs=2e-3)


NAMES = ("pred_boxes", "pred_logits", "presence_logits")


def test_sam3_computes_an_image_and_a_phrase_once(
    saved: Callable[[Save], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    grounder: Any = load_grounder(str(saved(tiny_sam3)))
    seen: list[Any] = []
    for name in ("get_vision_features", "get_text_features"):
        method = getattr(grounder.model, name)
        monkeypatch.setattr(
            grounder.model,
            name,
            lambda _name=name, _method=method, **values: (seen.append(_name), _method(**values))[1],
        )
    for _ in range(2):
        detect(grounder, [image(), image()], [CAPTION] * 2, [SPANS] * 2)
    assert seen.count("get_vision_features") == 2  # once a batch
    assert seen.count("get_text_features") == 2  # two distinct phrases


def test_files_of_sam3_with_its_tracker_are_read(
    saved: Callable[[Save], Path], loaded: Callable[..., Any], tmp_path: Path
) -> None:
    (expected,) = detect(loaded(tiny_sam3), [image()], [CAPTION], [SPANS])
    copy = Path(shutil.copytree(saved(tiny_sam3), tmp_path / "video"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({"model_type": "sam3_video", "detector_config": config}))
    change_weights(
        copy,
        lambda state: {f"detector_model.{k}": v for k, v in state.items()} | {"tracker_model.a": torch.ones(1)},
    )
    (found,) = detect(load_grounder(str(copy)), [image()], [CAPTION], [SPANS])
    assert found == expected


@pytest.mark.parametrize(
    "key", ["_attn_implementation", "backbone_config.attn_implementation", "text_config.fusion_config"]
)
def test_a_folder_whose_settings_select_code_is_refused_by_file_and_key(
    tmp_path: Path, saved: Callable[[Save], Path], key: str
) -> None:
    folder = shutil.copytree(saved(tiny_grounding_dino), tmp_path / "copy")
    select_code(folder / "config.json", key)
    with pytest.raises(UserError, match=rf"copy/config\.json: {key}='someone/kernel' is not allowed"):
        load_grounder(str(folder))
