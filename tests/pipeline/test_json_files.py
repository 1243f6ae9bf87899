"""The JSON files of a job have exactly the fields and types that schemas declares."""

import json
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from hypergrit_common.lease import new_lease
from schemas.files import (
    JOB_FILE,
    MANIFEST_FILE,
    RUN_TIMINGS_FILE,
    STATS_FILE,
    TIMINGS_FILE,
    TRAIN_ANNOTATIONS,
    TrainAnnotations,
)
from schemas.job import JobRecord, LeaseRecord
from schemas.manifest import Manifest, RunTimings, Timings
from schemas.stats import Statistics
from tests.pipeline.jobs import jsons


def mismatch(value: Any, hint: Any, path: str) -> str:
    """Describe the first JSON value, at or below `path`, whose type is not `hint`; empty if all types are correct."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Annotated, NotRequired):
        return mismatch(value, arguments[0], path)
    if is_typeddict(hint):
        return mismatch_of_object(value, hint, path)
    if origin is UnionType:
        return "" if any(not mismatch(value, option, path) for option in arguments) else f"{path}: {value!r}"
    if origin is Literal:
        return "" if value in arguments else f"{path}: {value!r}"
    if origin is dict and isinstance(value, dict):
        return next(filter(None, (mismatch(item, arguments[1], f"{path}.{name}") for name, item in value.items())), "")
    if origin is list and isinstance(value, list):
        return next(filter(None, (mismatch(item, arguments[0], f"{path}[{i}]") for i, item in enumerate(value))), "")
    if origin is tuple and isinstance(value, list) and len(value) == len(arguments):
        return next(filter(None, (mismatch(*pair, path) for pair in zip(value, arguments, strict=True))), "")
    if hint is Any or (origin is None and isinstance(value, (int, float) if hint is float else hint)):
        return ""
    return f"{path}: {value!r} is not {hint}"


def mismatch_of_object(value: Any, kind: Any, path: str) -> str:
    if not isinstance(value, dict) or not kind.__required_keys__ <= value.keys():
        return f"{path} lacks fields: {value!r}"
    hints = get_type_hints(kind, include_extras=True)
    if unknown := sorted(value.keys() - hints.keys()):
        return f"{path} has unknown fields: {unknown}"
    return next(filter(None, (mismatch(item, hints[name], f"{path}.{name}") for name, item in value.items())), "")


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        (MANIFEST_FILE.path(1), Manifest),
        (TIMINGS_FILE.path(1), Timings),
        (RUN_TIMINGS_FILE, RunTimings),
        (JOB_FILE, JobRecord),
        (STATS_FILE, Statistics),
    ],
)
def test_a_json_file_has_the_declared_type(finished: Path, file: str, kind: Any) -> None:
    assert mismatch(json.loads((finished / file).read_text()), kind, file) == ""


def test_a_lease_has_the_declared_type() -> None:
    assert mismatch(json.loads(new_lease()), LeaseRecord, "lease") == ""


def test_the_annotations_of_a_training_sample_have_the_declared_type(finished: Path) -> None:
    samples = jsons(finished / "train" / "00000.tar", f".{TRAIN_ANNOTATIONS}")
    assert samples
    assert [mismatch(sample, TrainAnnotations, "sample") for sample in samples] == [""] * len(samples)


def test_a_value_of_another_type_is_found() -> None:
    assert (
        mismatch({"stage": {"seconds": "1", "rows": 1.0}}, Timings, "t")
        == "t.stage.seconds: '1' is not <class 'float'>"
    )
    assert mismatch({"stage": {"seconds": 1.0}}, Timings, "t").startswith("t.stage lacks fields")
    assert mismatch({"wall_seconds": 1.0, "x": 2}, RunTimings, "r") == "r has unknown fields: ['x']"
