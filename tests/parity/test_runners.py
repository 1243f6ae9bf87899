"""The parity runners detect altered numbers, and refuse files of another kind with a reason."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.parity import lorentz, models, poincare

DATA = Path(__file__).parent / "data"


class Table(dict[str, np.ndarray]):
    """Arrays by name, with the `files` attribute of an npz."""

    @property
    def files(self) -> list[str]:
        return list(self)


def table(name: str) -> Table:
    with np.load(DATA / f"{name}.npz") as file:
        return Table({key: file[key] for key in file.files})


def with_error(values: np.ndarray) -> np.ndarray:
    """Copy `values` with the largest number increased by 2 %."""
    altered = values.copy()
    altered.flat[np.abs(altered).argmax()] *= 1.02
    return altered


def failing(rows: list[dict[str, Any]]) -> set[str]:
    return {row["name"] for row in rows if not row["error"] <= row["tolerance"]}


@pytest.mark.parametrize("name", ["c0/exp_map0", "c1/pairwise_dist", "c2/half_aperture", "c4/grad/oxy", "batch/rms_l2"])
def test_an_altered_number_of_the_lorentz_table_fails(name: str) -> None:
    altered = table("lorentz")
    altered[f"f64/{name}"] = with_error(altered[f"f64/{name}"])
    assert failing(lorentz.compare(altered)) == {name}


def test_a_function_that_is_missing_in_a_table_fails() -> None:
    lorentz_table, ball = table("lorentz"), table("poincare")
    del lorentz_table["f64/c1/log_map0"], ball["c2/ext_xy"]
    assert failing(lorentz.compare(lorentz_table)) == {"c1/log_map0"}
    assert failing(poincare.compare(ball)) == {"c2/ext_xy"}


@pytest.mark.parametrize(
    "keys",
    [
        ("head", "plain", "out", "loss"),
        ("head", "plain", "grad_scalar_float64", "curv"),
        ("head", "tiny", "out", "loss"),
        ("head", "incone", "out_float64", "entailment_loss"),
        ("grad_scalar", "mini", "logit_scale"),
        ("scalars_after_forward", "mini", "curv"),
        ("train_trace", 5, "loss"),
    ],
)
def test_an_altered_reference_number_of_a_model_fails(keys: tuple[str | int, ...]) -> None:
    cases = table("meru")
    meta = json.loads(str(cases["meta_json"]))
    parent = meta
    for key in keys[:-1]:
        parent = parent[key]
    parent[keys[-1]] = parent[keys[-1]] * 1.02 + 1e-3
    cases["meta_json"] = np.array(json.dumps(meta))
    assert models.compare(cases, sizes=("mini",)).failed()


def test_a_head_case_with_an_unknown_name_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = table("meru")
    meta = json.loads(str(cases["meta_json"]))
    inputs = models.head_inputs("plain", meta["seed"])
    monkeypatch.setattr(models, "head_inputs", lambda case, seed: inputs)
    meta["head"]["another"] = meta["head"]["plain"]
    meta["head"]["altered"] = meta["head"]["plain"] | {"out": {"loss": 0.0}, "out_float64": {"loss": 0.0}}
    for name, failed in (("another", []), ("altered", ["head altered float32"])):
        report = models.Report()
        models.compare_head(report, meta, cases, name, torch.float32)
        assert report.failed() == failed
        assert f"head {name} float32" in report.rows


@pytest.mark.parametrize("runner", [models, lorentz, poincare])
@pytest.mark.parametrize("name", ["metrics.npz", "text_cases.json", "nothing.npz"])
def test_a_file_of_another_kind_is_refused_with_a_reason_in_one_line(runner: Any, name: str) -> None:
    with pytest.raises(SystemExit, match=f"{name} (is not a|cannot be read)") as refusal:
        runner.main([str(DATA / name)])
    assert "\n" not in str(refusal.value)
