"""Damage of a source is never copied under a new hash, and what its shards do not need stops no command."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.commands import explore, export, quality, rewrite, takedown
from pipeline.commands.verify import VerifyOptions, verify
from pipeline.commands.verify import main as verify_main
from pipeline.report.stats import build_stats
from pipeline.summary import totals
from tests.patience import PATIENCE_S
from tests.pipeline.commands.derive.outputs import LOCAL, Row, kept, lost, make_output, picture
from tests.pipeline.commands.derive.rows import rows_of
from tests.pipeline.commands.verify.damage import edit_manifest, flip_behind
from tests.pipeline.jobs import hash_output

Printed = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with two shards of three rows."""
    output = tmp_path_factory.mktemp("intact") / "out"
    rows: list[Row] = [kept(picture(n), url=f"http://x/{n}") if n % 3 else lost(url=f"http://x/{n}") for n in range(6)]
    make_output(output, {0: rows[:3], 1: rows[3:]}, rows_per_shard=3)
    return output


@pytest.fixture
def source(intact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact, tmp_path / "source"))


def damage_index(source: Path, damage: str) -> None:
    (source / "_index/00001.arrow").unlink()
    if damage == "other":
        shutil.copy(source / "_index/00000.arrow", source / "_index/00001.arrow")


@pytest.mark.parametrize("name", ["grit/00001.tar", "arrow/00001.arrow"])
@pytest.mark.parametrize("options", [[], ["score.min_score=0.5"], ["dedupe=[bytes]"]], ids=str)
def test_rewrite_fails_the_damaged_shard_alone_and_names_the_repair(
    source: Path, tmp_path: Path, name: str, options: list[str]
) -> None:
    flip_behind(source / name, b"\xff\xd8\xff" if name.startswith("grit") else b"a")
    code = rewrite.main([f"source={source}", f"output={tmp_path / 'new'}", *options, *LOCAL])
    assert code in (2, 3)  # 2: a reader noticed it first
    assert not (tmp_path / "new/_manifests/00001.json").exists()
    if code == 3:
        error = json.loads((tmp_path / "new/_failed/00001.json").read_text())["error"]
        assert f"shard 1 of {source} is damaged ({name}: other content" in error
        assert f"hypergrit verify {source} requeue=true" in error


def test_rewrite_divides_no_damaged_shard(source: Path, tmp_path: Path, capsys: Printed) -> None:
    flip_behind(source / "grit/00001.tar")
    arguments = [f"source={source}", f"output={tmp_path / 'new'}", "samples_per_shard=2", *LOCAL]
    assert rewrite.main(arguments) == 2
    assert f"shard 1 of {source} is damaged (grit/00001.tar: other content" in capsys.readouterr().err
    assert not (tmp_path / "new/_manifests").exists()


@pytest.mark.parametrize("damage", ["missing", "other"])
@pytest.mark.parametrize("options", [[], ["samples_per_shard=2"]], ids=str)
def test_a_damaged_index_is_not_used(
    source: Path, intact: Path, tmp_path: Path, options: list[str], damage: str
) -> None:
    damage_index(source, damage)
    for folder in (source, intact):
        assert rewrite.main([f"source={folder}", f"output={tmp_path / folder.parent.name}", *options, *LOCAL]) == 0
    found, expected = (sorted((tmp_path / folder.parent.name / "grit").iterdir()) for folder in (source, intact))
    assert [path.read_bytes() for path in found] == [path.read_bytes() for path in expected]


@pytest.mark.parametrize("damage", ["missing", "other"])
def test_a_takedown_restores_a_damaged_index(source: Path, tmp_path: Path, damage: str) -> None:
    url = next(row["url"] for row in rows_of(source) if row["status"] == "kept" and int(row["key"]) >= 3)
    (tmp_path / "list.txt").write_text(url)
    clean = Path(shutil.copytree(source, tmp_path / "clean"))
    damage_index(source, damage)
    for folder in (source, clean):
        assert takedown.main([str(folder), f"list={tmp_path / 'list.txt'}", *LOCAL]) == 0
    assert hash_output(source) == hash_output(clean)
    assert verify(str(source), VerifyOptions(processes=1)) == 0


@pytest.mark.parametrize("name", ["_timings/run.json", "_timings/00001.json", "_summaries/00001.json.zst"])
@pytest.mark.parametrize("content", [b"x", b"[1]", b'{"read": 5, "started": 5, "rows": []}', b"[" * 100_000])
def test_a_damaged_file_that_the_shards_do_not_need_stops_no_command(
    source: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    (source / "_timings").mkdir(exist_ok=True)
    (source / name).write_bytes(content)
    (tmp_path / "list.txt").write_text("http://x/1\n")
    assert takedown.main([str(source), f"list={tmp_path / 'list.txt'}", *LOCAL]) == 0
    assert json.loads((source / "stats.json").read_text())["rows"]["dropped"]["read"] == {"taken_down": 1}


def test_a_summary_that_grows_without_end_is_counted_again(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "MAX_BYTES", 1 << 21)
    bomb = totals.compressed(bytes(1 << 24))
    with pytest.raises(OSError, match="more than"):
        totals.decompressed(bomb)
    expected = build_stats(str(source))["rows"]
    (source / "_summaries/00001.json.zst").write_bytes(bomb)
    assert build_stats(str(source))["rows"] == expected


def measure(out: str, new: Path) -> int:
    """Compare the boxes with one that is known in every image."""
    phrase = {"start": 0, "end": 1, "boxes": [[0, 0, 1, 1]]}
    known = new.parent / "known.json"
    known.write_text(json.dumps({str(number): {"phrases": [phrase]} for number in range(10)}))
    return quality.main([out, f"known={known}", "plot=null"])


VERBS: dict[str, Callable[[str, Path], int]] = {
    "rewrite": lambda out, new: rewrite.main([f"source={out}", f"output={new}", *LOCAL]),
    "takedown": lambda out, new: takedown.main([out, f"list={new.parent / 'list.txt'}", *LOCAL]),
    "verify": lambda out, new: verify_main([out, "processes=1"]),
    "report": lambda out, new: explore.main([out, "report=true"]),
    "row": lambda out, new: explore.main([out, "row=http://x/4"]),
    "static": lambda out, new: explore.main([out, f"static={new}", f"cache={new.parent / 'cache'}"]),
    "export": lambda out, new: export.main([out, f"output={new}", "format=odvg"]),
    "quality": measure,
}
NEEDED = {
    "_takedowns.json": {"rewrite", "takedown", "verify", "report", "export", "row", "static", "quality"},
    "_summaries/00001.json.zst": {"verify"},
}
"""Verbs that end with an error if a file cannot be read; all others do for other files, in most cases."""


def ends(verb: str, source: Path, new: Path) -> list[int]:
    """The exit code of a verb in a thread; [] if it does not end."""
    codes = list[int]()
    thread = threading.Thread(target=lambda: codes.append(VERBS[verb](str(source), new)), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return codes


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ["config.yaml", "arrow/00001.arrow", "grit/00001.tar", *NEEDED])
def test_a_pipe_in_place_of_a_file_ends_the_command(source: Path, tmp_path: Path, name: str, verb: str) -> None:
    (tmp_path / "list.txt").write_text("http://x/4\n")
    (source / name).unlink(missing_ok=True)
    os.mkfifo(source / name)
    codes = ends(verb, source, tmp_path / "new")
    assert codes in ([0], [1], [2], [3])
    if name in NEEDED:
        assert (codes == [0]) == (verb not in NEEDED[name])


@pytest.mark.parametrize("name", ["train/00001.tar", "grit/00001.tar"])
def test_a_takedown_opens_no_pipe_in_the_only_format(tmp_path: Path, name: str) -> None:
    output, formats = tmp_path / "out", name.partition("/")[0]
    make_output(output, {1: [kept(picture(0), url="http://x/4")]}, f"write.formats=[{formats}]")
    (tmp_path / "list.txt").write_text("http://x/4\n")
    (output / name).unlink()
    os.mkfifo(output / name)
    assert ends("takedown", output, tmp_path / "new") == [3]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "change",
    [{"provenance": {}}, {"provenance": {"config_hash": "0", "models": []}}, {"files": 5}, {"boxes": 10**400}],
    ids=lambda change: str(change)[:40],
)
def test_a_manifest_of_strangers_is_one_line(
    source: Path, tmp_path: Path, capsys: Printed, change: dict[str, object], verb: str
) -> None:
    (tmp_path / "list.txt").write_text("http://x/4\n")
    path = source / "_manifests/00001.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert VERBS[verb](str(source), tmp_path / "new") in (0, 1, 2, 3)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["boxes", "thresholds"])
def test_a_manifest_without_a_field_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    make_output(tmp_path / "a", {0: [kept(picture(0))]})
    edit_manifest(tmp_path / "a", lambda m: (m if name in m else m["provenance"]).pop(name), index=0)
    assert rewrite.main([f"source={tmp_path / 'a'}", f"output={tmp_path / 'b'}", *LOCAL, "score.min_score=0.2"]) == 2
    assert f"a manifest of the sources lacks '{name}'; see hypergrit verify" in capsys.readouterr().err
