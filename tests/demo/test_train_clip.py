"""Training of the miniature CLIP by the trainer, on a short run."""

import json
import math
import sys
from pathlib import Path
from statistics import fmean

import pytest

from demo import train_clip
from demo.train_glip import copy_image_tower
from demo.world.sprites import TRAIN_STYLES
from demo.world.wide.scenes import mixed_stream
from hypergrit_common.json_file import read_object
from pipeline.stages.ground.glip.config import MINIATURE
from pipeline.stages.ground.glip.model import Glip
from trainer.config import load_config
from trainer.inference.model import load_model


def test_the_boxes_of_a_scene_are_those_of_its_phrases() -> None:
    scene = next(mixed_stream(0, TRAIN_STYLES, step=1, curriculum=train_clip.PLAIN, wide_share=0.0))
    fields = train_clip.grit_fields(scene)
    chunks = fields["noun_chunks"]
    assert isinstance(chunks, list)
    assert len(chunks) == sum(len(phrase.objects) for phrase in scene.phrases) > 0
    for start, end, x_min, y_min, x_max, y_max, score in chunks:
        assert scene.caption[start:end].strip()
        assert 0 <= x_min < x_max <= 1
        assert 0 <= y_min < y_max <= 1
        assert score == 1


@pytest.mark.parametrize("whole", [False, True])
def test_a_tower_of_whole_scenes_sees_no_boxes(whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    monkeypatch.setattr(train_clip, "run_verb", lambda _, arguments: found.extend(arguments))
    command = ["train_clip", "--out", str(tmp_path), "--shards", str(tmp_path / "scenes"), *["--whole"] * whole]
    monkeypatch.setattr(sys, "argv", command)
    assert train_clip.main() == 0
    config = load_config(found)
    assert config.model.boxes_as_pairs == (not whole)
    assert config.data.shards == str(tmp_path / "scenes")
    assert (config.data.crop_scale == (1.0, 1.0)) == whole


@pytest.mark.rest
@pytest.mark.slow
def test_a_short_training_lowers_the_loss_and_gives_the_tower_of_the_grounder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run, kept = tmp_path / "clip", tmp_path / "kept"
    settings = ["batch_size=16", "optim.warmup_steps=4", "log.every=1", "data.workers=0", "evaluation.every=0"]
    command = ["train_clip", "--out", str(tmp_path), "--scenes", "60", "--keep", str(kept)]
    monkeypatch.setattr(sys, "argv", [*command, *settings, "optim.steps=40"])
    assert train_clip.main() == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    losses = [row["loss/total"] for row in rows if "loss/total" in row]
    assert len(losses) == 40
    assert fmean(losses[-5:]) < 0.97 * math.log(32)  # that of equal points: 16 pairs and 16 boxes
    drawn = {path: path.stat().st_mtime_ns for path in tmp_path.glob("scenes/*/*.tar")}
    assert len(drawn) == 2
    assert "zero-shot accuracy" in capfd.readouterr().out
    train_clip.make_data(tmp_path, 60)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("scenes/*/*.tar")} == drawn
    record = read_object(kept / "config.json")["record"]
    assert record["command"].startswith("python -m demo.train_clip --keep")
    assert str(tmp_path) not in json.dumps(record["training"])
    assert load_model(kept, device="cpu").embed_dim == 128
    assert copy_image_tower(Glip(MINIATURE), kept / "model.safetensors") > 40
