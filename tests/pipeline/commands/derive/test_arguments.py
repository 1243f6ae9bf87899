"""The arguments of a command: which are outputs, and which are options."""

import shutil
from pathlib import Path

import pytest

from pipeline.commands import rewrite, takedown
from pipeline.commands.frame import is_option, take_output
from pipeline.grit import main as run_main
from tests.pipeline.commands.derive.rows import rows_of
from tests.pipeline.commands.derive.scenes import write_output

LOCAL = ("ray.runner=local", "ray.cpu_workers=1")


@pytest.mark.parametrize(
    ("argument", "option"),
    [
        ("out/demo", False),
        ("out/dt=2024-01-01/demo", False),
        ("./dt=2024-01-01", False),
        ("s3://bucket/dt=2024-01-01/demo", False),
        ("list=s3://bucket/dt=2024-01-01/list.txt", True),
        ("download.timeout_s=60", True),
        (f"reasons=[{'timeout,' * 1000}]", True),
    ],
)
def test_a_path_with_an_equals_sign_is_no_option(argument: str, option: bool) -> None:
    assert is_option(argument) == option


def test_commands_take_an_output_whose_path_has_an_equals_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_output(tmp_path / "dt=2024" / "a")
    shutil.copytree("dt=2024/a", "dt=2024/b")
    assert take_output(["dt=2024", "dry_run=true"], "") == (str(tmp_path / "dt=2024"), ["dry_run=true"])
    (tmp_path / "dt=2024" / "list=1.txt").write_text("http://example.com/2.jpg\n")
    assert takedown.main(["dt=2024/b", "list=dt=2024/list=1.txt", *LOCAL]) == 0
    assert {row["key"] for row in rows_of(tmp_path / "dt=2024/b") if row["reason"] == "taken_down"} == {"000000000002"}
    assert run_main(["retry=true", "output=dt=2024/b"]) == 2
    assert "dt=2024/b/_job.json does not exist" in capsys.readouterr().err
    against = "against=dt=2024/list=1.txt"
    assert rewrite.main(["source=dt=2024/a", "output=dt=2024/c", against, *LOCAL]) == 0
    assert rewrite.main(["source=dt=2024/a", "source=dt=2024/c", "output=dt=2024/d", "mixed=true", *LOCAL]) == 0
    assert len(rows_of(tmp_path / "dt=2024/d")) == 20
