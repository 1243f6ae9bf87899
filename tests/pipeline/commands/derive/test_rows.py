"""Random options of rewrite on a small world: every row of the sources is in the output, or dropped for the right reason."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from hypergrit_common.cli import NOTHING_KEPT
from hypergrit_common.images import STORED_IMAGE_LIMITS, decode
from hypergrit_common.near_duplicates import perceptual_hash
from pipeline.commands import rewrite, rewrite_order
from pipeline.commands.evaluation_set import LATER
from pipeline.commands.rewrite_survey import Criterion
from pipeline.commands.verify import VerifyOptions, verify
from pipeline.output.manifest import manifest_hash
from schemas.status import KEY_REASONS
from tests.pipeline.commands.derive.outputs import LOCAL, Row, kept, lost, make_output, picture, read_rows, scored
from tests.pipeline.commands.derive.rows import manifests_of, rows_of, stats_of
from tests.pipeline.commands.derive.test_duplicates import brute_force
from tests.pipeline.here import compute_here
from tests.pipeline.jobs import hash_output

ROWS_PER_SHARD = 4
SOURCES = (
    ("a",), ("b",), ("all",), ("a", "b"), ("b", "a"), ("none", "a"), ("a", "other"), ("b", "all", "a"), ("none",)
)  # fmt: skip
"""Sources of a rewrite: `all` has all scores, `other` was made with other settings, and `none` has no kept row."""
DROP = {"status", "stage", "reason", "detail"}


def rows(first: int) -> list[Row]:
    """Ten rows with low and high scores, of which some are lost or repeat others."""
    found = [
        lost(url=f"http://x/{n}") if n % 6 == 5 else scored(n, 0.6 if n % 4 == 2 else 0.9, url=f"http://x/{n}")
        for n in range(first, first + 10)
    ]
    found[3] |= {"url": found[0]["url"]}
    found[4] = kept(picture(first, 2.0), url=None)
    found[7] |= {"image": found[1]["image"], "sha256": found[1]["sha256"]}
    repeated = {"status": "dropped", "stage": "write", "reason": "same_url", "detail": f"{1:012d}", "image": None}
    found[8] = scored(first + 8, 0.9, **repeated)
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of SOURCES, and evaluation images: a picture, and a list of URLs."""
    folder = tmp_path_factory.mktemp("world")

    def make(name: str, rows: Sequence[Row], *settings: str) -> None:
        shards = {i // ROWS_PER_SHARD: rows[i : i + ROWS_PER_SHARD] for i in range(0, len(rows), ROWS_PER_SHARD)}
        if name == "b":
            del shards[1]  # failed
        make_output(folder / name, shards, *settings, rows_per_shard=ROWS_PER_SHARD)

    low = {"status": "dropped", "stage": "score", "reason": "low_score", "detail": "best 0.6"}
    removed = [{"area_px": 1728.0, "clip_cosine": 0.3, "removed": "low_score"}]
    every = [
        row | low | {"box_scores": removed} if row["boxes"] and row["boxes"][0]["score"] < 0.7 else row
        for row in rows(20)
    ]
    make("a", rows(0))
    make("b", rows(5))
    make("other", rows(10), "download.max_bytes=77")
    make("all", every, "score.keep_all=true", "score.min_score=0.7")
    make("none", [lost(), lost(reason="duplicate", detail=f"{0:012d}")])
    (folder / "set").mkdir()
    cv2.imwrite(str(folder / "set/1.png"), picture(7)[:, :, ::-1])
    (folder / "urls.txt").write_text("http://x/2\nhttp://x/9\nhttp://x/20\n")
    return folder


@dataclass
class Options:
    """Options of a rewrite."""

    sources: Sequence[str]
    arguments: list[str] = field(default_factory=list)
    min_score: float | None = None
    dedupe: tuple[Criterion, ...] = ()
    radius: int = 0
    against: bool = False
    samples: int | None = None
    shuffle: bool = True
    formats: Sequence[str] = ("arrow", "grit", "train")


def draw(rng: random.Random, world: Path) -> Options:
    """Draw options."""
    found = Options(rng.choice(SOURCES))
    given = [f"source={world / name}" for name in found.sources]
    if {"other", "all"} & {*found.sources} and len(found.sources) > 1:
        given.append("mixed=true")
    if rng.random() < 0.5:
        found.min_score = rng.choice((0.5, 0.8)) if found.sources == ("all",) else 0.8
        given.append(f"score.min_score={found.min_score}")
    if rng.random() < 0.6:
        criteria: list[Criterion] = ["url", "bytes", "picture"]
        found.dedupe = tuple(rng.sample(criteria, rng.randint(1, 3)))
        given.append(f"dedupe=[{','.join(found.dedupe)}]")
        if "picture" in found.dedupe:
            found.radius = rng.choice((0, 4))
            given.append(f"dedupe_radius={found.radius}")
    if rng.random() < 0.4:
        found.against = True
        given += [f"against={world / 'set'}", f"against={world / 'urls.txt'}"]
    if rng.random() < 0.5:
        found.samples, found.shuffle = rng.randint(1, 5), rng.random() < 0.7
        given += [f"samples_per_shard={found.samples}", *([] if found.shuffle else ["shuffle=false"])]
        given += [f"seed={rng.randrange(99)}"] if found.shuffle else []
    if rng.random() < 0.5:
        found.formats = rng.choice((("arrow",), ("arrow", "grit"), ("arrow", "train")))
        given += [f"formats=[{','.join(found.formats)}]", "write.image_bytes=true"]
    found.arguments = given
    return found


def expected(world: Path, options: Options) -> tuple[dict[str, Row], dict[str, Row]]:
    """The rows of the sources with their new keys, and the rows of the output."""
    before, offset = dict[str, Row](), 0
    for order, (name, n_keys) in enumerate(key_ends(world, options.sources)):
        for key, row in read_rows(world / name).items():
            detail = row["detail"]
            row |= {"source": f"{order}/{row['source']}"} if len(options.sources) > 1 else {}
            if row["reason"] in KEY_REASONS:
                detail = f"{int(detail) + offset:012d}"
            before[f"{int(key) + offset:012d}"] = row | {"detail": detail, "origin": (name, int(key) // ROWS_PER_SHARD)}
        offset += n_keys
    after = {key: dict(row) for key, row in before.items()}

    def drop(key: str, stage: str, reason: str, detail: str | None) -> None:
        after[key] |= {"status": "dropped", "stage": stage, "reason": reason, "detail": detail}

    for key, row in after.items():
        if options.min_score is not None and (row["status"] == "kept" or row["stage"] == "score"):
            row |= dict.fromkeys(DROP) | {"status": "kept"}
            if row["boxes"][0]["score"] < options.min_score:
                drop(key, "score", "low_score", None)
    facts = [(int(key), row["url"], row["sha256"], phash(row)) for key, row in after.items() if row["status"] == "kept"]
    for number, (stays, reason) in brute_force(facts, options.dedupe, options.radius).items():
        drop(f"{number:012d}", "write", reason, f"{stays:012d}")
    urls = (world / "urls.txt").read_text().split() if options.against else []
    shown = perceptual_hash(picture(7)) if options.against else None
    for key, row in after.items():
        if row["status"] == "kept" or row["stage"] in ("score", "write"):
            if row["url"] in urls:
                drop(key, "download", "in_evaluation_set", "url")
            elif shown is not None and row["status"] == "kept" and (bits := (phash(row) ^ shown).bit_count()) <= 6:
                drop(key, "download", "in_evaluation_set", f"perceptual hash, {bits} bits")
    return before, after


def key_ends(world: Path, names: Sequence[str]) -> list[tuple[str, int]]:
    """The sources with the number of keys that each takes, one above its highest row."""
    plans = {name: [manifest["plan"] for manifest in manifests_of(world / name)] for name in names}
    return [(name, max(plan["first_row"] + plan["n_rows"] for plan in found)) for name, found in plans.items()]


def phash(row: Row) -> int:
    return perceptual_hash(decode(row["image"], STORED_IMAGE_LIMITS))


def check_rows(output: Path, before: dict[str, Row], after: dict[str, Row]) -> None:
    """Compare the rows of an output with those of `expected`, all columns, and the images of the kept ones."""
    found = read_rows(output)
    assert found.keys() == after.keys()
    for key, row in found.items():
        wanted, changed = after[key], {name for name, value in row.items() if value != before[key][name]} - {"key"}
        detail = row["detail"] if row["stage"] != "score" else wanted["detail"]
        assert [row["status"], row["stage"], row["reason"], detail] == [
            wanted[name] for name in ("status", "stage", "reason", "detail")
        ]
        may_change = set[str]()
        if {name: wanted[name] for name in DROP} != {name: before[key][name] for name in DROP}:
            may_change = DROP | {"image"}
            if "score" in (row["stage"], before[key]["stage"]):
                may_change |= {"box_scores", "clip_similarity"}
            may_change |= {*LATER} if row["reason"] == "in_evaluation_set" else set()
        assert changed <= may_change, key
        has_image = row["status"] == "kept" or (before[key]["origin"][0] == "all" and row["stage"] == "score")
        assert (row["image"] is not None) == has_image
    counts = Counter((row["stage"], row["reason"]) for row in after.values() if row["status"] == "dropped")
    rows = stats_of(output)["rows"]
    assert (rows["read"], rows["kept"]) == (len(after), len(after) - counts.total())
    assert {(stage, reason): n for stage, reasons in rows["dropped"].items() for reason, n in reasons.items()} == counts


def check_shards(output: Path, world: Path, options: Options, before: dict[str, Row], after: dict[str, Row]) -> None:
    """Compare the division into shards with the options, and with what the manifests say of it."""
    manifests, rows = manifests_of(output), iter(rows_of(output))
    shards = [[next(rows)["key"] for _ in range(manifest["counts"]["read"])] for manifest in manifests]
    sources = {
        (name, manifest["shard"]): manifest for name in options.sources for manifest in manifests_of(world / name)
    }
    for keys, manifest in zip(shards, manifests, strict=True):
        assert {*manifest["formats"]} == {*options.formats}
        places = {before[key]["origin"] for key in keys}
        named = {(item["output"], item["shard"]): item["manifest"] for item in manifest["origin"]["sources"]}
        assert named == {(str(world / name), i): manifest_hash(sources[name, i]) for name, i in places}
        assert len({sources[place]["provenance"]["config_hash"] for place in places}) == 1
    plans = [manifest["plan"] for manifest in manifests]
    if options.samples is None:
        assert [before[keys[0]]["origin"] for keys in shards] == [*sources]
        offsets = [int(keys[0]) - sources[before[keys[0]]["origin"]]["plan"]["first_row"] for keys in shards]
        assert all(
            manifest["origin"]["settings"].get("key_offset", 0) == n
            for manifest, n in zip(manifests, offsets, strict=True)
        )
        assert [plan["first_row"] for plan in plans] == [int(keys[0]) for keys in shards]
        return
    kept_keys = [[key for key in keys if after[key]["status"] == "kept"] for keys in shards]
    n_settings = len({manifest["provenance"]["config_hash"] for manifest in manifests})
    assert sum(len(keys) != options.samples for keys in kept_keys) <= n_settings
    assert max(map(len, kept_keys)) <= options.samples
    assert [plan["first_row"] + plan["n_rows"] for plan in plans[:-1]] == [plan["first_row"] for plan in plans[1:]]
    assert plans[-1]["first_row"] + plans[-1]["n_rows"] == sum(n for _, n in key_ends(world, options.sources))
    if n_settings == 1:
        dropped = [len(keys) - len(found) for keys, found in zip(shards, kept_keys, strict=True)]
        assert max(dropped) - min(dropped) <= 1
        order = [key for keys in kept_keys for key in keys]
        assert options.shuffle or order == sorted(order)


class Shuffled:
    """A runner that computes in a random order, and is stopped before the n-th result."""

    def __init__(self, rng: random.Random, n: float) -> None:
        self.rng, self.n = rng, n

    def __call__(self, plans: Sequence[Any], config: Any, recipe: Any) -> Iterator[Any]:
        for result in compute_here(self.rng.sample(list(plans), len(plans)), config, recipe):
            self.n -= 1
            if self.n < 0:
                raise KeyboardInterrupt
            yield result


@pytest.mark.parametrize("seed", range(30))
def test_every_row_is_there_once_or_dropped_for_its_reason(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(rewrite_order, "MIXED", rng.choice((2, 64)))
    options = draw(rng, world)

    def run(name: str, n: float = np.inf) -> int:
        monkeypatch.setattr("pipeline.run.loop.compute_local", Shuffled(rng, n))
        return rewrite.main([f"output={tmp_path / name}", *LOCAL, "report.summary=false", *options.arguments])

    before, after = expected(world, options)
    code = 0 if any(row["status"] == "kept" for row in after.values()) else NOTHING_KEPT
    sources = [hash_output(world / name) for name in options.sources]
    assert run("new") == code
    check_rows(tmp_path / "new", before, after)
    check_shards(tmp_path / "new", world, options, before, after)
    assert verify(str(tmp_path / "new"), VerifyOptions(processes=1)) == 0
    assert [hash_output(world / name) for name in options.sources] == sources
    if seed % 3 == 0:
        assert run("again", rng.randint(1, 20)) in (code, 130)
        assert run("again") == code
        assert hash_output(tmp_path / "again") == hash_output(tmp_path / "new")
        assert not list((tmp_path / "again").glob("_dedupe/*"))
