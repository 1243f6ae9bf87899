"""Shards that share batches: the same tables as from the stages, full batches, and no images of rows that are done."""

import gc
import weakref
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.batches.scored import Scored
from pipeline.batches.shards import SharedBatches
from pipeline.ground.config import GroundConfig
from pipeline.ground.stage import Ground
from pipeline.images import encode_jpeg
from pipeline.score.config import ScoreConfig
from pipeline.score.stage import Score
from pipeline.score.thresholds import resolve_thresholds
from schemas.table import with_images, without_images
from tests.pipeline.ground.fake_grounder import FakeGrounder
from tests.pipeline.ground.test_stage import given_box
from tests.pipeline.rows import table_after
from tests.pipeline.score.test_stage import colour_scorer


def row(i: int, width: int = 40, **more: object) -> dict[str, object]:
    caption = f"we see a red dog and a blue cat {i}"
    spans = [(7, 16), (21, 31), (0, 2)]
    chunks = [{"start": a, "end": b, "root": 0, "removed": "pronoun" if a == 0 else None} for a, b in spans]
    pixels = np.full((30, width, 3), 40, np.uint8)
    pixels[:, :, 0 if i % 3 else 2] = 200
    image = encode_jpeg(pixels)
    return {"caption": caption, "noun_chunks": chunks, "width": width, "height": 30, "image": image, **more}


def stages(keep_all: bool = False, batch_size: int = 4, score: float = 0.8) -> tuple[Ground, Score]:
    config = ScoreConfig(min_score=0.5, min_clip_score=1.8, keep_all=keep_all, min_side_px=8)
    scorer = colour_scorer(batch_size=4)
    thresholds = resolve_thresholds(config, grounder="miniature")
    return Ground(GroundConfig(batch_size=batch_size), FakeGrounder(score=score)), Score(config, thresholds, scorer)


def table(first: int, n: int, **more: object) -> pa.Table:
    return table_after("parse", [row(first + i, 40 + 10 * ((first + i) % 3), **more) for i in range(n)])


def run(batches: SharedBatches, tables: list[pa.Table]) -> dict[int, Scored]:
    found = [scored for k, item in enumerate(tables) for scored in batches.add(k, item)]
    found += batches.finish()
    batches.close()
    assert sorted(scored.shard for scored in found) == list(range(len(tables)))
    return {scored.shard: scored for scored in found}


@pytest.mark.parametrize("keep_all", [False, True])
def test_shards_that_share_batches_have_the_tables_of_the_stages(keep_all: bool) -> None:
    boxes = {"given_noun_chunks": [given_box(7, 16, 0.7), given_box(21, 31, 0.4)], "given_chunks": [0, 1]}
    tables = [table(0, 7), table(7, 5, **boxes), table(12, 6), table_after("parse", [])]
    ground, score = stages(keep_all)
    expected = [score(ground(item)) for item in tables]
    found = run(SharedBatches(ground, score), tables)
    for k, item in enumerate(tables):
        assert with_images(found[k].table, item).equals(expected[k])
    statuses = [value for item in expected for value in item["status"].to_pylist()]
    assert {"kept", "dropped"} == set(statuses)


def test_rows_without_boxes_are_dropped_as_by_the_stage() -> None:
    ground, score = stages(score=0.05)
    expected = score(ground(table(0, 3)))
    (found,) = run(SharedBatches(ground, score), [table(0, 3)]).values()
    assert set(expected["reason"].to_pylist()) == {"no_box"}
    assert with_images(found.table, table(0, 3)).equals(expected)
    assert found.seconds["ground"][1] == 3
    assert found.seconds["score"][1] == 0


def test_batches_of_sixteen_shards_are_at_least_95_percent_full_and_those_of_single_shards_are_not() -> None:
    tables = [table(20 * k, 20) for k in range(16)]
    ground, score = stages(batch_size=8)

    def fill(groups: list[list[pa.Table]]) -> dict[str, float]:
        items, batches = dict[str, int](), dict[str, int]()
        for group in groups:
            shared = SharedBatches(ground, score)
            run(shared, group)
            for stage, n in shared.batcher.n_items.items():
                items[stage] = items.get(stage, 0) + n
                batches[stage] = batches.get(stage, 0) + shared.batcher.n_batches[stage]
        return {stage: items[stage] / batches[stage] for stage in items}

    shared, alone = fill([tables]), fill([[item] for item in tables])
    assert shared["ground"] >= 0.95 * 8
    assert shared["score"] >= 0.95 * 4
    assert alone["ground"] < 0.9 * 8


def test_the_results_of_a_group_are_the_same_in_every_run() -> None:
    tables = [table(7 * k, 7) for k in range(5)]
    first, second = (run(SharedBatches(*stages()), tables) for _ in range(2))
    assert all(first[k].table.equals(second[k].table) for k in first)


def test_a_group_holds_no_table_whose_rows_were_added_and_few_images() -> None:
    ground, score = stages(batch_size=8)
    batches, most, total = SharedBatches(ground, score), 0, 0
    for k in range(10):
        item = table(20 * k, 20)
        alive = weakref.ref(item)
        total += sum(3 * row["width"] * row["height"] for row in item.to_pylist())
        for _ in batches.add(k, item):
            pass
        most = max(most, batches.batcher.held)
        del item
        gc.collect()
        assert alive() is None
    assert most < 0.3 * total
    list(batches.finish())
    batches.close()
    assert batches.batcher.held == 0


def test_a_table_without_images_has_all_else_and_gets_them_back() -> None:
    whole = table(0, 4)
    thin = without_images(whole)
    assert thin["image"].to_pylist() == [b""] * 4
    assert thin.schema.equals(whole.schema)
    assert with_images(thin, whole).equals(whole)
    assert thin.nbytes < whole.nbytes


def test_the_exception_of_a_grounder_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    ground, score = stages(batch_size=2)

    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ground.grounder, "prepare", fail)
    batches = SharedBatches(ground, score)
    with pytest.raises(ZeroDivisionError):
        list(batches.add(0, table(0, 20)))
    batches.close()
