"""The examples of docs/extending.md: they are short, and run in a job and in a training as the page says."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hypergrit.__main__ import main as hypergrit
from hypergrit_common.errors import UserError
from pipeline import grit
from pipeline.commands import dry_run
from pipeline.commands.rewrite import main as refilter
from pipeline.config import PipelineConfig, config_class, load_config
from pipeline.read import listing
from tests.pipeline.jobs import N_SCENES, run_job
from tests.trainer import small_run
from trainer import load_model
from trainer.models import registry

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"```python\n# (my_package/\w+\.py)\n(.*?)```\n", PAGE, re.DOTALL))
FEW = "stages=[my_package.colours:FewColours]"
MOST_LINES = 30


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the package of the page, which processes of this test can import."""
    for name, code in EXAMPLES.items():
        path = tmp_path / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "code"))
    formats, models = dict(listing.FORMATS), dict(registry.ENTRIES)
    yield tmp_path / "code"
    for registered, before in ((listing.FORMATS, formats), (registry.ENTRIES, models)):
        registered.clear()  # type: ignore[attr-defined]
        registered.update(before)  # type: ignore[attr-defined]
    config_class.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]


def command(verb: str, word: str) -> list[str]:
    """The `key=value` arguments of the command of the page that contains `word`, without input and output."""
    (line,) = [line for line in re.findall(rf"^    hypergrit {verb} (.*)$", PAGE, re.MULTILINE) if word in line]
    return [item for item in shlex.split(line) if "=" in item and not item.startswith(("input=", "output=", "shards="))]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def dropped(output: Path) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = read_json(output / "stats.json")["rows"]["dropped"]
    return counts


def test_every_component_has_a_short_example() -> None:
    titles = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    assert titles[:6] == [
        "A stage",
        "A drop reason",
        "A grounder",
        "A scorer",
        "An input format",
        "A model of the trainer",
    ]
    assert len(EXAMPLES) == 6
    assert {name: n for name, code in EXAMPLES.items() if (n := code.count("\n") + 1) > MOST_LINES} == {}


def test_a_stage_drops_rows_for_a_reason_that_every_reader_knows(
    tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert run_job(tars, output, *command("run", "FewColours"), "few_colours.min=1000000") == grit.NOTHING_KEPT
    assert dropped(output)["few_colours"] == {"too_few": N_SCENES}
    stats = read_json(output / "stats.json")
    assert list(stats["stages"])[:4] == ["read", "download", "few_colours", "captions"]
    page = (output / "report.html").read_text(encoding="utf-8")
    assert "the picture has fewer colours than few_colours.min" in page
    table = pa.ipc.open_file(output / "arrow" / "00000.arrow").read_all()
    row = next(row for row in table.to_pylist() if row["stage"] == "few_colours")
    assert row["image"] is None
    assert row["detail"].endswith(" colours")
    manifest = read_json(output / "_manifests" / "00000.json")
    (plugin,) = manifest["provenance"]["plugins"]
    assert plugin["name"] == "my_package.colours:FewColours"
    assert plugin["after"] == "download"
    capsys.readouterr()
    assert hypergrit(["verify", str(output)]) == 0
    assert hypergrit(["explore", str(output), f"row={row['key']}"]) == 0
    assert "few_colours: too_few" in capsys.readouterr().out


def test_a_stage_that_drops_nothing_leaves_the_rows_as_they_are(tars: Path, finished: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert run_job(tars, output, FEW, "few_colours.min=2") == 0
    name = "arrow/00001.arrow"
    with_stage, without = (pa.ipc.open_file(folder / name).read_all() for folder in (output, finished))
    assert with_stage.equals(without)


def test_help_lists_the_settings_of_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert grit.main(["--help", FEW]) == 0
    text = capsys.readouterr().out
    assert "few_colours.min = 8\n      smallest number of colours of a picture" in text


def test_a_drop_reason_is_counted_by_its_name(tars: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert run_job(tars, output, "stages=[my_package.grey:ColoursOrGrey]", "few_colours.min=30000") in (0, 4)
    assert set(dropped(output)["few_colours"]) <= {"too_few", "grey"}
    reasons = read_json(output / "_manifests" / "00000.json")["provenance"]["plugins"][0]["reasons"]
    assert set(reasons) == {"too_few", "grey"}


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
    assert run_job(tmp_path / "urls.pairs", tmp_path / "out", *settings) == grit.NOTHING_KEPT
    assert dropped(tmp_path / "out") == {"read": {"bad_row": 1}, "download": {"invalid_url": 1}}


def test_a_model_is_trained_and_loaded_again_only_by_its_name(tmp_path: Path) -> None:
    output = tmp_path / "run"
    name = "my_package.centred:CentredCLIP"
    assert command("train", "Centred") == [f"model_name={name}"]
    assert small_run.run(output, f"model_name={name}", "steps=3", "model.centre_weight=0.5") == 0
    row = json.loads((output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert "loss/centre" in row
    assert load_model(output, name, device="cpu").name == name
    registry.ENTRIES.pop(name)
    with pytest.raises(UserError, match="if you trust its code"):
        load_model(output, device="cpu")
    with pytest.raises(UserError, match="on the command line too"):
        small_run.small_config(tmp_path / "other", str(output / "config.yaml"))


def test_an_output_never_names_the_code_that_runs(tars: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert run_job(tars, output, FEW, "few_colours.min=2") == 0
    saved = str(output / "config.yaml")
    with pytest.raises(UserError, match=r"stages with my_package\.colours:FewColours on the command line too"):
        load_config([saved])
    assert [stage.__name__ for stage in load_config([saved, FEW]).further] == ["FewColours"]
    forged = tmp_path / "forged" / "config.yaml"
    forged.parent.mkdir()
    for key in ("ground.grounder", "score.scorer", "read.format"):
        group, _, name = key.partition(".")
        forged.write_text(f"input: a\noutput: b\n{group}: {{{name}: 'os:system'}}\n", encoding="utf-8")
        with pytest.raises(UserError, match="names code of its own"):
            load_config([str(forged)])


def test_commands_on_an_output_leave_its_code_alone(tars: Path, folder: Path, tmp_path: Path) -> None:
    output, other = tmp_path / "out", tmp_path / "other"
    assert run_job(tars, output, FEW, "few_colours.min=2") == 0
    shutil.rmtree(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]
    assert refilter([f"source={output}", f"output={other}", "score.min_score=0.9", "ray.runner=local"]) == 0
    provenances = [read_json(where / "_manifests" / "00000.json")["provenance"] for where in (output, other)]
    assert provenances[0]["plugins"] == provenances[1]["plugins"]
    assert hypergrit(["verify", str(other)]) == 0
    (tmp_path / "list.txt").write_text(f"{read_keys(other)}\n", encoding="utf-8")
    assert hypergrit(["takedown", str(other), f"list={tmp_path / 'list.txt'}", "ray.runner=local"]) == 0


def read_keys(output: Path) -> str:
    """Return the hash of an image of an output."""
    rows = pa.ipc.open_file(output / "arrow" / "00000.arrow").read_all().to_pylist()
    return str(next(row["sha256"] for row in rows if row["sha256"]))


def test_changed_code_is_another_setting(tars: Path, folder: Path, tmp_path: Path) -> None:
    assert run_job(tars, tmp_path / "out", FEW, "few_colours.min=2") == 0
    assert run_job(tars, tmp_path / "out", FEW, "few_colours.min=2") == 0  # nothing is computed
    with (folder / "my_package" / "colours.py").open("a") as file:
        file.write("# changed\n")
    assert run_job(tars, tmp_path / "out", FEW, "few_colours.min=2") == 2
    assert run_job(tars, tmp_path / "out", FEW, "few_colours.min=2", "overwrite=true") == 0


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


def test_a_dry_run_counts_the_drops_of_a_stage(tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config(
        [
            f"input={tars}",
            f"output={tmp_path / 'out'}",
            "ray.runner=local",
            FEW,
            "few_colours.min=1000000",
            "quiet=true",
        ]
    )
    assert isinstance(config, PipelineConfig)
    assert dry_run.dry_run(config) == 0
    assert re.search(r"few_colours: too_few +9 ", capsys.readouterr().out)


def test_the_workers_of_ray_import_a_stage(tars: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    settings = [f"input={tars}", f"output={output}", "rows_per_shard=4", FEW, "few_colours.min=1000000", "quiet=true"]
    assert grit.main(settings) == grit.NOTHING_KEPT
    assert dropped(output)["few_colours"] == {"too_few": N_SCENES}
