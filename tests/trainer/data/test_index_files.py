"""Shards of the pipeline: the trainer takes the places of their samples from `_index/`."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.layouts import find_layout, read_sample
from hypergrit_common.samples import SampleFiles, sample_members
from hypergrit_common.shards import list_shards
from pipeline.config import WriteConfig
from pipeline.output.write.stage import write_shard
from schemas.training import training_line
from tests.pipeline.output.write.shards import PROVENANCE, dropped_row, kept_row, plan, table
from tests.pipeline.output.write.test_index import remove_index
from tests.trainer.data.loading import assert_batches_equal, small_loader, take
from trainer.data.index import SampleIndex, index_shard
from trainer.data.indexing import build_index
from trainer.data.probe import probe
from trainer.data.shards import ByteRangeReader, ShardFile

COUNTS = (3, 0, 5)
NEEDS = [frozenset[str](), frozenset({"boxes"}), frozenset({"parse"}), frozenset({"boxes", "parse"})]


def write_output(folder: object) -> None:
    """Write three shards with these numbers of samples, and a dropped row each."""
    number = 0
    for shard, count in enumerate(COUNTS):
        rows = [kept_row(number + i) for i in range(count)] + [dropped_row(number + count)]
        write_shard(table(rows), plan(shard, count + 1), WriteConfig(), str(folder), PROVENANCE)
        number += count + 1


@pytest.fixture
def output(tmp_path: Path) -> Path:
    write_output(tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shards whose headers are read."""
    found: list[str] = []
    real = ShardFile.__init__
    monkeypatch.setattr(ShardFile, "__init__", lambda self, url: found.append(url) or real(self, url))
    return found


def ranges(index: SampleIndex) -> list[tuple[Any, ...]]:
    return [index.byte_range(sample) for sample in range(index.n_samples)]


@pytest.mark.parametrize("kind", ["train", "grit"])
def test_places_of_the_index_are_those_of_the_headers(output: Path, opened: list[str], kind: str) -> None:
    urls = list_shards(str(output / kind))
    index = build_index(urls)
    assert index.counts == COUNTS
    assert not opened
    headers = SampleIndex([index_shard(url) for url in urls])
    assert ranges(index) == ranges(headers)
    assert index.fingerprint == headers.fingerprint  # checkpoints of earlier versions fit


@pytest.mark.parametrize("needs", NEEDS)
@pytest.mark.parametrize("boxes", ["random", "all"])
def test_batches_are_the_same_with_and_without_an_index(output: Path, needs: frozenset[str], boxes: str) -> None:
    found = take(small_loader(output, needs=needs, boxes=boxes), 5)
    remove_index(output)
    assert_batches_equal(found, take(small_loader(output, needs=needs, boxes=boxes), 5))


def test_members_that_a_model_does_not_need_are_not_read(output: Path) -> None:
    expected = [
        {"child.jpg", "child.txt"},
        {"child.jpg", "child.txt", "numparents.txt", "parent000.jpg", "parent000.txt"},
    ]
    reader, sizes = ByteRangeReader(), []
    for needs in NEEDS:
        index = build_index(list_shards(str(output)), needs=needs)
        data = reader.read([index.byte_range(0)])[0]
        names = {member.extension for member in sample_members(data)}
        sizes.append(len(data))
        if "parse" in needs:
            assert "json" in names
        else:
            assert "json" not in names
            assert names >= expected["boxes" in needs]
            assert ("parent000.jpg" in names) == ("boxes" in needs)
    assert sizes[0] < 0.5 * sizes[1] < 0.9 * sizes[3]


@pytest.mark.parametrize("needs", NEEDS)
def test_what_samples_can_train_does_not_depend_on_the_model(
    output: Path, caplog: pytest.LogCaptureFixture, needs: frozenset[str]
) -> None:
    index = build_index(list_shards(str(output)), needs=needs)
    for sample in (0, index.n_samples - 1):
        assert index.whole_range(sample).start == index.byte_range(sample).start
    with caplog.at_level(logging.INFO):
        probe(index, "auto", needs)
    data = ByteRangeReader().read([index.byte_range(0)])[0]
    assert find_layout(SampleFiles(data)) == ("train" if "parse" in needs else "hycoclip")
    assert training_line({"boxes", "parse"}) in caplog.text


def test_subreddits_are_read_by_models_that_need_no_parse(tmp_path: Path) -> None:
    rows = [kept_row(0), kept_row(1) | {"extra": json.dumps({"subreddit": "foodporn"})}]
    write_shard(table(rows), plan(0, 2), WriteConfig(), str(tmp_path), PROVENANCE)
    index = build_index(list_shards(str(tmp_path)), needs=frozenset())
    data = ByteRangeReader().read([index.byte_range(1)])[0]
    assert read_sample(data, "train", frozenset()).subreddit == "foodporn"


def test_output_in_a_store_is_indexed_like_one_on_a_disk(output: Path, opened: list[str]) -> None:
    write_output("memory://indexes/out")
    remote = build_index(list_shards("memory://indexes/out"))
    assert not opened
    assert [r[1:] for r in ranges(remote)] == [r[1:] for r in ranges(build_index(list_shards(str(output))))]
    fsspec.filesystem("memory").rm("/indexes", recursive=True)


def test_output_of_an_earlier_version_is_indexed_from_its_headers(output: Path, opened: list[str]) -> None:
    expected = ranges(build_index(list_shards(str(output))))
    remove_index(output)
    assert ranges(build_index(list_shards(str(output)))) == expected
    assert len(opened) == 3


@pytest.mark.parametrize("damage", ["missing", "shorter", "longer", "other"])
def test_damaged_index_is_logged_and_replaced_by_the_headers(
    output: Path, opened: list[str], caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    expected = ranges(build_index(list_shards(str(output))))
    path = output / "_index" / "00002.arrow"
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        altered = {"shorter": content[:-5], "longer": content + b"x", "other": content[:99] + b"?" + content[100:]}
        path.write_bytes(altered[damage])
    with caplog.at_level(logging.WARNING):
        assert ranges(build_index(list_shards(str(output)))) == expected
    assert opened == [str(output / "train" / "00002.tar")]
    assert "00002.arrow cannot be used" in caplog.text
    assert len(caplog.records) == 1


def test_index_of_another_shard_is_not_used(output: Path, opened: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """Its places lie beyond the end of this shard."""
    expected = ranges(build_index(list_shards(str(output))))
    shutil.copy(output / "_index" / "00002.arrow", output / "_index" / "00000.arrow")
    manifest = output / "_manifests" / "00000.json"
    fields = json.loads(manifest.read_text())
    fields["files"]["_index/00000.arrow"] = json.loads((output / "_manifests" / "00002.json").read_text())["files"][
        "_index/00002.arrow"
    ]
    manifest.write_text(json.dumps(fields))
    assert ranges(build_index(list_shards(str(output)))) == expected
    assert "names bytes that the shard does not have" in caplog.text
    assert len(opened) == 1


def test_shard_that_differs_in_size_from_its_manifest_is_refused(output: Path) -> None:
    path = output / "train" / "00002.tar"
    path.write_bytes(path.read_bytes()[:-512])
    with pytest.raises(UserError, match=r"00002\.tar has \d+ bytes, but its manifest says \d+; it is damaged: copy it"):
        small_loader(output)
    path.unlink()
    (output / "_manifests" / "00002.json").unlink()
    assert small_loader(output).n_samples == 3
