"""The runner of the evaluation metrics accepts the reference and detects altered numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.parity import metrics, models
from tests.parity.metrics_arrays import LAYOUT
from tests.parity.test_runners import Table, table, with_error

FILE = Path(__file__).parent / "data" / "metrics.npz"


def test_the_reference_is_within_the_tolerance(capsys: pytest.CaptureFixture[str]) -> None:
    assert metrics.main([str(FILE)]) == 0
    assert "groups within the tolerance" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("zs/meru/classifier", "zero-shot meru classifier"),
        ("zs/phyclip/scores", "zero-shot phyclip scores"),
        ("zs/phyclip/l1_distance", "zero-shot phyclip l1 distance"),
        ("retr/clip/t2i_scores", "retrieval clip t2i scores"),
    ],
)
def test_an_altered_array_fails_its_group(name: str, group: str) -> None:
    altered = table("metrics")
    altered[name] = with_error(altered[name])
    assert group in metrics.compare(altered).failed()


@pytest.mark.parametrize(
    ("keys", "group"),
    [
        (("zs", "phyclip", "mean_per_class_accuracy"), "zero-shot phyclip accuracy"),
        (("retrieval", "meru", "t2i_r2"), "retrieval meru t2i recall"),
    ],
)
def test_an_altered_share_fails_its_group(keys: tuple[str, ...], group: str) -> None:
    altered = table("metrics")
    meta = json.loads(str(altered["meta_json"]))
    parent = meta
    for key in keys[:-1]:
        parent = parent[key]
    parent[keys[-1]] -= 1.0
    altered["meta_json"] = np.array(json.dumps(meta))
    assert metrics.compare(altered).failed() == [group]


def test_a_missing_array_fails() -> None:
    altered: Table = table("metrics")
    del altered["retr/owner"]
    assert metrics.compare(altered).failed() == ["missing entries"]


@pytest.mark.parametrize("name", ["lorentz.npz", "text_cases.json", "nothing.npz"])
def test_a_file_of_another_kind_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(SystemExit, match=f"{name} (is not a|cannot be read)") as refusal:
        metrics.main([str(FILE.parent / name)])
    assert "\n" not in str(refusal.value)


def test_help_and_missing_arguments_end_as_those_of_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    for runner in (metrics, models):
        for arguments, code in ((["--help"], 0), ([], 2)):
            with pytest.raises(SystemExit) as end:
                runner.main(arguments)
            assert end.value.code == code
            assert "usage:" in "".join(capsys.readouterr())


@pytest.mark.parametrize(("runner", "name"), [(metrics, "metrics"), (models, "clip")])
def test_a_flipped_byte_is_a_line_that_names_the_file(runner: Any, name: str, tmp_path: Path) -> None:
    content = bytearray((FILE.parent / f"{name}.npz").read_bytes())
    content[len(content) // 2] ^= 0xFF
    path = tmp_path / "flipped.npz"
    path.write_bytes(content)
    with pytest.raises(SystemExit, match=r"flipped\.npz cannot be read as an npz of numbers") as refusal:
        runner.main([str(path)])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", LAYOUT)
def test_an_array_of_another_shape_fails_its_group_and_the_others_go_on(name: str) -> None:
    altered = table("metrics")
    altered[name] = altered[name][..., None]
    report = metrics.compare(altered)
    assert name in report.failed()
    assert sum(group not in report.failed() for group in report.rows) >= 8


@pytest.mark.parametrize("name", ["zs/labels", "retr/owner", "trav/meru/pool", "zs/clip/scores", "hier/pairwise"])
def test_a_shorter_array_fails_its_group(name: str) -> None:
    altered = table("metrics")
    altered[name] = altered[name][:-1]
    assert metrics.compare(altered).failed()


@pytest.mark.parametrize("name", [name for name in LAYOUT if table("metrics")[name].dtype.kind == "f"])
def test_nan_in_the_first_number_fails(name: str) -> None:
    altered = table("metrics")
    altered[name] = altered[name].copy()
    altered[name].flat[0] = np.nan
    assert name in metrics.compare(altered).failed()
