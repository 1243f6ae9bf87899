"""The stages and drop reasons of docs/extending.md: they are short, and run in a job as the page says."""

import re
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from hypergrit.__main__ import main as hypergrit
from hypergrit_common.cli import NOTHING_KEPT
from hypergrit_common.errors import UserError
from pipeline import grit
from pipeline.commands import dry_run
from pipeline.commands.rewrite import main as refilter
from pipeline.config import PipelineConfig, load_config
from tests.docs.extending import EXAMPLES, FEW, PAGE, command, dropped, folder, read_json
from tests.pipeline.jobs import N_SCENES, run_job

MOST_LINES = {"my_package/triplet.py": 45}
"""30 for the others."""
pytestmark = pytest.mark.usefixtures("folder")
__all__ = ["folder"]


def test_every_component_has_a_short_example() -> None:
    titles = re.findall(r"^### (.*)$", PAGE, re.MULTILINE)
    assert titles[:7] == [
        "A stage",
        "A drop reason",
        "A grounder",
        "A scorer",
        "A score",
        "An input format",
        "A model or a loss",
    ]
    assert len(EXAMPLES) == 8
    assert {name: n for name, code in EXAMPLES.items() if (n := code.count("\n") + 1) > MOST_LINES.get(name, 30)} == {}


def test_a_stage_drops_rows_for_a_reason_that_every_reader_knows(
    tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert run_job(tars, output, *command("run", "FewColours"), "few_colours.min=1000000") == NOTHING_KEPT
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


@pytest.mark.rest
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


@pytest.mark.rest
def test_commands_on_an_output_leave_its_code_alone(tars: Path, folder: Path, tmp_path: Path) -> None:
    output, other = tmp_path / "out", tmp_path / "other"
    assert run_job(tars, output, FEW, "few_colours.min=2") == 0
    shutil.rmtree(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]
    assert refilter([f"source={output}", f"output={other}", "score.min_score=0.9", "ray.runner=local"]) == NOTHING_KEPT
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


def test_a_dry_run_counts_the_drops_of_a_stage(tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config(
        [
            f"input={tars}",
            f"output={tmp_path / 'out'}",
            "ray.runner=local",
            FEW,
            "few_colours.min=1000000",
            "dry_run=true",
            "quiet=true",
        ]
    )
    assert isinstance(config, PipelineConfig)
    assert dry_run.dry_run(config) == 0
    assert re.search(r"few_colours: too_few +9 +90.0%", capsys.readouterr().out)


def test_a_setting_of_a_stage_is_never_a_runtime_setting(folder: Path) -> None:
    code = EXAMPLES["my_package/colours.py"].replace("min: int = 8", "min: int = runtime(8)")
    path = folder / "my_package" / "runtime_colours.py"
    path.write_text(f"from hypergrit_common.config import runtime\n{code}", encoding="utf-8")
    with pytest.raises(UserError, match=r"few_colours\.min is marked as runtime"):
        load_config(["input=a.csv", "output=out", "stages=[my_package.runtime_colours:FewColours]"])
