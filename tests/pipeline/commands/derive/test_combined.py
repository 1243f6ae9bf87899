"""Rewrite: options that combine in one pass give what a chain of single passes gives."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import pytest

from hypergrit_common.cli import NOTHING_KEPT
from pipeline.commands import rewrite
from pipeline.commands import rewrite_survey as survey
from pipeline.run import derived
from tests.pipeline.commands.derive.outputs import Row, kept, lost, make_output, picture, read_rows
from tests.pipeline.commands.derive.rows import manifests_of, rows_of, stats_of
from tests.pipeline.jobs import hash_output

LOCAL = ("ray.runner=local", "ray.cpu_workers=1")
FILTER = "score.min_score=0.8"
DEDUPE = ("dedupe=[url,bytes,picture]", "dedupe_radius=2")
RESHARD = ("samples_per_shard=4", "seed=3", "mix_shards=2")
REST = pytest.mark.rest


def run(output: Path, *arguments: str) -> int:
    return rewrite.main([f"output={output}", *arguments, *LOCAL])


def scored(number: int, score: float, **columns: Any) -> Row:
    """A kept row with the picture of this number, and one box with this score."""
    box = {"phrase": 0, "x_min": 0.1, "y_min": 0.1, "x_max": 0.9, "y_max": 0.9, "score": score}
    return kept(picture(number), boxes=[box], url=f"http://x/{number}") | columns


def shards(first: int) -> dict[int, Sequence[Row]]:
    """Three shards: every fourth row has a low score, every sixth is lost, and some repeat rows of the other source."""
    rows = [
        lost(url=f"http://x/{n}") if n % 6 == 5 else scored(n, 0.6 if n % 4 == 2 else 0.9)
        for n in range(first, first + 20)
    ]
    rows[3] |= {"detail": None}
    return {i: rows[8 * i : 8 * i + 8] for i in range(3)}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs `a`, `b` with 8 rows of `a`, `other` with other settings and `all` with all scores; a folder `set`."""
    folder = tmp_path_factory.mktemp("world")
    make_output(folder / "a", shards(0))
    make_output(folder / "b", shards(12))
    make_output(folder / "other", shards(40), "download.max_bytes=77")
    make_output(folder / "all", shards(0), "score.keep_all=true")
    (folder / "set").mkdir()
    for number in (1, 25):
        cv2.imwrite(str(folder / "set" / f"{number}.png"), picture(number)[:, :, ::-1])
    (folder / "urls.txt").write_text("http://x/3\nhttp://x/14\nhttp://x/41\n")
    return folder


def against(world: Path) -> tuple[str, str]:
    return f"against={world / 'set'}", f"against={world / 'urls.txt'}"


def sources(world: Path, *names: str) -> list[str]:
    return [f"source={world / name}" for name in names]


def files(output: Path) -> dict[str, str]:
    """Hashes of the files of shards but the manifests, which name the sources, and the summaries, which name these."""
    found = hash_output(output).items()
    return {name: digest for name, digest in found if not name.startswith(("_manifests", "_summaries"))}


CHAINS = {
    "thresholds and duplicates": ([FILTER], DEDUPE),
    "thresholds and shards": ([FILTER], RESHARD),
    "duplicates and shards": (DEDUPE, RESHARD),
    "evaluation images and shards": (["AGAINST"], RESHARD),
    "duplicates and evaluation images": (DEDUPE, ["AGAINST"]),
    "everything": ([FILTER], DEDUPE, ["AGAINST"], RESHARD),
    "everything in order": ([FILTER], DEDUPE, ["AGAINST"], ["samples_per_shard=4", "shuffle=false"]),
}


@pytest.mark.parametrize(
    "steps",
    [pytest.param(steps, id=name, marks=() if name == "everything" else REST) for name, steps in CHAINS.items()],
)
@pytest.mark.parametrize("mixed", [False, True], ids=["", "mixed"])
def test_one_pass_writes_the_bytes_of_a_chain(
    world: Path, tmp_path: Path, steps: Sequence[Sequence[str]], mixed: bool
) -> None:
    names, allowed = (("a", "b", "other"), ["mixed=true"]) if mixed else (("a", "b"), [])
    filled = [[word for item in step for word in (against(world) if item == "AGAINST" else [item])] for step in steps]
    assert run(tmp_path / "0", *sources(world, *names), *allowed) == 0
    for i, step in enumerate(filled):
        assert run(tmp_path / str(i + 1), f"source={tmp_path / str(i)}", *step) == 0
    last = tmp_path / str(len(filled))
    one = tmp_path / "one"
    options = [word for step in filled for word in step]
    assert run(one, *sources(world, *names), *allowed, *options) == 0
    assert stats_of(one)["rows"] == stats_of(last)["rows"]
    assert list(read_rows(one).items()) == list(read_rows(last).items())
    assert [m["plan"] for m in manifests_of(one)] == [m["plan"] for m in manifests_of(last)]
    # One pass knows the settings of each source, of which a chain that merges first has only the hash.
    if not (mixed and FILTER in options):
        assert files(one) == files(last)
        assert [m["provenance"] for m in manifests_of(one)] == [m["provenance"] for m in manifests_of(last)]
    assert not list((one / "_dedupe").glob("*"))


def test_every_drop_is_counted_with_its_reason(world: Path, tmp_path: Path) -> None:
    options = [*sources(world, "a", "b"), FILTER, *DEDUPE, *against(world)]
    assert run(tmp_path / "new", *options) == 0
    rows = stats_of(tmp_path / "new")["rows"]
    assert rows["read"] == 40 == rows["kept"] + sum(sum(found.values()) for found in rows["dropped"].values())
    assert rows["dropped"]["score"] == {"low_score": 10 - 2}  # two more are evaluation images, by their URLs
    assert rows["dropped"]["download"].keys() == {"http_error", "in_evaluation_set"}
    assert rows["dropped"]["write"].keys() == {"same_url"}
    found = {row["url"]: row["reason"] for key, row in read_rows(tmp_path / "new").items() if int(key) < 20}
    assert found["http://x/1"] == found["http://x/3"] == found["http://x/14"] == "in_evaluation_set"
    assert found["http://x/6"] == "low_score"


@pytest.mark.parametrize(
    "options",
    [[], *(pytest.param(options, marks=REST) for options in ([FILTER], DEDUPE, ["AGAINST"], RESHARD))],
    ids=str,
)
def test_sources_with_other_settings_need_mixed(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: Sequence[str]
) -> None:
    filled = [word for item in options for word in (against(world) if item == "AGAINST" else [item])]
    arguments = [*sources(world, "a", "other"), *filled]
    assert run(tmp_path / "new", *arguments) == 2
    assert "the sources differ in download.max_bytes: 32000000, 77. Give mixed=true" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert run(tmp_path / "new", *arguments, "mixed=true") == 0
    assert len({manifest["provenance"]["config_hash"] for manifest in manifests_of(tmp_path / "new")}) == 2


def test_thresholds_that_are_given_are_no_difference(world: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "strict", *sources(world, "a"), FILTER) == 0
    arguments = [f"source={tmp_path / 'strict'}", *sources(world, "b")]
    assert run(tmp_path / "new", *arguments) == 2
    assert run(tmp_path / "new", *arguments, FILTER) == 0
    assert len({json.dumps(manifest["provenance"]) for manifest in manifests_of(tmp_path / "new")}) == 1


def test_rows_with_other_settings_are_never_in_one_shard(world: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "new", *sources(world, "a", "other"), "mixed=true", *RESHARD) == 0
    found = manifests_of(tmp_path / "new")
    assert all(len({source["output"] for source in manifest["origin"]["sources"]}) == 1 for manifest in found)
    folders = [manifest["origin"]["sources"][0]["output"] for manifest in found]
    assert folders not in (sorted(folders), sorted(folders, reverse=True))  # the seed mixes the shards
    for name in ("a", "other"):
        kept_rows = [
            manifest["counts"]["kept"]
            for manifest, folder in zip(found, folders, strict=True)
            if folder == str(world / name)
        ]
        assert sum(kept_rows) == stats_of_kept(world / name)
        assert sorted(kept_rows)[1:] == [4] * (len(kept_rows) - 1)
    assert len(read_rows(tmp_path / "new")) == 40


def stats_of_kept(output: Path) -> int:
    return sum(manifest["counts"]["kept"] for manifest in manifests_of(output))


def test_thresholds_can_be_lowered_and_rows_divided_in_one_pass(world: Path, tmp_path: Path) -> None:
    high = "score.min_score=0.95"
    assert run(tmp_path / "high", *sources(world, "all"), high) == NOTHING_KEPT
    assert stats_of_kept(tmp_path / "high") == 0
    assert all(row["image"] for row in rows_of(tmp_path / "high") if row["reason"] == "low_score")
    assert run(tmp_path / "new", f"source={tmp_path / 'high'}", FILTER, *RESHARD) == 0
    assert run(tmp_path / "filtered", *sources(world, "all"), FILTER) == 0
    assert run(tmp_path / "last", f"source={tmp_path / 'filtered'}", *RESHARD) == 0
    assert files(tmp_path / "new") == files(tmp_path / "last")
    assert stats_of_kept(tmp_path / "new") == 12


class Stop:
    """Counts the calls of a function, and raises KeyboardInterrupt at one of them."""

    def __init__(self, function: Any, at: int) -> None:
        self.function, self.at, self.n_calls = function, at, 0

    def __call__(self, *values: Any) -> Any:
        self.n_calls += 1
        if self.n_calls == self.at:
            raise KeyboardInterrupt
        return self.function(*values)


def test_a_pass_that_was_stopped_anywhere_is_completed_with_the_same_bytes(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*sources(world, "a", "b"), FILTER, *DEDUPE, *against(world), *RESHARD]
    assert run(tmp_path / "whole", *options) == 0
    new = tmp_path / "new"
    for module, name, at, n_calls in (
        (survey, "make_facts", 3, 3),
        (survey, "write_drops", 4, None),
        (survey, "count_rows", 3, 3),
        (survey, "count_rows", 3, 3),  # two of the six are counted before
        (derived, "write_shard", 2, 2),
    ):
        stop = Stop(getattr(module, name), at)
        with monkeypatch.context() as patch:
            patch.setattr(module, name, stop)
            assert run(new, *options) == 130
        assert n_calls in (None, stop.n_calls)
    with monkeypatch.context() as patch:
        for name in ("make_facts", "count_rows"):  # all is known
            patch.setattr(survey, name, Stop(None, 1))
        assert run(new, *options) == 0
    assert hash_output(new) == hash_output(tmp_path / "whole")
    assert not list((new / "_dedupe").iterdir())
    assert run(new, *options) == 0
    assert hash_output(new) == hash_output(tmp_path / "whole")


@pytest.mark.parametrize(
    "changed",
    [
        [FILTER, *RESHARD, "seed=4"],
        *(
            pytest.param(changed, marks=REST)
            for changed in (["score.min_score=0.85", *RESHARD], [FILTER, *DEDUPE, *RESHARD], [FILTER], RESHARD)
        ),
    ],
    ids=str,
)
def test_shards_of_other_options_are_not_discarded_without_overwrite(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: list[str]
) -> None:
    assert run(tmp_path / "new", *sources(world, "a"), FILTER, *RESHARD) == 0
    before = hash_output(tmp_path / "new")
    assert run(tmp_path / "new", *sources(world, "a"), *changed) == 2
    assert "give overwrite=true" in capsys.readouterr().err
    assert hash_output(tmp_path / "new") == before
    assert run(tmp_path / "new", *sources(world, "a"), *changed, "overwrite=true") == 0
    assert run(tmp_path / "fresh", *sources(world, "a"), *changed) == 0
    assert files(tmp_path / "new") == files(tmp_path / "fresh")


@pytest.mark.parametrize(
    ("option", "needed"),
    [
        ("memory_gb=2", "dedupe"),
        ("dedupe_radius=2", "dedupe"),
        ("against_radius=2", "against"),
        ("shuffle=false", "samples_per_shard"),
        ("seed=2", "samples_per_shard"),
        ("mix_shards=2", "samples_per_shard"),
    ],
)
def test_an_option_without_the_one_that_it_belongs_to_is_refused(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, needed: str
) -> None:
    assert run(tmp_path / "new", *sources(world, "a"), option) == 2
    name = option.partition("=")[0]
    assert f"{name} has no effect without {needed}=; add it, such as {needed}=" in capsys.readouterr().err


@pytest.mark.parametrize("score", ["score.min_score=0.95", FILTER])
def test_thresholds_apply_to_an_output_without_duplicates_of_a_job_that_kept_all(
    world: Path, tmp_path: Path, score: str
) -> None:
    make_output(tmp_path / "more", shards(12), "score.keep_all=true")
    both = [*sources(world, "all"), f"source={tmp_path / 'more'}"]
    assert run(tmp_path / "unique", *both, *DEDUPE) == 0
    assert run(tmp_path / "new", f"source={tmp_path / 'unique'}", score) == (0 if score == FILTER else NOTHING_KEPT)
    before, after = (stats_of(tmp_path / name)["rows"]["dropped"]["write"] for name in ("unique", "new"))
    assert before == after  # their images are gone, so that they must not come back at a lower threshold
    assert run(tmp_path / "back", f"source={tmp_path / 'new'}", "score.min_score=0.5") == 0
    assert stats_of(tmp_path / "back")["rows"]["dropped"]["write"] == before
