"""Grounder, scorer, input format and model of docs/extending.md, and what is loaded from where."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from hypergrit_common.cli import NOTHING_KEPT
from hypergrit_common.config import to_yaml
from hypergrit_common.errors import UserError
from pipeline import grit
from pipeline.config import load_config
from tests.docs.extending import FEW, PAGE, command, dropped, folder, read_json
from tests.pipeline.jobs import N_SCENES, run_job
from tests.trainer import small_run
from tests.trainer.conftest import free_port
from trainer import load_model
from trainer.config import load_config as load_training

pytestmark = pytest.mark.usefixtures("folder")
__all__ = ["folder", "free_port"]


def test_a_grounder_and_a_scorer_find_and_judge_boxes(tars: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    settings = [*command("run", "WholePicture"), *command("run", "MeanColour"), "score.min_clip_score=0"]
    assert run_job(tars, output, *settings) == 0
    rows = pa.ipc.open_file(output / "arrow" / "00000.arrow").read_all().to_pylist()
    boxes = [box for row in rows for box in row["boxes"] or ()]
    assert boxes
    assert {(box["x_min"], box["y_max"], box["score"]) for box in boxes} == {(0.0, 1.0, 1.0)}
    names = [plugin["name"] for plugin in read_json(output / "_manifests" / "00000.json")["provenance"]["plugins"]]
    assert names == ["my_package.boxes:WholePicture", "my_package.means:MeanColour"]


def test_an_input_format_is_read(tmp_path: Path) -> None:
    (tmp_path / "urls.pairs").write_text("ftp://example.org/a.jpg a cat on a mat\nno-caption\n", encoding="utf-8")
    settings = command("run", "my_package.pairs:Pairs")
    assert run_job(tmp_path / "urls.pairs", tmp_path / "out", *settings) == NOTHING_KEPT
    assert dropped(tmp_path / "out") == {"read": {"bad_row": 1}, "download": {"invalid_url": 1}}


def test_a_model_is_trained_and_loaded_again_only_by_its_name(tmp_path: Path) -> None:
    output = tmp_path / "run"
    name = "my_package.centred:CentredCLIP"
    settings = command("train", "Centred")
    assert settings == [f"model_name={name}", "model.centre_weight=0.5"]
    assert small_run.run(output, *settings, "steps=3") == 0
    row = json.loads((output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert "loss/centre" in row
    assert command("export", "Centred") == ["format=onnx", f"trust=[{name}]"]
    assert load_model(output, device="cpu", trust=[name]).name == name
    with pytest.raises(UserError, match="if you trust it, give trust="):
        load_model(output, device="cpu")
    with pytest.raises(UserError, match=r"on the command line, or give 'trust=\["):
        load_training([str(output / "config.yaml"), "shards=in"])
    paths = ("shards=in", "tokenizer=merges.txt")
    assert load_training([str(output / "config.yaml"), f"trust=[{name}]", *paths]).model_name == name


def test_a_triplet_loss_with_a_curvature_schedule_is_the_same_on_two_ranks(tmp_path: Path, free_port: int) -> None:
    (job,) = re.findall(r"```yaml\n# triplet.yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "triplet.yaml").write_text(job.replace("1000", "12").replace("500", "6"), encoding="utf-8")
    settings = (
        str(tmp_path / "triplet.yaml"),
        "model_name=my_package.triplet:TripletMERU",
    )  # in place of that of small runs
    assert yaml.safe_load(job)["model_name"] == "my_package.triplet:TripletMERU"
    assert small_run.run(tmp_path / "one", *settings) == 0
    assert small_run.run_forked(tmp_path / "two", *settings, port=free_port, faults=[None, None]) == [0, 0]
    one, two = ([json.loads(line) for line in (tmp_path / run / "metrics.jsonl").open()] for run in ("one", "two"))
    assert [row["schedule/curv_init"] for row in two] == pytest.approx([0.2 ** (step / 12) for step in range(12)])
    for name in ("loss/triplet", "loss/total", "geometry/curvature", "schedule/margin"):
        assert [row[name] for row in two] == pytest.approx([row[name] for row in one], rel=1e-3), name


def test_a_stream_of_texts_is_trained_because_terms_name_it(tmp_path: Path) -> None:
    (*_, name) = command("train", "small_machine")
    assert name == "model_name=my_package.pieces:PieceMERU"
    assert small_run.run(tmp_path / "run", name, "steps=3") == 0
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert {"loss/pieces/contrast", "loss/pieces/entailment"} <= row.keys()


def test_an_output_never_names_the_code_that_runs(tars: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert run_job(tars, output, FEW, "few_colours.min=2") == 0
    saved = str(output / "config.yaml")
    with pytest.raises(UserError, match=r'give \'trust=\["my_package\.colours:FewColours"\]\''):
        load_config([saved, f"input={tars}"])
    trusting = load_config([saved, f"trust=[my_package.colours:FewColours, {tars}]"])
    assert [stage.__name__ for stage in trusting.further] == ["FewColours"]
    assert "trust" not in to_yaml(trusting)
    assert [stage.__name__ for stage in load_config([saved, FEW, f"input={tars}"]).further] == ["FewColours"]
    forged = tmp_path / "forged" / "config.yaml"
    forged.parent.mkdir()
    for key in ("ground.grounder", "score.scorer", "read.format"):
        group, _, name = key.partition(".")
        forged.write_text(f"input: a\noutput: b\n{group}: {{{name}: 'os:system'}}\n", encoding="utf-8")
        with pytest.raises(UserError, match=rf"{key}=os:system, which is not followed"):
            load_config([str(forged)])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_package.colours:Few", "there is no module 'no_package'"),
        ("my_package.nothing:Few", r"there is no module 'my_package\.nothing'"),
        ("my_package.colours:Many", "has no class 'Many'"),
        ("my_package.colours:ColoursConfig", "is no Stage"),
        ("my_package.colours", "give module:Class"),
        ("my_package.broken:Few", "ZeroDivisionError"),
        ("my_package.taken:Taken", "two stages are called 'parse'"),
        ("my_package.taken:Key", "a key of the job is called 'input'"),
        ("my_package.taken:Lost", "lacks methods of Stage: __call__"),
    ],
)
def test_a_stage_that_cannot_be_used_is_explained(folder: Path, name: str, message: str) -> None:
    (folder / "my_package" / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    code = (
        "from my_package.colours import FewColours\nfrom pipeline import Stage\nclass Taken(FewColours):\n    name = "
        "'parse'\nclass Key(FewColours):\n    name = 'input'\nclass Lost(Stage):\n    name = 'lost'\n"
    )
    (folder / "my_package" / "taken.py").write_text(code, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load_config(["input=in", "output=out", f"stages=[{name}]"])


@pytest.mark.rest
def test_the_workers_of_ray_import_a_stage(tars: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    settings = [f"input={tars}", f"output={output}", "rows_per_shard=4", FEW, "few_colours.min=1000000", "quiet=true"]
    assert grit.main(settings) == NOTHING_KEPT
    assert dropped(output)["few_colours"] == {"too_few": N_SCENES}
