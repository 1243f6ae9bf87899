"""Engines that are not in the lock file read the shards; docs/shards.md tells how to install them."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.outputs import BOXES, KEYS, write_pairs, write_uneven
from tests.pipeline.output.write.shards import CAPTION

ROOT = Path(__file__).resolve().parents[2]
SHARDS_PAGE = (ROOT / "docs" / "shards.md").read_text(encoding="utf-8")


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines that an example prints."""
    script = str(ROOT / "docs" / "examples" / name)
    monkeypatch.setattr(sys, "argv", [script, str(folder)])
    runpy.run_path(script, run_name="__main__")
    return capfd.readouterr().out.splitlines()


def test_daft_reads_every_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    daft = pytest.importorskip("daft")
    lines = run("read_daft.py", write_uneven(tmp_path / "out"), monkeypatch, capfd)
    assert lines == [f"{key} {CAPTION} {boxes}" for key, boxes in zip(KEYS, BOXES, strict=True)]
    for output in (tmp_path / "out", write_pairs(tmp_path / "pairs")):
        rows = daft.read_webdataset(str(output / "grit" / "00000.tar")).to_pylist()
        assert {row["txt"] for row in rows} == {CAPTION}
        assert all(row["json"]["caption"] == CAPTION for row in rows)


def prepare(output: Path, folder: str, image: str, caption: str) -> Path:
    """Run the commands of the page on a folder of tars."""
    (commands,) = re.findall(r"    (mkdir out/energon.*?)\n\n", SHARDS_PAGE, re.DOTALL)
    for old, new in (('"$PWD"/out/demo/train', str(output / folder)), ("child.jpg", image), ("child.txt", caption)):
        commands = commands.replace(old, new)
    commands = commands.replace("out/energon", str(output / "energon"))
    program = f'energon() {{ "{sys.executable}" -m megatron.energon.cli.main "$@"; }}\n'
    subprocess.run(["bash", "-ec", program + commands], check=True, timeout=120, capture_output=True)
    return output / "energon"


def test_energon_reads_every_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("megatron.energon")
    folder = prepare(write_uneven(tmp_path / "out"), "train", "child.jpg", "child.txt")
    expected = [f"{key} (1, 3, 224, 224) {CAPTION}" for key in KEYS]
    assert run("read_energon.py", folder, monkeypatch, capfd) == expected
    assert not list((tmp_path / "out" / "train").glob("*.idx"))
    pairs = prepare(write_pairs(tmp_path / "pairs"), "grit", "jpg", "txt")
    found = run("read_energon.py", pairs, monkeypatch, capfd)
    assert found == [f"{key} (1, 3, 200, 300) {CAPTION}" for key in KEYS[:2]]
