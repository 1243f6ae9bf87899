"""Classification by level on seen and unseen classes, compared with loops."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.trainer.data.samples import train_files, write_tar
from tests.trainer.evaluation.tasks.fake_embedder import FakeEmbedder, random_vector
from tests.trainer.small import small_model
from trainer.analyses.levels import edges_of, evaluate, level_metrics, level_names
from trainer.evaluation.task import ImageFeatures, ImageSource, MissingFilesError, TaskOptions

SEEN = [["animal", "bird", "robin"], ["animal", "bird", "crow"], ["animal", None, "dog"], ["plant"]]
UNSEEN = [["animal", "bird", "owl"]]


class ByOrder(FakeEmbedder):
    """Images are told apart by their place in the shard: those of a tar are not files."""

    def images(self, images: Sequence[ImageSource], fit: object = "crop", **more: object) -> ImageFeatures:  # type: ignore[override]
        return ImageFeatures(
            features=torch.stack([random_vector(f"image {s.index} {s.path.name}") for s in images]), errors={}
        )


def write_shard(folder: Path, chains: list[list[str | None]]) -> None:
    samples = []
    for i, levels in enumerate(chains):
        fields = json.dumps({"caption": "x", "levels": levels}).encode()
        samples.append((f"{i:05d}", train_files(i, n_boxes=0) | {"child.txt": b"x", "json": fields}))
    write_tar(folder / "00000.tar", samples)


@pytest.mark.parametrize("name", ["clip", "taxonomy"])
def test_accuracy_of_each_level_equals_loops_over_images(tmp_path: Path, name: str) -> None:
    write_shard(tmp_path / "held_out", SEEN)
    write_shard(tmp_path / "unseen", UNSEEN)
    embedder = ByOrder(small_model(name))
    result = evaluate(embedder, tmp_path, TaskOptions(ranking="metric"))
    model, right = embedder.model, {}
    levels = [["animal", "plant"], ["bird"], ["crow", "dog", "owl", "robin"]]
    for part, folder, chains in (("seen", "held_out", SEEN), ("unseen", "unseen", UNSEEN)):
        for i, chain in enumerate(chains):
            image = model.lift_image(random_vector(f"image {i} {folder}")[None])
            for depth, label in enumerate(chain):
                scores = model.similarity(image, model.lift_text(torch.stack([*map(random_vector, levels[depth])])))
                if label:
                    right[part, i, depth] = levels[depth][int(scores.argmax())] == label
        for depth in range(3):
            hits = [hit for (where, _, d), hit in right.items() if (where, d) == (part, depth)]
            assert result.metrics[f"{part}/level_{depth}/accuracy_micro"] == pytest.approx(sum(hits) / len(hits))
            own: dict[str, list[bool]] = {}
            for (where, i, d), hit in right.items():
                if (where, d) == (part, depth):
                    own.setdefault(str(chains[i][depth]), []).append(hit)
            mean = sum(sum(hits) / len(hits) for hits in own.values()) / len(own)
            assert result.metrics[f"{part}/level_{depth}/accuracy"] == pytest.approx(mean)
        paths = [
            all(hit for (where, j, _), hit in right.items() if (where, j) == (part, i)) for i in range(len(chains))
        ]
        assert result.metrics[f"{part}/path"] == pytest.approx(sum(paths) / len(paths))
    assert result.chance["unseen/level_2/accuracy"] == 0.25
    edges = [("animal", "bird"), ("bird", "robin"), ("bird", "crow"), ("animal", "dog"), ("bird", "owl")]
    assert [(general[1], specific[1]) for general, specific in edges_of(SEEN + UNSEEN)] == edges
    if name == "taxonomy":
        radius = {
            text: model.radius(model.lift_text(random_vector(text)[None])).item() for edge in edges for text in edge
        }
        share = sum(radius[general] < radius[specific] for general, specific in edges) / len(edges)
        assert result.metrics["order"] == pytest.approx(share)


def test_seen_labels_that_are_predicted_for_unseen_images_are_no_classes_of_theirs() -> None:
    chains: list[tuple[str | None, ...]] = [("owl",), ("owl",), ("kiwi",)]
    names = {0: ["crow", "dog", "kiwi", "owl", "robin"]}
    metrics, chance, _ = level_metrics({0: torch.tensor([3, 0, 2])}, chains, names)
    assert metrics["level_0/accuracy"] == (1 / 2 + 1) / 2
    assert chance == {"level_0/accuracy": 1 / 5}


def test_a_level_that_no_image_has_is_left_out(tmp_path: Path) -> None:
    write_shard(tmp_path / "held_out", [["animal", None, "dog"], ["animal", None, "cat"]])
    result = evaluate(ByOrder(small_model("taxonomy")), tmp_path, TaskOptions())
    assert {"seen/level_0/accuracy", "seen/level_2/accuracy"} <= result.metrics.keys()
    assert result.details["labels"] == {"level_0": 1, "level_2": 2}


def test_shards_without_levels_are_named(tmp_path: Path) -> None:
    write_shard(tmp_path / "held_out", [[None]])
    with pytest.raises(MissingFilesError, match="no samples with levels"):
        evaluate(FakeEmbedder(), tmp_path, TaskOptions())
    assert level_names([]) == {}
