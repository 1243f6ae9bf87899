"""Temporary data of killed commands is removed by the next one."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pipeline.commands import rewrite
from tests.pipeline.commands.derive.outputs import make_output, random_shards

LOCAL = ("ray.runner=local", "ray.cpu_workers=1")
CODE = """
import os, sys
from pathlib import Path
from pipeline.output.store import temporary_folder_prefix, temporary_name
for path in sys.argv[2:]:
    Path(temporary_name(path)).write_bytes(b"half")
Path(sys.argv[1], temporary_folder_prefix() + "abcdefgh").mkdir()
"""


def test_half_written_files_and_databases_of_killed_commands_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output, temporary = tmp_path / "a", tmp_path / "b", tmp_path / "tmp"
    make_output(source, random_shards(2, 2))
    for folder in (temporary, output / "train", output / "_dedupe"):
        folder.mkdir(parents=True)
    files = [str(output / name) for name in ("train/00001.tar", "_dedupe/00000.drops.arrow", "stats.json")]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    subprocess.run([sys.executable, "-c", CODE, str(temporary), *files], check=True, env=environment)
    assert len(list(output.rglob("*.tmp"))) == 3
    assert len(list(temporary.iterdir())) == 1
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert rewrite.main([f"source={source}", f"output={output}", "dedupe=[url]", *LOCAL]) == 0
    assert list(output.rglob("*.tmp")) == []
    assert list(temporary.iterdir()) == []
