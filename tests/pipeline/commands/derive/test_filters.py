"""Thresholds and formats: the bytes of a job with the new settings, what is refused, and what comes back."""

from pathlib import Path

import pyarrow as pa
import pytest

from hypergrit_common.cli import NOTHING_KEPT
from hypergrit_common.errors import UserError
from pipeline import grit, load_config, make_provenance, plan_shards
from pipeline.commands.rewrite_rows import SourcePart, filter_table, late_stages
from pipeline.read.types import ShardPlan
from pipeline.run.steps import Notes, Steps, run_stages
from pipeline.stages.score.filters import ScoreConfig
from schemas.manifest import Provenance
from schemas.rows import SCORED
from tests.pipeline.commands.derive.outputs import (
    configure,
    kept,
    lost,
    make_output,
    multiset,
    picture,
    provenance_of,
    read_rows,
    scored,
)
from tests.pipeline.commands.derive.outputs import run_rewrite as run
from tests.pipeline.commands.derive.rows import manifests_of, rows_of, stats_of
from tests.pipeline.jobs import hash_output, run_job

Printed = pytest.CaptureFixture[str]
LOOSE = ("score.min_score=0.3", "score.min_clip_score=0.3", "score.min_side_px=8")
COMPLETE = ("score.keep_all=true", "score.min_score=0.9", "score.min_clip_score=1.2", "score.min_grounded_share=0.9")


@pytest.fixture(scope="module")
def loose(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with low thresholds, in which most boxes are kept."""
    output = tmp_path_factory.mktemp("loose") / "out"
    run_job(tars, output, *LOOSE)
    return output


@pytest.fixture(scope="module")
def complete(tars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with high thresholds and all scores."""
    output = tmp_path_factory.mktemp("complete") / "out"
    run_job(tars, output, *COMPLETE)
    return output


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


@pytest.mark.parametrize(
    "settings",
    [
        ["score.min_clip_score=1.1", "score.size_rule=side", "score.min_side_px=40"],
        pytest.param(["score.min_side_px=200"], marks=pytest.mark.rest),
        ["score.min_grounded_share=0.67", "score.min_score=0.6"],
        ["formats=[arrow]", "write.image_bytes=true"],
        pytest.param(["formats=[train]", "score.min_score=0.7"], marks=pytest.mark.rest),
    ],
    ids=" ".join,
)
def test_shards_equal_those_of_a_job_with_the_same_settings(
    loose: Path, job: Job, tmp_path: Path, settings: list[str]
) -> None:
    assert run(loose, tmp_path / "new", *settings) == expected_code(tmp_path / "new")
    job.run(tmp_path / "job", *LOOSE, *settings)
    assert shard_hashes(tmp_path / "new") == shard_hashes(tmp_path / "job")


@pytest.mark.parametrize(
    "settings",
    [LOOSE, pytest.param(["score.size_rule=released", "score.min_grounded_share=0.5"], marks=pytest.mark.rest)],
    ids=" ".join,
)
@pytest.mark.parametrize("keeps_all", ["score.keep_all=false", "score.keep_all=true"])
def test_thresholds_can_be_lowered_if_all_scores_were_kept(
    complete: Path, job: Job, tmp_path: Path, settings: list[str], keeps_all: str
) -> None:
    assert run(complete, tmp_path / "new", keeps_all, *settings) == expected_code(tmp_path / "new")
    job.run(tmp_path / "job", *COMPLETE, keeps_all, *settings)
    assert shard_hashes(tmp_path / "new") == shard_hashes(tmp_path / "job")


def test_the_job_resumes_the_output_and_a_second_run_makes_only_what_is_missing(
    loose: Path, tars: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "new"
    assert run(loose, output, "score.min_score=0.8") == 0
    before = hash_output(output)
    assert run_job(tars, output, "score.min_score=0.8", *LOOSE[1:]) in (0, grit.INCOMPLETE)
    assert hash_output(output) == before
    (output / "_manifests" / "00001.json").unlink()
    (output / "arrow" / "00000.arrow").write_bytes(b"cut off")
    with caplog.at_level("INFO", "hypergrit"):
        assert run(loose, output, "score.min_score=0.8") == 0
    assert hash_output(output) == before
    assert "3 shards, 1 finished before" in caplog.text


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("score.min_score=0.2", "score.min_score from 0.3 to 0.2: the boxes that the source removed"),
        ("score.min_side_px=7", "score.min_side_px from 8 to 7"),
        ("score.size_rule=released", "score.size_rule from area to released"),
        ("score.keep_all=true", "no scores of removed boxes"),
        ("ground.keep_pairs=true", "no images of rows without a box"),
        ("score.min_head_score=1", "no scores of a head"),
        ("score.min_presence=0.5", "its grounder miniature does not predict it"),
    ],
)
def test_what_filters_cannot_bring_back_is_refused_with_the_reason(
    loose: Path, tmp_path: Path, capsys: Printed, argument: str, message: str
) -> None:
    assert run(loose, tmp_path / "new", argument) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_rows_without_the_presence_of_a_phrase_are_dropped(tmp_path: Path) -> None:
    make_output(tmp_path / "sam", {0: [kept(picture(i), presence=[value]) for i, value in enumerate((0.4, 0.6))]})
    assert run(tmp_path / "sam", tmp_path / "new", "score.min_presence=0.5") == 0
    (manifest,) = manifests_of(tmp_path / "new")
    assert manifest["counts"] == {"read": 2, "kept": 1, "dropped": {"score": {"low_presence": 1}}}


def test_thresholds_of_boxes_have_no_effect_on_pairs_and_a_warning_names_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [kept(picture(i), boxes=[], box_scores=[], noun_chunks=[]) for i in range(3)]
    make_output(tmp_path / "pairs", {0: rows}, "grounder=none", "scorer=none", "parse.model=none")
    settings = ("size_rule=side", "min_side_px=999", "min_score=1", "min_presence=1", "min_clip_score=2.5")
    assert run(tmp_path / "pairs", tmp_path / "new", *(f"score.{setting}" for setting in settings)) == 0
    names = "score.min_clip_score, score.min_presence, score.min_score, score.min_side_px, score.size_rule"
    assert f"without effect on {tmp_path / 'pairs'}, which has no boxes: {names}" in caplog.text
    assert multiset(tmp_path / "new") == multiset(tmp_path / "pairs")


def test_a_rewrite_that_keeps_no_row_has_the_exit_code_of_such_a_job(tmp_path: Path, capsys: Printed) -> None:
    make_output(tmp_path / "some", {0: [kept(picture(i)) for i in range(2)]})
    for _ in range(2):  # the second time, all is finished before
        assert run(tmp_path / "some", tmp_path / "new", "score.min_score=0.95") == NOTHING_KEPT == 4
        assert "warning: no row was kept; " in capsys.readouterr().err
        (manifest,) = manifests_of(tmp_path / "new")
        assert manifest["counts"]["dropped"] == {"score": {"low_score": 2}}


def test_sources_without_rows_or_images_are_refused(tmp_path: Path, capsys: Printed) -> None:
    for formats, message in (("arrow", "has no stored images"), ("train", "has no arrow/ file")):
        make_output(tmp_path / formats, {0: [kept(picture(1))]}, f"formats=[{formats}]")
        assert run(tmp_path / formats, tmp_path / "new") == 2
        assert message in capsys.readouterr().err


# Several settings in one output.


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A merge of shards with min_score=0.8, by its configuration, and 0.5; `three` beside it has another source first."""
    folder = tmp_path_factory.mktemp("mixed")
    make_output(folder / "loose", {0: [scored(1, 0.6), scored(2, 0.9)]})
    make_output(folder / "all", {0: [scored(3, 0.6), scored(4, 0.9)]}, "score.keep_all=true")
    assert run(folder / "loose", folder / "strict", "score.min_score=0.8") == 0
    loose = [f"source={folder / 'loose'}", "mixed=true"]
    assert run(folder / "strict", folder / "mixed", *loose) == 0
    assert run(folder / "all", folder / "three", f"source={folder / 'strict'}", *loose) == 0
    return folder / "mixed"


def test_a_threshold_applies_to_all_shards_of_a_mixed_output_and_the_others_stay(mixed: Path, tmp_path: Path) -> None:
    expected = {"score.min_score=0.8": ([0.8, 0.8], [1, 1], 3), "formats=[arrow,grit]": ([0.8, 0.5], [1, 2], 4)}
    for name, (thresholds, n_kept, n_hashes) in expected.items():
        assert run(mixed, tmp_path / name, name) == 0
        found = manifests_of(tmp_path / name)
        assert [manifest["provenance"]["thresholds"]["min_score"] for manifest in found] == thresholds
        assert [manifest["counts"]["kept"] for manifest in found] == n_kept
        assert len({manifest["provenance"]["config_hash"] for manifest in found + manifests_of(mixed)}) == n_hashes


def test_a_threshold_of_a_mixed_output_is_lowered_only_if_all_shards_have_all_scores(
    mixed: Path, tmp_path: Path, capsys: Printed
) -> None:
    for source in (mixed, mixed.parent / "three"):
        assert run(source, tmp_path / "new", "score.min_score=0.4") == 2
        assert "to 0.4: the boxes that the source removed have no CLIPScore" in capsys.readouterr().err


@pytest.mark.parametrize("score", ["score.min_score=0.95", "score.min_score=0.8"])
def test_rows_that_a_filter_drops_come_back_and_duplicates_do_not(tmp_path: Path, score: str) -> None:
    rows = [scored(1, 0.6), scored(2, 0.9), scored(2, 0.9), lost()]
    make_output(tmp_path / "all", {0: rows[:2], 1: rows[2:]}, "score.keep_all=true", rows_per_shard=2)
    assert run(tmp_path / "all", tmp_path / "unique", "dedupe=[url]") == 0
    assert run(tmp_path / "unique", tmp_path / "high", score) == (0 if score.endswith("0.8") else NOTHING_KEPT)
    assert all(row["image"] for row in rows_of(tmp_path / "high") if row["reason"] == "low_score")
    assert run(tmp_path / "high", tmp_path / "back", "score.min_score=0.5", "samples_per_shard=1") == 0
    assert multiset(tmp_path / "back") == multiset(tmp_path / "unique")
    assert stats_of(tmp_path / "back")["rows"]["dropped"]["write"] == {"same_url": 1}
    assert len(read_rows(tmp_path / "back")) == 4


# Outputs with a stage of the user's own after `score`, whose code is not loaded.

LATE = {"name": "my:Late", "sha256": "0", "stage": "late", "after": "score", "reasons": {"bad": "it is bad"}}


def filtered(tmp_path: Path, min_score: float, **columns: object) -> pa.Table:
    provenance: Provenance = {
        **provenance_of(configure("/pairs", tmp_path / "out", "score.keep_all=true")), "plugins": [LATE]  # type: ignore[list-item]
    }  # fmt: skip
    thresholds = ScoreConfig(**{**provenance["thresholds"], "min_score": min_score})
    row = scored(0, 0.6) | {"key": f"{0:012d}", "source": "/pairs/0.parquet", "source_row": 0, **columns}
    part = SourcePart(
        source={"output": "out", "shard": 0, "manifest": ""}, number=0, plan=ShardPlan(0, 0, 1, ()), n_kept=0,
        provenance=provenance, thresholds=thresholds, keep_all=True,
    )  # fmt: skip
    return filter_table(pa.Table.from_pylist([row], schema=SCORED), part)


def test_a_row_that_a_late_stage_has_not_seen_does_not_come_back(tmp_path: Path) -> None:
    low = {"status": "dropped", "stage": "score", "reason": "low_score", "detail": "0.6"}
    assert filtered(tmp_path, 0.9, **low)["reason"].to_pylist() == ["low_score"]
    with pytest.raises(UserError, match="late after score have not seen it"):
        filtered(tmp_path, 0.1, **low)


@pytest.mark.parametrize("least", [0.1, 0.9])
def test_a_row_that_a_late_stage_dropped_stays_dropped(tmp_path: Path, least: float) -> None:
    found = filtered(tmp_path, least, status="dropped", stage="late", reason="bad", image=None)
    assert found.select(["stage", "reason"]).to_pylist() == [{"stage": "late", "reason": "bad"}]


def test_stages_after_a_late_stage_are_late_too() -> None:
    plugins = [
        {"stage": "early", "after": "download"},
        LATE,
        {"stage": "last", "after": "late"},
        {"name": "my:Grounder"},
    ]
    assert late_stages({"plugins": plugins}) == ["write", "late", "last"]  # type: ignore[typeddict-item]
