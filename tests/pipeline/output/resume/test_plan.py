"""A job that is run again: what differs, what is kept, what is discarded."""

import dataclasses
import gzip
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from hypergrit_common.removed import LAST_COMMIT, NOT_IN_HASH
from pipeline.config import KEYS, PipelineConfig
from pipeline.output.finished import find_damaged
from pipeline.output.store import Store
from pipeline.read import plan as read_plan
from pipeline.report.stats import build_stats
from schemas.files import FAILED_FILE, JOB_FILE
from tests.e2e.outputs import arrow_rows
from tests.pipeline.jobs import hash_output
from tests.pipeline.output.resume.jobs import (
    compute,
    configure,
    overwriting,
    plan,
    provenance_of,
    run,
    write_rows,
)
from tests.pipeline.output.write.shards import tree
from tests.removed import INVENTED, invent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of 4, 3 and 4 rows: four shards of 3 rows, the last of which has 2."""
    for name, n in (("b", 4), ("d", 3), ("f", 4)):
        write_rows(tmp_path / "in" / f"{name}.jsonl", name, n)
    return tmp_path / "in"


@pytest.fixture
def config(folder: Path, tmp_path: Path) -> PipelineConfig:
    return configure(folder, tmp_path / "out")


def assert_refused(config: PipelineConfig, *parts: str, n: int = 4, **packages: str) -> None:
    """Assert that the job is refused with one line that has these parts, and changes nothing."""
    before = tree(config.output)
    with pytest.raises(UserError) as error:
        run(config, provenance_of(config, **packages))
    message = str(error.value)
    assert "\n" not in message
    for part in (*parts, f"{n} finished shard{'s differ' if n > 1 else ' differs'} (changed: ", "overwrite=true"):
        assert part in message
    assert tree(config.output) == before


def test_an_unchanged_job_computes_nothing_and_writes_nothing(config: PipelineConfig) -> None:
    assert run(config) == [0, 1, 2, 3]
    before = tree(config.output)
    assert run(config) == []
    assert tree(config.output) == before


def test_only_missing_shards_are_computed_and_no_input_is_scanned_again(
    config: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(config, only=[0, 2]) == [0, 2]
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.read.streams.open_file", None)
        patch.setattr("hashlib.file_digest", None)
        assert [shard.index for shard in plan(config).unfinished] == [1, 3]
    assert run(config) == [1, 3]


def test_an_output_with_removed_settings_and_without_new_ones_is_resumed_if_these_have_their_defaults(
    config: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    invent(monkeypatch, KEYS)
    monkeypatch.setattr("pipeline.config.NOT_IN_HASH", NOT_IN_HASH | set(INVENTED))
    run(config, only=[0, 2])
    file = Path(config.output) / JOB_FILE
    record = json.loads(file.read_text())
    record["settings"] |= INVENTED
    del record["settings"]["parse.keep"]
    file.write_text(json.dumps(record))
    assert run(config) == [1, 3]
    record["settings"]["garden.fence"] = []
    file.write_text(json.dumps(record))
    assert_refused(config, f"garden.fence: [] -> removed after commit {LAST_COMMIT}")
    assert run(overwriting(config)) == [0, 1, 2, 3]


def test_a_changed_setting_is_named_with_both_values(config: PipelineConfig, folder: Path) -> None:
    run(config)
    changed = configure(folder, config.output, "score.min_side_px=48", "captions.redcaps=true")
    assert_refused(changed, "score.min_side_px: 32 -> 48", "captions.redcaps: ")
    assert run(overwriting(changed)) == [0, 1, 2, 3]
    assert run(changed) == []
    assert_refused(config, "score.min_side_px: 48 -> 32")


def test_a_changed_threshold_is_named_once_and_the_verb_without_models_too(
    config: PipelineConfig, folder: Path
) -> None:
    run(config)
    changed = configure(folder, config.output, "score.min_score=0.8")
    provenance = provenance_of(changed)
    provenance["thresholds"]["min_score"] = 0.8
    with pytest.raises(UserError) as error:
        run(changed, provenance)
    assert "(changed: score.min_score: 0.5 -> 0.8); `hypergrit rewrite source=" in str(error.value)
    assert f"source={config.output} output=NEW score.min_score=0.8` makes it without models; " in str(error.value)
    with pytest.raises(UserError) as error:
        run(configure(folder, config.output, "score.min_score=0.8", "captions.redcaps=true"), provenance)
    assert "rewrite" not in str(error.value)


def test_a_changed_package_or_model_is_named(config: PipelineConfig) -> None:
    run(config)
    assert_refused(config, "package torch: 2.0 -> 2.1", "package new: none -> 1", torch="2.1", new="1")
    other = provenance_of(config)
    other["models"]["scorer"]["sha256"] = "c" * 64
    other["hypergrit"] = "1.1"
    with pytest.raises(UserError, match=r"HyperGRIT: 1.0 -> 1.1; scorer: miniature \(sha256 b{12}\) -> .*c{12}"):
        run(config, other)
    assert run(overwriting(config), other) == [0, 1, 2, 3]


def test_a_difference_without_finished_shards_is_no_obstacle(config: PipelineConfig, folder: Path) -> None:
    run(config, only=[])
    assert run(configure(folder, config.output, "score.min_side_px=48")) == [0, 1, 2, 3]


def test_a_file_edited_at_equal_size_is_noticed_and_only_its_shards_are_computed_again(
    config: PipelineConfig, folder: Path
) -> None:
    run(config)
    path = folder / "d.jsonl"
    size = path.stat().st_size
    path.write_text(path.read_text().replace("a d 1", "a D 1"))
    assert path.stat().st_size == size
    assert_refused(config, f"input file {path}: changed: another content of {size} bytes", n=2)
    assert run(overwriting(config)) == [1, 2]  # rows 4 to 6
    assert run(config) == []


def test_a_touched_file_is_no_difference(config: PipelineConfig, folder: Path) -> None:
    run(config)
    os.utime(folder / "d.jsonl", (time.time() + 5,) * 2)
    assert run(config) == []


def test_removed_and_reordered_files_are_named(config: PipelineConfig, folder: Path, tmp_path: Path) -> None:
    run(config)
    b, f = folder / "b.jsonl", folder / "f.jsonl"
    b.rename(tmp_path / "aside")
    f.rename(b)
    (tmp_path / "aside").rename(f)
    assert_refused(config, f"input file {b}: reordered: it has the content of {f} now", n=4)
    f.unlink()
    assert_refused(config, f"input file {f}: removed", n=4)
    assert run(overwriting(config)) == [0, 1, 2]
    assert sorted(path.name for path in Path(config.output, "arrow").iterdir()) == [f"{i:05d}.arrow" for i in range(3)]
    assert run(config) == []


def in_folder(config: PipelineConfig, folder: Path) -> PipelineConfig:
    """The job on tables in this folder, with images there."""
    read = dataclasses.replace(config.read, image_roots=(str(folder),))
    return dataclasses.replace(config, input=str(folder), read=read)


def test_a_job_whose_input_has_moved_goes_on_and_notices_another_content(
    config: PipelineConfig, folder: Path, tmp_path: Path
) -> None:
    config = in_folder(config, folder)
    run(dataclasses.replace(config, output=str(tmp_path / "whole")))
    run(config, only=[0, 2])
    moved = in_folder(config, folder.rename(tmp_path / "elsewhere"))
    assert run(moved) == [1, 3]
    assert hash_output(tmp_path / "out") == hash_output(tmp_path / "whole")
    assert run(moved) == []
    record = json.loads((tmp_path / "out" / JOB_FILE).read_text())
    assert {file["path"] for file in record["batches"][0]["files"]} == {*map(str, Path(moved.input).iterdir())}
    copy = tmp_path / "copy"
    shutil.copytree(moved.input, copy)
    (copy / "d.jsonl").write_text((copy / "d.jsonl").read_text().replace("a d 1", "a D 1"))
    assert_refused(in_folder(config, copy), f"input file {copy / 'd.jsonl'}: changed: another content", n=2)
    roots = dataclasses.replace(moved.read, image_roots=(str(copy),))
    assert_refused(dataclasses.replace(moved, read=roots), f"read.image_roots: ['{moved.input}'] -> ['{copy}']")


def test_a_file_that_moved_within_the_input_is_named(config: PipelineConfig, folder: Path) -> None:
    run(config)
    (folder / "x").mkdir()
    (folder / "b.jsonl").rename(folder / "x" / "b.jsonl")
    assert_refused(config, f"moved to {folder / 'x' / 'b.jsonl'}, but shards hold its name", n=4)


def test_folders_keep_their_numbers_when_others_are_given(config: PipelineConfig, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_rows(other / "b.jsonl", "o", 3)
    run(config)
    both = dataclasses.replace(config, input=(str(other), str(folder)))
    assert run(both) == [4]
    found = {row["source"] for row in arrow_rows(tmp_path / "out")}
    assert found == {"0/b.jsonl", "0/d.jsonl", "0/f.jsonl", "1/b.jsonl"}
    assert run(dataclasses.replace(config, input=(str(folder), str(other)))) == []


def test_a_damaged_file_is_recorded_and_read_up_to_its_damage(
    config: PipelineConfig, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(config, rows_per_shard=1000)
    data = gzip.compress("".join(f'{{"url": "http://a/{i}", "caption": "{i**9}"}}\n' for i in range(5000)).encode())
    (folder / "c.jsonl.gz").write_bytes(data[: len(data) // 2])
    (error,) = plan(config).damaged
    assert "c.jsonl.gz" in error
    run(config)
    store = Store(config.output)
    n = sum(shard.n_rows for shard in plan(config).plans)
    (damaged,) = build_stats(config.output)["damaged"]
    assert 0 < damaged["rows"] < 5000
    assert build_stats(config.output)["rows"]["read"] == n
    monkeypatch.setattr(read_plan, "_cut_text", None)  # the record is enough
    assert plan(config).damaged == [error]
    assert store.read("_job.json")


def test_an_appended_file_of_which_no_row_can_be_read_is_recorded_as_damaged(
    config: PipelineConfig, folder: Path
) -> None:
    config = dataclasses.replace(config, read=dataclasses.replace(config.read, skip_damaged=True))
    run(config)
    (folder / "g.jsonl.gz").write_bytes(b"no gzip")
    for _ in range(2):
        (error,) = plan(config).damaged
        assert "g.jsonl.gz" in error
        assert run(config) == []
    assert [file["rows"] for file in build_stats(config.output)["damaged"]] == [0]
    write_rows(folder / "h.jsonl", "h", 2)
    (new,) = plan(config).unfinished
    assert (new.index, new.first_row, new.n_rows, new.appends) == (4, 11, 2, (11,))
    assert run(config) == [4]
    (folder / "g.jsonl.gz").unlink()
    assert run(config) == []


def test_a_removed_file_at_the_end_keeps_the_shards_before_it(config: PipelineConfig, folder: Path) -> None:
    run(config)
    (folder / "f.jsonl").unlink()
    assert_refused(config, "f.jsonl: removed", n=2)
    assert run(overwriting(config)) == [2]
    assert sorted(path.name for path in Path(config.output, "_manifests").iterdir()) == [
        f"{i:05d}.json" for i in range(3)
    ]


def test_new_files_become_new_shards_wherever_their_names_sort(config: PipelineConfig, folder: Path) -> None:
    run(config)
    before = hash_output(Path(config.output))
    for name in ("a", "c"):
        write_rows(folder / f"{name}.jsonl", name, 2)
    assert run(config) == [4, 5]
    after = hash_output(Path(config.output))
    assert before.items() <= after.items()
    manifests = [json.loads(Path(config.output, f"_manifests/0000{i}.json").read_text()) for i in range(6)]
    assert [manifest["plan"].get("appends") for manifest in manifests] == [None, None, None, None, [11], [11]]
    assert [(manifest["plan"]["first_row"], manifest["counts"]["read"]) for manifest in manifests[3:]] == [
        (9, 2),
        (11, 3),
        (14, 1),
    ]
    record = json.loads(Path(config.output, JOB_FILE).read_text())
    assert [(batch["first_shard"], batch["first_row"], batch["rows"]) for batch in record["batches"]] == [
        (0, 0, 11),
        (4, 11, 4),
    ]
    assert run(config) == []


def test_equal_history_gives_equal_bytes(config: PipelineConfig, folder: Path, tmp_path: Path) -> None:
    other = configure(folder, tmp_path / "other")
    run(config)
    run(other, only=[1])
    write_rows(folder / "a.jsonl", "a", 4)
    run(config)
    run(other, only=[5, 0])
    write_rows(folder / "0.jsonl", "0", 1)
    run(config)
    run(other)
    assert len(hash_output(tmp_path / "other")) == 7 * 6
    assert hash_output(tmp_path / "other") == hash_output(Path(config.output))


def test_files_behind_the_limit_are_not_counted_as_removed(
    config: PipelineConfig, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = dataclasses.replace(config, limit=6)  # rows of b and d
    run(config)
    write_rows(folder / "b.jsonl", "b", 8)
    caplog.set_level("INFO")
    run(overwriting(config))
    assert "appended" not in caplog.text
    write_rows(folder / "b.jsonl", "b", 2)
    write_rows(folder / "z.jsonl", "z", 8)
    run(overwriting(config))
    assert "2 new input files appended" in caplog.text


def test_a_change_and_an_append_at_once(config: PipelineConfig, folder: Path) -> None:
    run(config)
    write_rows(folder / "a.jsonl", "a", 4)
    (folder / "f.jsonl").write_text((folder / "f.jsonl").read_text().replace("a f 3", "a F 3"))
    assert_refused(config, "f.jsonl: changed", n=2)
    assert run(overwriting(config)) == [2, 3, 4, 5]


def test_fewer_formats_are_satisfied_and_more_formats_are_a_difference(folder: Path, tmp_path: Path) -> None:
    both, train = (configure(folder, tmp_path / "out", f"formats=[{names}]") for names in ("train,grit", "train"))
    run(both)
    before = tree(both.output)
    assert run(train) == []
    assert tree(both.output) == before
    assert run(both) == []
    more = configure(folder, tmp_path / "out", "formats=[train,arrow]")
    assert_refused(more, "write.formats: ['arrow'] are missing (4 shards)")
    Path(both.output, "_manifests/00001.json").unlink()
    assert run(train) == [1]
    assert_refused(both, "write.formats: ['grit'] are missing (1 shard)", n=1)
    assert run(overwriting(both)) == [1]


def test_other_shard_sizes_discard_only_shards_with_other_rows(config: PipelineConfig, folder: Path) -> None:
    run(config)
    limited = configure(folder, config.output, "limit=9")
    assert_refused(limited, "limit: none -> 9", n=1)
    assert run(overwriting(limited)) == []
    assert run(config) == [3]
    assert_refused(configure(folder, config.output, "rows_per_shard=2"), "rows_per_shard: 3 -> 2", n=4)


def test_a_damaged_shard_is_computed_again_without_a_question(config: PipelineConfig) -> None:
    run(config)
    expected = hash_output(Path(config.output))
    with Path(config.output, "train/00001.tar").open("ab") as file:
        file.write(b"x")
    Path(config.output, "grit/00002.parquet").unlink()
    Path(config.output, "_manifests/00003.json").write_text("{")
    assert run(config) == [1, 2, 3]
    assert hash_output(Path(config.output)) == expected


def test_an_output_without_a_record_is_compared_by_its_manifests(config: PipelineConfig, folder: Path) -> None:
    run(config)
    record = Path(config.output, JOB_FILE)
    record.unlink()
    assert run(config) == []
    assert record.exists()
    record.unlink()
    assert_refused(config, "package torch: 2.0 -> 2.1 (4 shards)", torch="2.1")
    changed = configure(folder, config.output, "score.min_side_px=48")
    assert_refused(changed, "settings: compare config.yaml in the output (4 shards)")
    assert_refused(configure(folder, config.output, "rows_per_shard=5"), "input: other rows", n=4)
    assert_refused(configure(folder, config.output, "limit=9"), "input: fewer shards than in the output (1 shard)", n=1)


def file_with(**fields: object) -> str:
    file = {"path": "a", "size": 1, "hash": "h", "cuts": [[0, 0, 1], [3, 0, 1]]} | fields
    batch = {"first_shard": 0, "first_row": 0, "shards": 1, "rows": 3, "files": [file]}
    return json.dumps({"settings": {"rows_per_shard": 3}, "provenance": {}, "batches": [batch]})


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"batches": [{}], "settings": {"rows_per_shard": 3}}',
        "[" * 100_000,
        file_with(path=5),
        file_with(size="x"),
        file_with(hash=1),
        file_with(cuts=[]),
        file_with(cuts=[["a"]]),
        file_with().replace('"rows_per_shard": 3', '"rows_per_shard": 0'),
        file_with().replace('"provenance": {}', '"provenance": []'),
    ],
)
def test_a_damaged_record_is_an_error_with_a_fix(config: PipelineConfig, content: str) -> None:
    Path(config.output).mkdir()
    Path(config.output, JOB_FILE).write_text(content)
    with pytest.raises(UserError, match=r"_job.json is damaged .*; remove it"):
        run(config)


@pytest.mark.parametrize("content", ["{}", "[]", "[" * 100_000, '{"schema": "1.2", "shard": 0}', '{"files": {"a": 1}}'])
@pytest.mark.parametrize("has_record", [True, False])
def test_a_damaged_manifest_counts_as_missing(config: PipelineConfig, content: str, has_record: bool) -> None:
    run(config)
    expected = hash_output(Path(config.output))
    Path(config.output, "_manifests/00001.json").write_text(content)
    Path(config.output, "_manifests/\N{ARABIC-INDIC DIGIT TWO}.json").write_text(content)
    assert build_stats(config.output)["shards"] == [0, 2, 3]
    if not has_record:
        Path(config.output, JOB_FILE).unlink()
    damaged = find_damaged(Store(config.output), plan(config).plans, config, provenance_of(config))
    assert [damage.plan.index for damage in damaged] == [1]
    assert run(config) == [1]
    Path(config.output, "_manifests/\N{ARABIC-INDIC DIGIT TWO}.json").unlink()
    assert hash_output(Path(config.output)) == expected


def test_a_shard_that_a_late_worker_of_a_job_with_other_settings_committed_is_damaged(config: PipelineConfig) -> None:
    run(config)
    provenance = provenance_of(config)
    work, store = plan(config), Store(config.output)
    assert find_damaged(store, work.plans, config, provenance) == []
    compute(work.plans[1], config, {**provenance, "config_hash": "of the other job"})
    assert [damage.plan.index for damage in find_damaged(store, work.plans, config, provenance)] == [1]


def test_the_record_of_a_failure_is_removed_once_the_shard_is_finished(config: PipelineConfig) -> None:
    run(config, only=[0, 1])
    for index in (1, 2):
        path = Path(config.output, FAILED_FILE.path(index))
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    assert [shard.index for shard in plan(config).unfinished] == [2, 3]
    assert run(config, only=[]) == []
    assert [path.name for path in path.parent.iterdir()] == ["00002.json"]
    run(config)
    assert list(path.parent.iterdir()) == []


def test_a_file_that_changes_between_planning_and_reading_is_noticed(config: PipelineConfig, folder: Path) -> None:
    work = plan(config)
    path = folder / "b.jsonl"
    path.write_text(path.read_text().replace("a b 1", "a B 1"))
    with pytest.raises(UserError, match=r"b\.jsonl has changed since the job was planned"):
        compute(work.plans[0], config, provenance_of(config))
    path.unlink()
    with pytest.raises(UserError, match=r"b\.jsonl"):
        compute(work.plans[0], config, provenance_of(config))
    assert not Path(config.output).exists()


def test_folders_of_images_are_recorded_appended_and_compared(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for i in range(4):
            (folder / name / f"{i}.jpg").write_bytes(b"image")
            (folder / name / f"{i}.txt").write_text(f"a {name} {i}")
    config = configure(folder, tmp_path / "out")
    assert run(config) == [0, 1, 2]
    before = hash_output(tmp_path / "out")
    assert run(config) == []
    (folder / "0new").mkdir()
    (folder / "0new" / "0.jpg").write_bytes(b"image")
    assert run(config) == [3]  # a new folder comes behind the others
    assert {name: hash_ for name, hash_ in hash_output(tmp_path / "out").items() if name in before} == before
    (folder / "a" / "0.txt").write_text("changed")
    assert_refused(config, f"input file {folder}/a/: changed", n=2)
