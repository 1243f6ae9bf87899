"""Tests of the trainer's demo: data, job files and table. Training itself is tested in tests/trainer."""

import io
import shutil
import tarfile
from itertools import islice
from pathlib import Path

import PIL.Image
import pytest

from demo.train_demo import format_table, job_files, keep, run_name
from demo.train_demo_data import (
    DataConfig,
    is_current,
    make_data,
    object_pictures,
    record_settings,
    scene_levels,
    settings_path,
    write_pairs,
    write_pictures,
)
from demo.world.scenes import HELD_OUT_SEEDS, make_scene, scene_stream
from demo.world.vocabulary import CONCEPTS, levels_of
from hypergrit_common.json_file import read_object, write_object
from hypergrit_common.version import hypergrit_version
from trainer.config import load_config
from trainer.inference.model import load_model
from trainer.models.registry import MODELS
from trainer.training.build import build_tokenizer, new_model

ROOT = Path(__file__).parents[2]


def test_pairs_are_images_with_their_captions(tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.tar", 3, HELD_OUT_SEEDS, ("openmoji",))
    with tarfile.open(tmp_path / "pairs.tar") as tar:
        assert tar.getnames() == [f"{i:05d}.{kind}" for i in range(3) for kind in ("jpg", "txt", "json")]
        image, text = tar.extractfile("00001.jpg"), tar.extractfile("00001.txt")
        assert image and text  # noqa: PT018 (one sample)
        assert text.read().decode() == make_scene(HELD_OUT_SEEDS[1], "openmoji").caption
        assert PIL.Image.open(io.BytesIO(image.read())).size == (224, 224)


def test_levels_are_the_way_of_the_largest_object_in_the_tree_of_wordnet() -> None:
    assert levels_of("car")[:4] == ["physical entity", "object", "whole", "artifact"]
    assert levels_of("car")[-3:] == ["self-propelled vehicle", "motor vehicle", "car"]
    scene = make_scene(HELD_OUT_SEEDS[1], "openmoji")
    areas = {(obj.box[2] - obj.box[0]) * (obj.box[3] - obj.box[1]): obj.concept for obj in scene.objects}
    assert scene_levels(scene)[-1] == areas[max(areas)]
    depths = {(name, depth) for concept in CONCEPTS for depth, name in enumerate(levels_of(concept.name)[:-1])}
    assert len(depths) >= len({name for name, _ in depths}) > 200


def test_every_concept_has_a_square_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = islice(scene_stream(HELD_OUT_SEEDS[0], ("openmoji",)), 9)  # all concepts would take hundreds of scenes
    shown = {obj.concept for scene in first for obj in scene.objects}
    some = [concept for concept in CONCEPTS if concept.name in shown]
    monkeypatch.setattr("demo.train_demo_data.CONCEPTS", some)
    write_pictures(tmp_path, HELD_OUT_SEEDS[0], DataConfig(pictures=1, picture_px=32, min_side_px=1))
    found = sorted(tmp_path.glob("*/*.png"))
    assert [path.parent.name for path in found] == sorted(concept.name for concept in some)
    assert {PIL.Image.open(path).size for path in found} == {(32, 32)}


def test_pictures_show_only_objects_of_the_minimum_size() -> None:
    config = DataConfig(min_side_px=60)
    scene = make_scene(HELD_OUT_SEEDS[5], "openmoji")
    sides = {obj.concept: max(obj.box[2] - obj.box[0], obj.box[3] - obj.box[1]) for obj in scene.objects}
    shown = [name for name, _ in object_pictures(scene, config)]
    assert all(sides[name] >= 60 for name in shown)
    assert len(shown) < len(scene.objects)


def test_output_of_other_settings_is_not_current(tmp_path: Path) -> None:
    output = tmp_path / "pairs.tar"
    record_settings(output, {"rows": 3})
    assert not is_current(output, {"rows": 3})  # the settings file alone is not sufficient
    output.write_bytes(b"")
    assert is_current(output, {"rows": 3})
    assert not is_current(output, {"rows": 4})


def test_finished_shards_are_reused_and_interrupted_ones_generated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, calls = DataConfig(train_rows=2, held_out_rows=1), []

    def make(folder: Path) -> None:
        folder.mkdir(parents=True)
        calls.append(folder.name)

    monkeypatch.setattr("demo.train_demo_data.make_shards", lambda _, output: make(output))
    monkeypatch.setattr("demo.train_demo_data.write_pictures", lambda folder, *_: make(folder))
    make_data(tmp_path, config)
    make_data(tmp_path, config)
    assert calls == ["train", "held_out", "concepts"]
    make_data(tmp_path, DataConfig(train_rows=3, held_out_rows=1))
    assert calls[3:] == ["train", "concepts"]  # its settings name the number of rows too
    settings_path(tmp_path / "shards" / "held_out").unlink()  # as after an interruption
    (tmp_path / "shards" / "held_out").rmdir()
    make_data(tmp_path, DataConfig(train_rows=3, held_out_rows=1))
    assert calls[5:] == ["held_out"]


def test_a_kept_model_names_its_command_and_no_folder_of_this_machine(tmp_path: Path) -> None:
    run = tmp_path / "elsewhere" / "hycoclip"
    shutil.copytree(ROOT / "tests" / "trainer" / "finished_run", run)
    config = read_object(run / "model" / "config.json")
    config["record"]["training"] = {"output": str(run), "evaluation": {"image_folders": [f"{run.parent}/concepts"]}}
    write_object(config, run / "model" / "config.json")
    keep(run, tmp_path / "kept", "python -m demo.train_demo --model hycoclip")
    record = load_model(tmp_path / "kept", device="cpu").record
    assert record["training"] == {
        "output": "out/train_demo/hycoclip",
        "evaluation": {"image_folders": ["out/train_demo/concepts"]},
    }
    assert record["version"] == hypergrit_version()
    assert record["command"] == "python -m demo.train_demo --model hycoclip"
    assert "license: cc-by-sa-4.0" in (tmp_path / "kept" / "README.md").read_text("utf-8")
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (tmp_path / "kept", run / "model")]
    assert sizes[0] < 0.7 * sizes[1]


@pytest.mark.parametrize("model", MODELS)
def test_job_files_build_the_model(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = load_config([*job_files(model, few_steps=True), f"model_name={model}"])
    assert build_tokenizer(config).vocab_size == config.model.text.vocab_size
    assert sum(parameter.numel() for parameter in new_model(config).parameters()) < 3_000_000


def test_miniatures_are_heads_or_towers_with_the_deviations_that_their_models_have() -> None:
    found = {
        name: [Path(file).stem for file in job_files(name, few_steps=True)] for name in ("clip", "uncha", "phyclip")
    }
    assert found == {
        "clip": ["base"],
        "uncha": ["base", "few_steps"],
        "phyclip": ["base", "few_steps", "few_steps_boxes"],
    }
    assert [Path(file).stem for file in job_files("phyclip")] == ["heads", "head"]
    assert [Path(file).stem for file in job_files("taxonomy")] == ["base", "few_steps"]


def test_a_miniature_with_another_loss_does_not_bear_the_name_of_its_paper() -> None:
    found = {run_name(name) for name in MODELS}
    assert found == set(MODELS) - {"hyper3"} | {"hyper3-few-steps"}  # the loss of taxonomy is ours
    assert run_name("clip", few_steps=True) == "clip-few-steps"


def test_table_shows_each_metric_beside_its_chance_level() -> None:
    metrics = {
        "zero_shot/zero_shot/accuracy": 0.5,
        "zero_shot/zero_shot/accuracy_micro": 0.4,
        "zero_shot/zero_shot/chance": 0.01,
        "retrieval/text_to_image/recall@5": 0.75,
        "retrieval/text_to_image/chance@5": 0.02,
        "entailment/cross_image/order": 0.9,
        "entailment/cross_image/auc": 0.8,
        "entailment/cross_image/chance": 0.5,
    }
    header, *rows = format_table("hycoclip", metrics).splitlines()
    assert header.split() == ["hycoclip", "model", "chance"]
    assert [row.split()[-4:] for row in rows] == [
        ["50.0", "%", "1.0", "%"],
        ["75.0", "%", "2.0", "%"],
        ["90.0", "%", "50.0", "%"],
        ["80.0", "%", "50.0", "%"],
    ]
    assert rows[2].startswith("box > image: nearer the root")
    assert rows[3].startswith("box > image: auc")
