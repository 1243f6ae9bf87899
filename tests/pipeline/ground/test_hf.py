import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    BertTokenizerFast,
    CLIPTokenizerFast,
    GroundingDinoConfig,
    GroundingDinoForObjectDetection,
    GroundingDinoImageProcessor,
    GroundingDinoProcessor,
    Owlv2Config,
    Owlv2ForObjectDetection,
    Owlv2ImageProcessor,
    Owlv2Processor,
    SwinConfig,
)

from pipeline.errors import UserError
from pipeline.ground.hf import GroundingDino
from pipeline.ground.load import load_grounder

CAPTION = "A red dog and the blue house"
SPANS = [(0, 9), (14, 28)]


def tiny_grounding_dino(folder: Path) -> None:
    letters = [chr(c) for c in range(97, 123)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", "red", "dog", "blue", "house", *letters]
    (folder / "vocab.txt").write_text("\n".join([*words, *(f"##{c}" for c in letters)]))
    tokenizer = BertTokenizerFast(str(folder / "vocab.txt"))
    backbone = SwinConfig(
        image_size=64, window_size=4, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2],
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = GroundingDinoConfig(
        backbone_config=backbone, d_model=32, encoder_layers=1, decoder_layers=2, num_queries=7, max_text_len=16,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        text_config={
            "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 16, "vocab_size": len(tokenizer), "max_position_embeddings": 32,
        },
        use_pretrained_backbone=False, backbone=None,
    )  # fmt: skip
    torch.manual_seed(0)
    GroundingDinoForObjectDetection(config).save_pretrained(folder)
    images = GroundingDinoImageProcessor(size={"shortest_edge": 64, "longest_edge": 96})
    GroundingDinoProcessor(images, tokenizer).save_pretrained(folder)


def tiny_owlv2(folder: Path) -> None:
    letters = [chr(c) for c in range(97, 123)]
    pieces = [*letters, *(c + "</w>" for c in letters), "do", "dog</w>", "!", "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("#version: 0.2\nd o\ndo g</w>")
    tokenizer = CLIPTokenizerFast(
        str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=16, pad_token="!"
    )  # fmt: skip
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 54}
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Owlv2Config(
        text_config={**size, "vocab_size": len(pieces), "max_position_embeddings": 16, **ends},
        vision_config={**size, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    torch.manual_seed(0)
    Owlv2ForObjectDetection(config).save_pretrained(folder)
    Owlv2Processor(Owlv2ImageProcessor(size={"height": 32, "width": 32}), tokenizer).save_pretrained(folder)


@pytest.fixture(scope="module", params=[tiny_grounding_dino, tiny_owlv2])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make: Callable[[Path], None] = request.param
    path = tmp_path_factory.mktemp("model")
    make(path)
    return path


def image(height: int = 48, width: int = 64) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)


def test_saved_model_finds_boxes_inside_the_image_for_every_phrase(folder: Path) -> None:
    (found,) = load_grounder(str(folder), "cpu", 0.0, "caption")([image()], [CAPTION], [SPANS])
    assert {d.phrase for d in found} == {0, 1}
    assert all(0 <= d.score <= 1 and all(0 <= v <= 1 for v in d.box) for d in found)


def test_boxes_do_not_depend_on_the_other_images_of_the_batch(folder: Path) -> None:
    grounder = load_grounder(str(folder), "cpu", 0.0, "caption")
    (alone,) = grounder([image()], [CAPTION], [SPANS])
    _, beside = grounder([image() // 2, image()], ["a dog", CAPTION], [[(0, 5)], SPANS])
    assert [d.phrase for d in alone] == [d.phrase for d in beside]
    for a, b in zip(alone, beside, strict=True):
        assert (a.score, *a.box) == pytest.approx((b.score, *b.box), abs=1e-4)


def test_floor_leaves_out_boxes_below_it(folder: Path) -> None:
    (every,) = load_grounder(str(folder), "cpu", 0.0, "caption")([image()], [CAPTION], [SPANS])
    floor = sorted(d.score for d in every)[len(every) // 2]
    (some,) = load_grounder(str(folder), "cpu", floor, "caption")([image()], [CAPTION], [SPANS])
    assert some == [d for d in every if d.score >= floor]


def test_phrases_that_overfill_grounding_dinos_prompt_are_asked_for_in_several(tmp_path: Path) -> None:
    tiny_grounding_dino(tmp_path)
    grounder = load_grounder(str(tmp_path), "cpu", 0.0, "caption")
    assert isinstance(grounder, GroundingDino)
    caption = "red dog, blue house, red house, blue dog, dog, house, red, blue"
    starts = [0, *(i + 2 for i, c in enumerate(caption) if c == ",")]
    spans = [(start, caption.find(",", start) if "," in caption[start:] else len(caption)) for start in starts]
    (found,) = grounder([image()], [caption], [spans])
    assert {d.phrase for d in found} == set(range(8))


def test_other_kinds_of_models_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match="'bert' model"):
        load_grounder(str(tmp_path), "cpu", 0.1, "caption")


def test_model_that_is_nowhere_is_named() -> None:
    with pytest.raises(UserError, match="/no/such/model"):
        load_grounder("/no/such/model", "cpu", 0.1, "caption")
