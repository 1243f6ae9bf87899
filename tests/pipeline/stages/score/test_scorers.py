import dataclasses
import json
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from numpy.typing import NDArray
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor

from hypergrit_common.errors import UserError
from pipeline.stages.score.filters import MINIATURE
from pipeline.stages.score.scorers import Scorer, load_scorer
from tests.pipeline.clip_tokenizer import small_clip_tokenizer

TEXTS = ["a red dog", "a", "a very long phrase about a blue house near a tree"]


@pytest.fixture(scope="module")
def images() -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 255, (h, w, 3), dtype=np.uint8) for h, w in ((40, 60), (33, 3), (20, 20))]


def small_transformers_clip(folder: Path) -> None:
    tokenizer = small_clip_tokenizer(folder)
    ends = {f"{end}_token_id": getattr(tokenizer, f"{end}_token_id") for end in ("bos", "eos")}
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = CLIPConfig(
        text_config={**size, "vocab_size": len(tokenizer), "max_position_embeddings": 16, **ends},
        vision_config={**size, "image_size": 16, "patch_size": 8},
        projection_dim=8,
    )
    torch.manual_seed(0)
    CLIPModel(config).save_pretrained(folder)
    processor = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    CLIPProcessor(image_processor=processor, tokenizer=tokenizer).save_pretrained(folder)


def small_open_clip(folder: Path) -> str:
    towers = {
        "embed_dim": 8,
        "vision_cfg": {"image_size": 16, "layers": 1, "width": 16, "head_width": 8, "patch_size": 8},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    }
    (folder / "tiny-for-tests.json").write_text(json.dumps(towers))
    open_clip.add_model_config(folder / "tiny-for-tests.json")
    torch.save(open_clip.create_model("tiny-for-tests").state_dict(), folder / "weights.pt")
    return f"open_clip:tiny-for-tests/{folder / 'weights.pt'}"


@pytest.fixture(scope="module", params=["transformers", "open_clip", "miniature"])
def scorer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scorer:
    folder = tmp_path_factory.mktemp(request.param)
    match request.param:
        case "transformers":
            small_transformers_clip(folder)
            return load_scorer(str(folder), "cpu", 2)
        case "open_clip":
            return load_scorer(small_open_clip(folder), "cpu", 2)
        case _:
            return load_scorer("miniature", "cpu", 2)


def test_each_input_has_an_embedding_of_unit_length(scorer: Scorer, images: list[NDArray[np.uint8]]) -> None:
    for features in (scorer.embed_images(images), scorer.embed_texts(TEXTS)):
        assert features.shape[0] == 3
        assert torch.allclose(features.norm(dim=1), torch.ones(3), atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 5, 16])
def test_no_bit_of_an_embedding_depends_on_the_other_inputs(
    scorer: Scorer, images: list[NDArray[np.uint8]], n: int
) -> None:
    torch.set_num_threads(1)  # as in the job: threads divide the sums
    scorer = dataclasses.replace(scorer, batch_size=n)
    for embed, items in ((scorer.embed_images, images), (scorer.embed_texts, TEXTS)):
        alone = torch.cat([embed([item]) for item in items])  # type: ignore[operator]
        assert torch.equal(embed(items), alone)  # type: ignore[operator]
        assert torch.equal(embed(items[::-1] * 9)[-3:].flip(0), alone)  # type: ignore[operator]


def test_miniature_gives_matching_phrases_higher_cosines_than_others(tmp_path: Path) -> None:
    from demo.world.scenes import TEST_SEEDS, make_scene

    scorer, matching, others = load_scorer("miniature", "cpu", 64), [], []
    for seed in range(TEST_SEEDS[0], TEST_SEEDS[0] + 12):
        scene = make_scene(seed, "openmoji")
        for phrase in scene.phrases:
            for thing in [scene.objects[i] for i in phrase.objects]:
                x0, y0, x1, y1 = (round(v) for v in thing.box)
                image = scorer.embed_images([scene.image[y0:y1, x0:x1]])
                matching.append(float(image @ scorer.embed_texts([scene.caption[phrase.start : phrase.end]]).T))
                others.append(float(image @ scorer.embed_texts(["freedom and joy"]).T))
    assert np.mean(matching) > np.mean(others) + 0.2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/such/clip", "/no/such/clip"),
        ("open_clip:ViT-B-32", "ARCHITECTURE/WEIGHTS"),
        ("open_clip:ViT-B-32//no/such/file.pt", "does not exist"),
        ("open_clip:ViT-B-32/no_such_tag", "no_such_tag"),
    ],
)
def test_error_for_a_scorer_that_cannot_be_loaded_names_it(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_scorer(name, "cpu", 1)


def test_miniature_is_part_of_the_repository() -> None:
    assert (MINIATURE / "model.safetensors").stat().st_size < 8e6
