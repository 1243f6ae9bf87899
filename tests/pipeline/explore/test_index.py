"""The index agrees with the rows of arrow/, and is built once for an output."""

import json
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hypergrit_common.errors import UserError
from pipeline.explore.columns import box_sides, hosts
from pipeline.explore.index import build_index, cached_index, open_output, read_meta
from pipeline.explore.rows import Shard
from pipeline.report.cards import DroppedPicture, Thumbnail, dropped_file
from pipeline.stages.score.filters import ScoreConfig, has_crop, measure_box
from pipeline.summary.totals import host_of
from schemas.files import DROPPED_FILE
from schemas.status import BOX_REMOVALS
from tests.pipeline.commands.derive.outputs import kept, lost, picture
from tests.pipeline.explore.outputs import write_output

RULES = ("area", "side", "released")
URLS = [
    "http://Example.org/a.jpg", "https://u:p@example.org:8080/a?b#c", "http://[::1]:80/x", "http://[bad/x", " http://a/b",
    "ftp://ex.org", "//no.scheme/x", "http:/one", "no url", "", "http://a\tb.org/x", "http://a\\b.org/x", "http://é.org/x",
]  # fmt: skip


def table_of(folder: Path, kind: str) -> pa.Table:
    """All parts of the rows or boxes of an index."""
    return pa.concat_tables([pa.ipc.open_file(path).read_all() for path in sorted(folder.glob(f"{kind}-*.arrow"))])


@pytest.mark.parametrize("name", ["output", "hostile_output"])
def test_index_holds_the_rows_and_boxes_of_arrow(name: str, cache: str, request: pytest.FixtureRequest) -> None:
    output = request.getfixturevalue(name)
    store, manifests = open_output(output)
    folder = cached_index(store, manifests, cache).folder
    words = json.loads((folder / "words.json").read_text(encoding="utf-8"))
    found, boxes = table_of(folder, "rows").to_pylist(), table_of(folder, "boxes").to_pylist()
    captions = "".join(p.read_bytes().decode() for p in sorted(folder.glob("captions-*"))).split("\n")
    files = sorted(Path(output, "arrow").iterdir())
    rows = [row for path in files for row in pa.ipc.open_file(pa.memory_map(str(path))).read_all().to_pylist()]
    assert len(rows) == len(found) == len(captions) - 1 == read_meta(folder)["rows"]
    expected = []
    for number, row in enumerate(rows):
        assert captions[number] == (row["caption"] or row["caption_original"]).replace("\n", " ")
        reason = "kept" if row["status"] == "kept" else f"{row['stage']}:{row['reason']}"
        assert words["reason"][found[number]["reason"]] == reason
        assert words["host"][found[number]["host"]] == host_of(row["url"])
        assert words["source"][found[number]["source"]] == row["source"]
        assert found[number]["has_image"] == (row["status"] == "kept")
        assert found[number]["key"] == row["key"]
        for box, measured in zip(row["boxes"] or (), row["box_scores"] or (), strict=True):
            chunk = row["noun_chunks"][box["phrase"]]
            phrase = row["caption"][chunk["start"] : chunk["end"]]
            expected.append((number, phrase, row["tokens"][chunk["root"]]["lemma"].lower(), box, measured))
    assert len(expected) == len(boxes) > 20
    for box, (number, phrase, label, source, measured) in zip(boxes, expected, strict=True):
        assert (box["row"], words["phrase"][box["phrase"]], words["label"][box["label"]]) == (number, phrase, label)
        assert [None, *BOX_REMOVALS][box["removed"]] == measured["removed"]
        assert (box["score"], box["x_min"]) == (source["score"], source["x_min"])
        cosine, stored = box["clip_cosine"], measured["clip_cosine"]
        assert np.isnan(cosine) if stored is None else cosine == stored


@pytest.mark.parametrize("rule", RULES)
def test_side_of_a_box_is_the_largest_threshold_that_it_passes(rule: str) -> None:
    rng = Random(rule)
    for _ in range(300):
        width, height = rng.randint(1, 400), rng.randint(1, 400)
        edges = {axis: sorted(rng.choice([rng.random(), rng.randint(0, n) / n]) for _ in range(2))
                 for axis, n in (("x", width), ("y", height))}  # fmt: skip
        corners = {f"{axis}_{end}": np.array([edges[axis][i]], np.float32).astype(np.float64)
                   for axis in "xy" for i, end in enumerate(("min", "max"))}  # fmt: skip
        (side,) = box_sides(corners, np.array([width], np.int32), np.array([height], np.int32), rule).tolist()
        box = {name: float(values[0]) for name, values in corners.items()} | {"score": 1.0}

        def passes(limit: int, box: dict[str, float] = box, size: tuple[int, int] = (width, height)) -> bool:
            thresholds = ScoreConfig(min_side_px=limit, size_rule=rule, min_score=0, min_clip_score=0)  # type: ignore[arg-type]
            return measure_box(box, *size, thresholds)["removed"] is None

        assert (side >= 0) == (has_crop(box, width, height) and passes(0))
        assert not passes(max(side + 1, 0))
        assert side < 0 or passes(side)


def test_hosts_are_those_of_the_report() -> None:
    assert hosts(pa.array([*URLS, None])).to_pylist() == [host_of(url) for url in [*URLS, None]]


def test_an_index_is_built_again_only_if_a_manifest_changes(
    tmp_path: Path, hostile_output: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store, manifests = open_output(hostile_output)
    first = cached_index(store, manifests, None)
    assert first.folder.is_relative_to(tmp_path / "hypergrit")
    written = (first.folder / "meta.json").stat().st_mtime_ns
    assert cached_index(store, manifests, None).folder == first.folder
    assert (first.folder / "meta.json").stat().st_mtime_ns == written
    place = first.folder.parent
    (place / "draft-of-a-killed-process").mkdir()
    changed = [[{**manifest, "boxes": manifest["boxes"] + n} for manifest in manifests] for n in (1, 2)]
    second = cached_index(store, changed[0], None)  # type: ignore[arg-type]
    assert set(place.iterdir()) == {first.folder, second.folder}  # the first is still in use
    first.lock.close()
    third = cached_index(store, changed[1], None)  # type: ignore[arg-type]
    assert set(place.iterdir()) == {second.folder, third.folder}
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_of_several_starts_at_once_one_builds_the_index(
    tmp_path: Path, hostile_output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, manifests = open_output(hostile_output)
    built, start, found = list[Path](), threading.Barrier(4), list[Path]()

    def build(*arguments: Any) -> None:
        built.append(arguments[2])
        time.sleep(0.05)
        build_index(*arguments)

    def run() -> None:
        start.wait()
        index = cached_index(store, manifests, str(tmp_path))
        assert read_meta(index.folder)["rows"] == 12
        found.append(index.folder)

    monkeypatch.setattr("pipeline.explore.index.build_index", build)
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(built) == len(set(found)) == 1
    assert [path.name for path in found[0].parent.iterdir()] == [found[0].name]


def test_output_without_arrow_is_refused(tmp_path: Path) -> None:
    rows = [dict.fromkeys(["url"], "http://x/1")]

    output = write_output(tmp_path, [[kept(picture(0), source="s") | row for row in rows]], "formats=[grit]")
    with pytest.raises(UserError, match=r"shard 0 of .* has no arrow/ file"):
        open_output(output)


def test_rows_without_measured_boxes_are_shown(tmp_path: Path, cache: str) -> None:

    failed = {"status": "dropped", "stage": "score", "reason": "internal_error", "box_scores": None, "image": None}
    rows = [lost(source="s", url=None), kept(picture(1), source="s") | failed, kept(picture(2), source="s")]
    store, manifests = open_output(write_output(tmp_path, [rows], "formats=[arrow,grit]"))
    folder = cached_index(store, manifests, cache).folder
    assert table_of(folder, "boxes")["row"].to_pylist() == [2]
    assert table_of(folder, "boxes")["label"].to_pylist() == [-1]
    assert table_of(folder, "rows")["has_image"].to_pylist() == [0, 0, 1]


def test_dropped_rows_are_shown_by_their_thumbnails(tmp_path: Path, cache: str) -> None:
    store, manifests = open_output(write_output(tmp_path, [[lost(source="s", url=None), kept(picture(1), source="s")]]))
    key = Shard(store, manifests[0]).row(0)["key"]
    dropped = DroppedPicture(key, "score", "low_score", Thumbnail(b"small", 4, 3))
    store.write_bytes(DROPPED_FILE.path(0), dropped_file([dropped]))
    folder = cached_index(store, manifests, cache).folder
    assert table_of(folder, "rows")["has_image"].to_pylist() == [2, 1]
    assert Shard(store, manifests[0]).image(0) == b"small"
