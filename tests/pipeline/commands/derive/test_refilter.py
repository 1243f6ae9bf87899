"""Refilter: the same bytes as a job with the new settings, and refusals with the reason."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from hypergrit_common.cli import NOTHING_KEPT
from pipeline import grit, load_config, make_provenance, plan_shards
from pipeline.commands import rewrite
from pipeline.run.steps import Notes, Steps, run_stages
from schemas.files import FAILED_FOLDER
from tests.pipeline.commands.derive.outputs import Row, kept, make_output, multiset, picture
from tests.pipeline.commands.derive.rows import manifests_of
from tests.pipeline.jobs import hash_output, run_job


@pytest.fixture(scope="module")
def loose(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with low thresholds, in which most boxes are kept."""
    output = tmp_path_factory.mktemp("loose") / "out"
    run_job(tars, output, "score.min_score=0.3", "score.min_clip_score=0.3", "score.min_side_px=8")
    return output


@pytest.fixture(scope="module")
def complete(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with high thresholds and all scores."""
    output = tmp_path_factory.mktemp("complete") / "out"
    run_job(tars, output, "score.keep_all=true", "score.min_score=0.9", "score.min_clip_score=1.2")
    return output


def run_refilter(source: Path, output: Path, *arguments: str) -> int:
    """Run the command on this machine; return its exit code."""
    return rewrite.main([f"source={source}", f"output={output}", "ray.runner=local", "ray.cpu_workers=1", *arguments])


def expected_code(output: Path) -> int:
    """The exit code of a rewrite that made this output: few of these settings leave a row."""
    return 0 if any(manifest["counts"]["kept"] for manifest in manifests_of(output)) else NOTHING_KEPT


class Job:
    """The job in this process: the stages before `score` run once for all settings."""

    def __init__(self, tars: Path) -> None:
        self.tars, self.grounded = tars, dict[int, tuple[pa.Table, Notes]]()

    def run(self, output: Path, *settings: str) -> None:
        """Write the shards of the job with these settings."""
        config = load_config([f"input={self.tars}", f"output={output}", "rows_per_shard=4", *settings])
        steps = Steps(config, make_provenance(config))
        for plan in plan_shards(config.input, config.rows_per_shard, config.limit, config.read):
            if plan.index not in self.grounded:
                table, notes = steps.prepare(plan)
                self.grounded[plan.index] = run_stages([("ground", steps.stage("ground"))], table, notes, plan)
            score = [("score", steps.stage("score"))]
            steps.write(plan, *run_stages(score, *self.grounded[plan.index], plan))


@pytest.fixture(scope="module")
def job(tars: Path) -> Job:
    """The job on the tars."""
    return Job(tars)


def shard_hashes(output: Path) -> dict[str, str]:
    """SHA-256 by name of all files of shards but the manifests."""
    return {name: digest for name, digest in hash_output(output).items() if not name.startswith("_manifests")}


SETTINGS = [
    ["score.min_score=0.8"],
    ["score.min_clip_score=1.1", "score.size_rule=side", "score.min_side_px=40"],
    ["score.min_side_px=200", "write.train_columns=['*']"],
    ["score.min_score=1", "score.min_clip_score=2.5"],
    ["formats=[arrow]", "write.image_bytes=true"],
    ["formats=[train]", "write.train_columns=['*']", "score.min_score=0.7"],
]


@pytest.mark.parametrize("settings", SETTINGS, ids=" ".join)
def test_shards_equal_those_of_a_job_with_the_same_settings(
    loose: Path, job: Job, tmp_path: Path, settings: list[str]
) -> None:
    base = ["score.min_score=0.3", "score.min_clip_score=0.3", "score.min_side_px=8"]
    before = shard_hashes(loose)
    assert run_refilter(loose, tmp_path / "new", *settings) == expected_code(tmp_path / "new")
    job.run(tmp_path / "job", *base, *settings)
    assert shard_hashes(tmp_path / "new") == shard_hashes(tmp_path / "job")
    assert shard_hashes(loose) == before


@pytest.mark.parametrize("settings", [["score.min_score=0.3", "score.min_clip_score=0.3", "score.min_side_px=8"],
                                      ["score.size_rule=released"]], ids=" ".join)  # fmt: skip
def test_thresholds_can_be_lowered_if_all_scores_were_kept(
    complete: Path, job: Job, tmp_path: Path, settings: list[str]
) -> None:
    base = ["score.min_score=0.9", "score.min_clip_score=1.2"]
    assert run_refilter(complete, tmp_path / "new", "score.keep_all=false", *settings) == expected_code(
        tmp_path / "new"
    )
    job.run(tmp_path / "job", *base, *settings)
    assert shard_hashes(tmp_path / "new") == shard_hashes(tmp_path / "job")
    assert run_refilter(complete, tmp_path / "all", *settings) == expected_code(tmp_path / "all")
    job.run(tmp_path / "all_job", "score.keep_all=true", *base, *settings)
    assert shard_hashes(tmp_path / "all") == shard_hashes(tmp_path / "all_job")


def test_the_manifest_names_the_source_and_the_job_resumes_the_output(loose: Path, tars: Path, tmp_path: Path) -> None:
    output = tmp_path / "new"
    assert run_refilter(loose, output, "score.min_score=0.8") == 0
    manifest = json.loads((output / "_manifests" / "00000.json").read_bytes())
    (source,) = manifest["origin"]["sources"]
    assert (manifest["origin"]["command"], source["output"], source["shard"]) == ("rewrite", str(loose), 0)
    before = hash_output(output)
    job = ["score.min_score=0.8", "score.min_clip_score=0.3", "score.min_side_px=8"]
    assert run_job(tars, output, *job) in (0, grit.FAILED_SHARDS)
    assert hash_output(output) == before


def test_a_second_run_makes_only_what_is_missing(loose: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    output = tmp_path / "new"
    assert run_refilter(loose, output, "score.min_score=0.8") == 0
    before = hash_output(output)
    (output / "_manifests" / "00001.json").unlink()
    (output / "arrow" / "00000.arrow").write_bytes(b"cut off")
    caplog.clear()
    with caplog.at_level("INFO", "hypergrit"):
        assert run_refilter(loose, output, "score.min_score=0.8") == 0
    assert hash_output(output) == before
    assert f"{len(list((output / '_manifests').glob('*.json')))} shards, 1 finished before" in caplog.text


def test_shards_of_another_command_are_not_discarded_without_overwrite(
    loose: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new"
    assert run_refilter(loose, output, "score.min_score=0.8") == 0
    assert run_refilter(loose, output, "score.min_score=0.9") == 2
    assert "overwrite=true" in capsys.readouterr().err
    assert run_refilter(loose, output, "score.min_score=0.9", "overwrite=true") == expected_code(output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score.min_score=0.2"], "score.min_score from 0.3 to 0.2: the boxes that the source removed"),
        (["score.min_side_px=7"], "score.min_side_px from 8 to 7"),
        (["score.size_rule=released"], "score.size_rule from area to released"),
        (["score.keep_all=true"], "the source has no scores of removed boxes"),
        (["ground.floor=0.3"], "rewrite cannot change ground.floor, a setting of the job"),
        (["limit=3"], "rewrite cannot change limit"),
        (["score.min_scor=0.9"], "score.min_scor"),
        (["score.min_score=high"], "score.min_score"),
        (["formats=[coco]"], "formats is ['coco']"),
    ],
)
def test_what_refilter_cannot_do_is_refused_with_the_reason(
    loose: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run_refilter(loose, tmp_path / "new", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_presence_of_a_grounder_that_predicts_none_is_refused(
    loose: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_refilter(loose, tmp_path / "new", "score.min_presence=0.5") == 2
    assert "its grounder miniature does not predict it" in capsys.readouterr().err
    rows = [kept(picture(i), presence=[value]) for i, value in enumerate((0.4, 0.6))]
    make_output(tmp_path / "sam", {0: rows})
    assert run_refilter(tmp_path / "sam", tmp_path / "present", "score.min_presence=0.5") == 0
    (manifest,) = manifests_of(tmp_path / "present")
    assert manifest["counts"] == {"read": 2, "kept": 1, "dropped": {"score": {"low_presence": 1}}}


def test_thresholds_of_boxes_have_no_effect_on_pairs_and_a_warning_names_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [kept(picture(i), boxes=[], box_scores=[], noun_chunks=[]) for i in range(3)]
    make_output(tmp_path / "pairs", {0: rows}, "grounder=none", "scorer=none", "parse.model=none")
    settings = ("size_rule=side", "min_side_px=999", "min_score=1", "min_presence=1", "min_clip_score=2.5")
    assert run_refilter(tmp_path / "pairs", tmp_path / "new", *(f"score.{setting}" for setting in settings)) == 0
    names = "score.min_clip_score, score.min_presence, score.min_score, score.min_side_px, score.size_rule"
    assert f"without effect on {tmp_path / 'pairs'}, which has no boxes: {names}" in caplog.text
    assert multiset(tmp_path / "new") == multiset(tmp_path / "pairs")


def test_a_rewrite_that_keeps_no_row_has_the_exit_code_and_the_warning_of_such_a_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    removed = {"area_px": 4000.0, "clip_cosine": 0.3, "removed": "low_score"}
    lost = kept(picture(0), box_scores=[removed], status="dropped", stage="score", reason="low_score")
    make_output(tmp_path / "none", {0: [lost]}, "score.keep_all=true", "score.min_score=1")
    make_output(tmp_path / "some", {0: [kept(picture(i)) for i in range(2)]})
    for name in ("some", "some", "none"):  # the second time, all is finished before
        assert run_refilter(tmp_path / name, tmp_path / f"{name}-new", "score.min_score=0.95") == NOTHING_KEPT == 4
        assert "warning: no row was kept; " in capsys.readouterr().err
        (manifest,) = manifests_of(tmp_path / f"{name}-new")
        assert manifest["counts"]["dropped"] == {"score": {"low_score": manifest["counts"]["read"]}}
    assert "which has no boxes" not in caplog.text


def test_sources_without_rows_or_images_and_the_source_as_output_are_refused(
    loose: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_refilter(loose, tmp_path / "arrow", "formats=[arrow]") == 0
    assert run_refilter(loose, tmp_path / "train", "formats=[train]") == 0
    capsys.readouterr()
    for source, message in ((tmp_path / "arrow", "has no stored images"), (tmp_path / "train", "has no arrow/ file"),
                            (tmp_path / "nothing", "does not exist")):  # fmt: skip
        assert run_refilter(source, tmp_path / "new") == 2
        assert message in capsys.readouterr().err
    assert run_refilter(loose, loose, "score.min_score=0.5") == 2
    assert "is the source" in capsys.readouterr().err


def test_a_damaged_shard_fails_alone(loose: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    source = tmp_path / "source"
    shutil.copytree(loose, source)
    name = source / "grit" / "00001.tar"
    name.write_bytes(name.read_bytes().replace(b"\xff\xd8\xff", b"\x00\x00\x00"))
    assert run_refilter(source, tmp_path / "new", "score.min_score=0.4") == 3
    assert [path.name for path in (tmp_path / "new" / FAILED_FOLDER).iterdir()] == ["00001.json"]


def row(number: int, score: float) -> Row:
    box = {"phrase": 0, "x_min": 0.1, "y_min": 0.1, "x_max": 0.9, "y_max": 0.9, "score": score}
    return kept(picture(number), boxes=[box])


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A merge of shards with min_score=0.8, by its configuration, and 0.5; `three` beside it has another source first."""
    tmp_path = tmp_path_factory.mktemp("mixed")
    make_output(tmp_path / "loose", {0: [row(1, 0.6), row(2, 0.9)]})
    make_output(tmp_path / "all", {0: [row(3, 0.6), row(4, 0.9)]}, "score.keep_all=true")
    assert run_refilter(tmp_path / "loose", tmp_path / "strict", "score.min_score=0.8") == 0
    sources = [f"source={tmp_path / name}" for name in ("all", "strict", "loose")]
    common = ["mixed=true", "ray.runner=local", "ray.cpu_workers=1"]
    assert rewrite.main([*sources[1:], f"output={tmp_path / 'mixed'}", *common]) == 0
    assert rewrite.main([*sources, f"output={tmp_path / 'three'}", *common]) == 0
    return tmp_path / "mixed"


def test_a_given_threshold_applies_to_all_shards_of_a_mixed_output(mixed: Path, tmp_path: Path) -> None:
    assert run_refilter(mixed, tmp_path / "new", "score.min_score=0.8") == 0
    found = manifests_of(tmp_path / "new")
    assert [manifest["provenance"]["thresholds"]["min_score"] for manifest in found] == [0.8, 0.8]
    assert [manifest["counts"]["kept"] for manifest in found] == [1, 1]
    hashes = {manifest["provenance"]["config_hash"] for manifest in found + manifests_of(mixed)}
    assert len(hashes) == 3  # the first shard had these settings before


def test_other_thresholds_of_a_mixed_output_stay_those_of_its_shards(mixed: Path, tmp_path: Path) -> None:
    assert run_refilter(mixed, tmp_path / "new", "formats=[arrow,grit]") == 0
    found = manifests_of(tmp_path / "new")
    assert [manifest["provenance"]["thresholds"]["min_score"] for manifest in found] == [0.8, 0.5]
    assert [manifest["counts"]["kept"] for manifest in found] == [1, 2]


def test_a_threshold_of_a_mixed_output_is_lowered_only_if_all_shards_have_all_scores(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for source in (mixed, mixed.parent / "three"):
        assert run_refilter(source, tmp_path / "new", "score.min_score=0.4") == 2
        assert "to 0.4: the boxes that the source removed have no CLIPScore" in capsys.readouterr().err
    assert run_refilter(mixed.parent / "three", tmp_path / "same", "formats=[arrow,grit]") == 0
