import os
from pathlib import Path

import pytest

from common.errors import UserError
from common.paths import absolute, chdir_hook, check_output_is_absolute


def test_paths_begin_at_the_root_and_urls_end_without_slashes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("a/../b/") == str(tmp_path / "b")
    assert absolute("s3://bucket/b/") == "s3://bucket/b"


def test_a_relative_output_is_lost_in_a_ray_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    check_output_is_absolute("out", "an absolute path")
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    check_output_is_absolute("/out", "an absolute path")
    check_output_is_absolute("s3://bucket/out", "an absolute path")
    with pytest.raises(UserError, match=r"output=out is relative.*Give an absolute path, such as output=\$PWD/out"):
        check_output_is_absolute("out", "an absolute path")


def test_a_worker_stands_where_the_job_was_started_if_that_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path)
    chdir_hook(str(tmp_path / "elsewhere"))()
    assert os.getcwd() == str(tmp_path)
    chdir_hook(str(tmp_path / "project"))()
    assert os.getcwd() == str(tmp_path / "project")
