"""The tasks of the analyses on small models: results, rules, figures, and data that they cannot use."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from hypergrit_common.errors import UserError
from tests.trainer.evaluation.tasks.embedding import picture, small_embedder, write_shards
from tests.trainer.small import NAMES
from trainer.analyses.factors import drawn_from_top
from trainer.analyses.root import main as write_root
from trainer.analyses.shard_points import embed_shards
from trainer.checkpoints.model import save_model
from trainer.data.preprocess import PreprocessConfig
from trainer.evaluation.catalog import TASKS
from trainer.evaluation.metrics.entailment import entailment_metrics
from trainer.evaluation.metrics.items import read_items
from trainer.evaluation.metrics.spaces import space_of_points
from trainer.evaluation.run.runner import RunSettings, run_task
from trainer.evaluation.task import MissingFilesError, TaskOptions, TaskResult, UnsuitableModelError

OPTIONS = TaskOptions()
ANALYSES = ("traversal", "interpolation", "norms", "horopca", "cosne", "factors", "words", "syntax_edges", "order")
NEEDS = {
    "horopca": "meru",
    "cosne": "poinclip",
    "factors": "phyclip",
    "words": "phyclip",
    "syntax_edges": "syntax_meru",
}
"""Task -> a model that it accepts."""


def run(task: str, model: str, root: Path, options: TaskOptions = OPTIONS) -> TaskResult:
    return TASKS[task].evaluate(small_embedder(model, root), root, options)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_shards(root, n=8, parse=True)
    return root


@pytest.mark.parametrize("task", ANALYSES)
def test_results_are_finite_json_with_rules_and_checksums_and_figures_are_pictures(
    task: str, shards: Path, tmp_path: Path
) -> None:
    result = run(task, NEEDS.get(task, "hycoclip"), shards)
    details = dict(result.details)
    assert json.loads(json.dumps(details, allow_nan=False)) == details
    assert all(type(value) is float and math.isfinite(value) for value in result.metrics.values())
    assert set(result.chance) <= set(result.metrics)
    assert all(isinstance(rule, str) and rule for rule in result.rules.values())
    assert set(result.checksums) == (set() if task == "words" else {"held_out"})
    assert result.n_used > 0
    assert result.figures
    for figure in result.figures:
        path = tmp_path / f"{figure.name}.png"
        figure.draw(path)
        width, height = PIL.Image.open(path).size
        assert width > 400
        assert height > 150


@pytest.mark.parametrize("task", [task for task in ANALYSES if task not in ("factors", "words")])
def test_without_shards_the_expected_layout_is_named(task: str, tmp_path: Path) -> None:
    with pytest.raises(MissingFilesError, match=r"held_out/00000\.tar"):
        run(task, NEEDS.get(task, "hycoclip"), tmp_path)


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ("horopca", "clip"),
        ("cosne", "clip"),
        ("factors", "meru"),
        ("words", "clip"),
        ("syntax_edges", "phyclip"),
        ("syntax_edges", "clip"),
    ],
)
def test_a_model_that_a_task_cannot_use_is_an_error_that_names_it(task: str, model: str, shards: Path) -> None:
    with pytest.raises(UnsuitableModelError, match=f"^{model} has no "):
        run(task, model, shards)


@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize("task", ["traversal", "interpolation", "norms", "order"])
def test_every_model_has_the_results_that_its_space_allows(task: str, model: str, shards: Path) -> None:
    result = run(task, model, shards)
    if task == "traversal":
        variants = {name.split("/")[1] for name in result.metrics}
        assert variants == ({"all"} if model == "clip" else {"all", "entailing"})
    if task == "order":
        assert {name.split("/")[1] for name in result.metrics} == (
            {"order"} if model == "clip" else {"order", "auc", "ap", "pep_auc", "pep_ap"}
        )
        assert set(result.chance.values()) == {0.5}
    if task == "norms":
        assert len([name for name in result.metrics if name.endswith("median_distance")]) == 4
        assert len(result.figures) == (3 if model == "phyclip" else 1)


def test_a_traversal_has_the_given_number_of_points(shards: Path) -> None:
    result = run("traversal", "meru", shards, replace(OPTIONS, traversal_steps=100))
    assert result.rules["steps"] == "100"
    shares = [value for name, value in result.metrics.items() if name.endswith("share_of_steps_at_root")]
    assert shares and all(100 * 8 * share == pytest.approx(round(100 * 8 * share)) for share in shares)  # noqa: PT018


def test_the_root_of_clip_is_the_mean_of_the_training_shards_that_the_command_writes(
    shards: Path, tmp_path: Path
) -> None:
    embedder = small_embedder("clip", shards)
    save_model(
        tmp_path / "model",
        embedder.model,
        tokenizer=embedder.tokenizer,
        preprocess=PreprocessConfig(size_px=16),
        record={},
    )
    file = tmp_path / "root.npy"
    held_out = shards / "held_out"
    assert write_root([str(tmp_path / "model"), f"shards={held_out}", f"output={file}", "batch_size=3"]) == 0
    points = embed_shards(embedder, shards).lifted(embedder.model)
    expected = torch.cat([points["image"], points["text"]]).mean(0)
    torch.testing.assert_close(torch.from_numpy(np.load(file)), expected, atol=1e-5, rtol=0)
    given = replace(OPTIONS, root=str(file))
    for task in ("traversal", "interpolation", "norms", "order"):
        result = TASKS[task].evaluate(embedder, shards, given)
        assert f"root of {file}" in result.rules.values()
    centre = space_of_points(embedder.model, points, str(file)).root(points["image"])[0]
    torch.testing.assert_close(centre, torch.nn.functional.normalize(expected, dim=0), atol=1e-5, rtol=0)
    np.save(file, np.zeros(3))
    with pytest.raises(UserError, match=r"has the shape \[3\], but points have the width 16"):
        TASKS["norms"].evaluate(embedder, shards, given)


def test_pictures_of_a_factor_are_drawn_from_the_top_images() -> None:
    norms = torch.arange(20_000).float()
    drawn = drawn_from_top(norms, seed=0)
    assert len(set(drawn)) == 6
    assert min(drawn) >= 20_000 - 20
    assert sorted(drawn_from_top(norms[:50], seed=0)) == [44, 45, 46, 47, 48, 49]
    assert sorted(drawn_from_top(norms[:2], seed=0)) == [0, 1]


def test_traversals_start_at_the_image_and_end_at_the_root(shards: Path) -> None:
    result = run("traversal", "meru", shards)
    entries = result.details["held_out"]
    assert isinstance(entries, list)
    assert len(entries) == result.n_used == 8
    for number, entry in enumerate(entries):
        assert entry["start"] == f"image of: blue kite {number}"
        assert entry["all"][0] == f"[image: blue kite {number}]"
        assert entry["all"][-1] == entry["entailing"][-1] == "[ROOT]"
        assert not any(text.startswith("[image") for text in entry["entailing"])
    assert result.details["missing"].keys() == {"pexels", "flickr30k_grounded"}  # type: ignore[attr-defined]


def test_images_of_the_traversal_folder_take_the_place_of_those_of_the_shards(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "held_out").symlink_to(shards / "held_out")
    folder = tmp_path / "traversal"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.png").write_bytes(picture(number))
    (folder / "bad.png").write_bytes(b"no image")
    result = run("traversal", "clip", tmp_path)
    assert [entry["image"] for entry in result.details["held_out"]] == [f"traversal/{i}.png" for i in range(3)]  # type: ignore[attr-defined]
    assert result.skipped == {"unreadable image": 1}
    assert result.rules["held_out/root"] == "mean direction of the pool and the images"
    pairs = run("interpolation", "clip", tmp_path)
    assert pairs.n_used == 1
    assert pairs.details["held_out"][0]["target"] == "1.png"  # type: ignore[index]


def test_paths_of_the_paper_and_geodesics_end_at_the_target_but_released_paths_beyond_it(shards: Path) -> None:
    metrics = run("interpolation", "meru", shards).metrics
    ends = {
        rule: metrics[f"held_out/{rule}/mean_distance_of_end_from_target"] for rule in ("paper", "geodesic", "released")
    }
    assert max(ends["paper"], ends["geodesic"]) < 1e-3
    assert ends["released"] > 10 * max(ends["paper"], ends["geodesic"])


def test_the_order_task_agrees_with_the_evaluation_of_the_trainer(shards: Path) -> None:
    embedder = small_embedder("hycoclip", shards)
    result = TASKS["order"].evaluate(embedder, shards, OPTIONS)
    points = embed_shards(embedder, shards)
    expected = entailment_metrics(embedder.model, points.lifted(embedder.model), points.owner)
    own = {name: value for name, value in result.metrics.items() if "/pep_" not in name}
    assert own == {name: value for name, value in expected.items() if not name.endswith("chance")}


def test_the_runner_writes_the_items_of_the_metrics(tmp_path: Path, shards: Path) -> None:
    embedder = small_embedder("meru", shards)
    content = run_task(TASKS["order"], embedder, "meru", RunSettings(data=shards, output=tmp_path, options=OPTIONS))
    items = read_items(tmp_path / "meru" / "order.npz")
    assert {name: found.metric() for name, found in items.items()} == content["metrics"]
    boxes = items["cross_image/order"].units.tolist()
    assert len(boxes) > len(set(boxes))  # the boxes of one image are one unit


def test_figures_are_drawn_on_request_also_after_a_run_without_them(tmp_path: Path, shards: Path) -> None:
    embedder = small_embedder("meru", shards)
    with_figures = RunSettings(data=shards, output=tmp_path, options=OPTIONS)
    without = replace(with_figures, figures=False)
    picture, content = tmp_path / "meru" / "norms-histogram.png", tmp_path / "meru" / "norms.json"
    assert run_task(TASKS["norms"], embedder, "meru", without)["figures"] == []
    assert not picture.exists()
    assert run_task(TASKS["norms"], embedder, "meru", with_figures)["figures"]
    assert picture.exists()
    written = content.stat().st_mtime_ns
    for settings in (with_figures, without):
        run_task(TASKS["norms"], embedder, "meru", settings)
    assert content.stat().st_mtime_ns == written


def test_norms_separate_groups_at_different_distances(shards: Path) -> None:
    embedder = small_embedder("meru", shards)
    with torch.no_grad():
        embedder.model.get_parameter("textual_alpha").sub_(6.0)
    result = TASKS["norms"].evaluate(embedder, shards, OPTIONS)
    assert result.metrics["text_below_image"] == result.metrics["phrase_below_box"] == 1.0
    shares = result.details["histograms"]["text"]["shares"]  # type: ignore[index]
    assert sum(shares) == pytest.approx(1.0)


def test_shards_without_boxes_have_results_for_captions_and_images(tmp_path: Path) -> None:
    write_shards(tmp_path, boxes=False)
    assert {name.split("/")[0] for name in run("order", "meru", tmp_path).metrics} == {"text_image"}
    assert set(run("norms", "meru", tmp_path).chance) == {"text_below_image"}
    assert set(run("horopca", "meru", tmp_path).details["coordinates"]) == {"images", "texts"}  # type: ignore[call-overload]


def test_edges_of_meru_are_those_of_a_syntax_meru_with_its_weights(shards: Path) -> None:
    results = [run("syntax_edges", name, shards) for name in ("meru", "syntax_meru")]
    assert results[0].metrics == pytest.approx(dict(results[1].metrics))
    assert results[0].details["number_of_edges"] == 2 * 8
    assert results[0].details["relations"][0]["relation"] == "compound"  # type: ignore[index]
    assert run("syntax_edges", "hycoclip", shards).n_used == 8


def test_captions_without_parses_are_missing_files(tmp_path: Path) -> None:
    write_shards(tmp_path)
    with pytest.raises(MissingFilesError, match="captions with parses"):
        run("syntax_edges", "syntax_meru", tmp_path)


def test_factors_have_norms_without_shards_and_an_overlap_with_them(shards: Path, tmp_path: Path) -> None:
    alone = run("factors", "phyclip", tmp_path)
    assert set(alone.metrics) == {"mean_percentile_at_peaks", "share_high_at_both_peaks"}
    assert alone.n_used == len(alone.details["compositions"]) == 4  # type: ignore[arg-type]
    assert alone.details["missing"].keys() == {"retrieval"}  # type: ignore[attr-defined]
    both = run("factors", "phyclip", shards)
    assert (both.metrics["overlap@10"], both.chance["overlap@10"]) == (1.0, 1.0), "eight images, all among the ten best"


def test_points_beyond_a_limit_are_not_read(shards: Path) -> None:
    assert run("order", "meru", shards, TaskOptions(max_examples=3)).n_used == 3
    assert run("horopca", "meru", shards, TaskOptions(max_examples=4)).n_used == 4
    assert run("syntax_edges", "syntax_meru", shards, TaskOptions(max_examples=5)).n_used == 5


@pytest.mark.parametrize(
    "model", ["meru", *(pytest.param(name, marks=pytest.mark.rest) for name in ("phyclip", "poinclip"))]
)
def test_words_are_compared_by_factor(model: str, tmp_path: Path) -> None:
    result = run("words", model, tmp_path)
    assert {name.split("/")[0] for name in result.metrics} == {"mammals", "vehicles"}
    assert set(result.chance.values()) == {0.5}
    factors = result.details["factors"]
    assert isinstance(factors, list)
    names = {figure.name for figure in result.figures}
    assert ("factors" in names) == (len(factors) > 1) == (model == "phyclip")
    assert any(name.startswith("disk_") for name in names)
