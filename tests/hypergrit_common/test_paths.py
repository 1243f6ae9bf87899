"""Paths of a job: absolute, checked for Ray jobs, resolved alike by all workers."""

import os
from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.paths import absolute, chdir_hook, check_input_is_absolute, check_output_is_absolute


def test_absolute_resolves_paths_and_strips_slashes_from_urls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("a/../b/") == str(tmp_path / "b")
    assert absolute("s3://bucket/b/") == "s3://bucket/b"
    assert absolute("file:///data/b/") == "file:///data/b"
    assert absolute("file://a/b") == absolute("local://a/b") == str(tmp_path / "a" / "b")


def test_a_relative_output_is_refused_only_in_a_ray_job(monkeypatch: pytest.MonkeyPatch) -> None:
    check_output_is_absolute("out", "an absolute path")
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    check_output_is_absolute("/out", "an absolute path")
    check_output_is_absolute("s3://bucket/out", "an absolute path")
    with pytest.raises(UserError, match=r"output=out is relative.*Give an absolute path, such as output=\$PWD/out"):
        check_output_is_absolute("out", "an absolute path")
    with pytest.raises(UserError, match=r"output=file://out is relative.*such as output=\$PWD/out"):
        check_output_is_absolute("file://out", "an absolute path")


def test_a_relative_input_is_refused_only_in_a_ray_job(monkeypatch: pytest.MonkeyPatch) -> None:
    check_input_is_absolute("pairs.parquet")
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    check_input_is_absolute("/data/pairs.parquet")
    check_input_is_absolute("s3://bucket/pairs.parquet")
    with pytest.raises(UserError, match=r"input=a/b\.csv is relative, .* such as input=\$PWD/a/b\.csv, or a URL"):
        check_input_is_absolute("a/b.csv")
    check_input_is_absolute("file:///data/b.csv")
    with pytest.raises(UserError, match=r"input=local://a/b\.csv is relative, .* such as input=\$PWD/a/b\.csv"):
        check_input_is_absolute("local://a/b.csv")
    with pytest.raises(UserError, match=r"such as input=~/a, or a URL"):
        check_input_is_absolute("~/a")


def test_workers_change_to_the_folder_of_the_job_if_it_exists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path)
    chdir_hook(str(tmp_path / "elsewhere"))()
    assert os.getcwd() == str(tmp_path)
    chdir_hook(str(tmp_path / "project"))()
    assert os.getcwd() == str(tmp_path / "project")
