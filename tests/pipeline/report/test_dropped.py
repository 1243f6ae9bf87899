import os
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.config import ReportConfig, WriteConfig
from pipeline.output.ledger import read_manifests
from pipeline.output.store import Store
from pipeline.output.write.stage import write_shard
from pipeline.read.types import ShardPlan
from pipeline.report.cards import dropped_file, find_dropped, pick_dropped, pick_examples, read_dropped
from pipeline.report.html import write_report
from pipeline.report.stats import build_stats
from schemas.files import DROPPED_FILE
from schemas.table import Drop, drop_rows, kept_indices
from tests.pipeline.report.make_output import write_output
from tests.pipeline.settings import with_constants

CONFIG = with_constants(ReportConfig, examples=2, thumbnail_px=64)


@pytest.fixture
def dropped(tables: list[pa.Table]) -> pa.Table:
    """The first table, with three more rows that `ground` and one that `score` drops."""
    rows = kept_indices(tables[0])[:4]
    found = drop_rows(tables[0], "ground", dict.fromkeys(rows[:3], Drop("no_box")))
    return drop_rows(found, "score", {rows[3]: Drop("low_score")})


def test_the_first_rows_of_each_reason_get_a_thumbnail(tables: list[pa.Table], dropped: pa.Table) -> None:
    found = pick_dropped(tables[0], dropped, [], CONFIG)
    rows = kept_indices(tables[0])[:4]
    keys = [dropped["key"][i].as_py() for i in (rows[0], rows[1], rows[3])]
    assert [picture.key for picture in found] == keys
    assert [picture.reason for picture in found] == ["no_box", "no_box", "low_score"]
    assert all(max(picture.thumbnail.width, picture.thumbnail.height) == 64 for picture in found)
    assert [picture.reason for picture in pick_dropped(tables[0], dropped, found[:2], CONFIG)] == ["low_score"]


def test_rows_with_an_internal_error_or_without_a_valid_image_get_none(tables: list[pa.Table]) -> None:
    first, second = kept_indices(tables[0])[:2]
    images = tables[0]["image"].to_pylist()
    images[second] = b"no image"
    broken = tables[0].set_column(
        tables[0].schema.get_field_index("image"), tables[0].schema.field("image"), pa.array(images, pa.binary())
    )
    after = drop_rows(broken, "ground", {first: Drop("internal_error"), second: Drop("no_box")})
    assert pick_dropped(broken, after, [], CONFIG) == []


def test_the_page_shows_the_pictures_of_dropped_rows_with_their_scores(
    tables: list[pa.Table], dropped: pa.Table, tmp_path: Path
) -> None:
    output = write_output(tmp_path, [dropped])
    store = Store(output)
    pictures = pick_dropped(tables[0], dropped, [], CONFIG)
    store.write_bytes(DROPPED_FILE.path(0), dropped_file(pictures))
    assert read_dropped(store, 0, {pictures[0].key}) == {pictures[0].key: pictures[0].thumbnail}
    manifests = read_manifests(store)
    found = find_dropped(store, manifests, pick_examples(store, manifests, 2))
    assert pictures[0].key in found
    build_stats(output)
    write_report(output, with_constants(ReportConfig, pictures=0, examples=2))
    text = (tmp_path / "report.html").read_text()
    assert text.count("<img ") == len(found) >= 2
    assert "#reason=ground:no_box" in text


def test_a_damaged_file_of_thumbnails_is_ignored(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write_bytes(DROPPED_FILE.path(0), b"damaged")
    assert read_dropped(store, 0, {"0"}) == {}


def test_thumbnails_are_in_place_before_the_manifest_and_leave_the_bytes_of_the_shard_as_they_are(
    tables: list[pa.Table], dropped: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = dropped_file(pick_dropped(tables[0], dropped, [], CONFIG))
    renamed: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (renamed.append(Path(new).name), replace(old, new)))
    shard = ShardPlan(0, 0, dropped.num_rows, ())
    provenance = {"config_hash": "0", "models": {"scorer": {"name": "miniature"}}}
    found = {
        name: write_shard(dropped, shard, WriteConfig(), str(tmp_path / name), provenance, thumbnails=data)
        for name, data in {"with": content, "without": b""}.items()
    }
    assert found["with"] == found["without"]
    file = tmp_path / "with" / DROPPED_FILE.path(0)
    assert file.read_bytes() == content
    assert renamed.index(file.name) < renamed.index("00000.json")
    write_shard(dropped, shard, WriteConfig(), str(tmp_path / "with"), provenance, replaces=True)
    assert not file.exists()  # those of the shard that was replaced
