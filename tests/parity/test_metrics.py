"""The runner of the evaluation metrics accepts the reference and detects altered numbers."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.parity import metrics
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
