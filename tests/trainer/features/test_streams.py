"""Labels, queries and patches of features are those that a training on the shards reads."""

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from hypergrit_common.errors import UserError
from tests.trainer.data.samples import Files, train_files, write_shards
from tests.trainer.features.conftest import World
from trainer.batch import Stream
from trainer.checkpoints.model import LoadedModel, load_model
from trainer.checkpoints.towers import FrozenModel
from trainer.data.batch_builder import BatchBuilder
from trainer.data.config import DataConfig
from trainer.data.feature_record import read_record
from trainer.data.features import PARALLEL, FeatureBuilder, FeatureStore, open_shard
from trainer.data.loader import Loader
from trainer.data.order import Draw
from trainer.data.text_streams import STREAMS, TextRow, Texts, find_queries, possible_queries
from trainer.evaluation.held_out.shards import HeldOutShards
from trainer.text.relations import RELATIONS

CAPTIONS = (
    "cat 1. A red dog with a ball, near  the house; it runs and two birds under the old tree by the long river bank",
    "box 0 of 1",
    "a cat, a dog and Box 0 of 2",
    "no queries",
)


def captioned(number: int) -> Files:
    """A sample with a caption of several sentences and parts, and up to three boxes, whose phrases are among the parts."""
    files = train_files(number, n_boxes=1 + number % 3, with_json=False)
    return files | {"child.txt": CAPTIONS[number % 4].encode(), "parent000.txt": f"Box  0 of {number}".encode()}


def builders(world: World, loaded: LoadedModel, need: str, **settings: object) -> tuple[BatchBuilder, FeatureBuilder]:
    """Builders from the shards and from the features of all boxes, which draw nothing."""
    needs, found = frozenset({need, "boxes"}), []
    for source in ({"shards": str(world.shards)}, {"features": str(world.features)}):
        config = DataConfig(**source, boxes="all", workers=0, **settings)  # type: ignore[arg-type]
        found.append(Loader(config, tokenizer=loaded.tokenizer, size_px=16, batch=8, needs=needs).builder)
    shards, features = found
    assert isinstance(shards, BatchBuilder)
    assert isinstance(features, FeatureBuilder)
    return shards, features


def check_same(loaded: LoadedModel, expected: Stream, found: Stream) -> None:
    """The streams have equal facts, and the features are those of the token ids."""
    assert (found.side, found.chain) == (expected.side, expected.chain)
    for name in ("owner", "depth", "label", "place", "weight", "parent"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=0, atol=0)
    with torch.no_grad():
        states = loaded.model.textual(expected.rows)
    torch.testing.assert_close(found.rows.float(), states, atol=2e-3, rtol=2e-3)


def drawn(samples: list[int]) -> Draw:
    return Draw(np.array(samples), np.array(samples))


def test_the_labels_of_features_are_those_of_the_shards(world: World) -> None:
    loaded = load_model(world.tower)
    shards, features = builders(world, loaded, "levels")
    with_levels = [number for number in range(64) if number % 8]
    assert features.index.n_samples == len(with_levels)
    chosen = [40, 1, 9, 9, 55, 3]  # of two shards, one of them twice
    expected, _ = shards.build(0, drawn([with_levels[place] for place in chosen]))
    found, _ = features.build(0, drawn(chosen))
    check_same(loaded, expected["levels"], found["levels"])
    assert found["levels"].rows.shape[0] < found["levels"].owner.shape[0]
    torch.testing.assert_close(found["box_image"].owner, expected["box_image"].owner)
    features.config = DataConfig(features=str(world.features), texts="tokens", boxes="all")
    tokens, _ = features.build(0, drawn(chosen))
    assert torch.equal(tokens["levels"].rows, expected["levels"].rows)


@pytest.mark.parametrize("most", [2, 5, 60])
def test_the_queries_of_features_are_those_of_the_shards(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(DataConfig, "max_queries", most)
    loaded, other = load_model(world.tower), World(tmp_path)
    other.tower, other.shards = world.tower, write_shards(tmp_path / "shards", (5, 3), captioned)
    assert other.write(other.features, "patches=true", "rows_per_shard=6") == 0
    shards, features = builders(other, loaded, "queries")
    for chosen in ([7, 0, 5, 2], [3], [1, 6]):
        expected, _ = shards.build(0, drawn(chosen))
        found, _ = features.build(0, drawn(chosen))
        check_same(loaded, expected["queries"], found["queries"])
        features.config = DataConfig(features=str(other.features), texts="tokens", boxes="all")
        tokens, _ = features.build(0, drawn(chosen))
        assert torch.equal(tokens["queries"].rows, expected["queries"].rows)
        features.config = DataConfig(features=str(other.features), boxes="all")


def test_the_queries_of_any_boxes_are_stored() -> None:
    parts = ", ".join(f"word {number} of many" for number in range(40))
    phrases = [f"Word {number} Of many" for number in range(0, 40, 3)] + ["a  b"]
    for caption in (*CAPTIONS, parts):
        stored = set(possible_queries(caption, phrases))
        for first in range(len(phrases)):
            for chosen in (phrases[first:], phrases[: first + 1], phrases[first : first + 1]):
                assert {query.text for query in find_queries(caption, chosen, 100)} <= stored


def test_stored_patches_are_the_states_of_the_tower_of_the_view_of_their_image(world: World) -> None:
    loaded = load_model(world.tower)
    found = HeldOutShards(str(world.shards)).read_part(range(64), 16)
    with torch.no_grad():
        expected = FrozenModel(loaded.model, projected=False).patches(loaded.model.normalised(found.images))
        tokens = loaded.model.visual.forward_features(loaded.model.normalised(found.images))  # type: ignore[operator]
    torch.testing.assert_close(expected, tokens)  # the class token, then the patches of the last layer
    store = FeatureStore(str(world.features), frozenset({"queries"}))
    rows, views = store.locate(np.arange(64)), np.zeros(64, np.int64)
    stored = torch.cat([rows.take("image", views), rows.take("patches", views)], 1).view(64, 5, 32)
    torch.testing.assert_close(stored.float(), expected, atol=4e-3, rtol=4e-3)
    _, features = builders(world, loaded, "queries")
    plain, _ = builders(world, loaded, "boxes")[1].build(8, drawn([*range(16)]))
    packed, _ = features.build(8, drawn([*range(16)]))
    views = features.draw(8 + np.arange(16), 1, 2)
    assert set(views.tolist()) == {0, 1}
    assert torch.equal(packed["image"].rows[:, 0], plain["image"].rows)
    own = features.index.locate(np.arange(16)).take("patches", views)
    assert torch.equal(packed["image"].rows[:, 1:].flatten(1), own)


def test_features_without_labels_or_patches_are_named(world: World, tmp_path: Path) -> None:
    other = World(tmp_path)
    other.tower, other.shards = world.tower, write_shards(tmp_path / "shards", (4,))
    assert other.write(other.features) == 0
    with pytest.raises(UserError, match=r"no sample with a box and labels of a taxonomy, which the model needs"):
        FeatureStore(str(other.features), frozenset({"boxes", "levels"}))
    with pytest.raises(UserError, match=r"no states of patches, .*patches=true"):
        FeatureStore(str(other.features), frozenset({"queries"}))


def test_lists_of_a_shard_that_do_not_belong_together_are_an_error(world: World, tmp_path: Path) -> None:
    record = dict(read_record(str(world.features)))
    source, path = world.features / "features" / "00000.arrow", tmp_path / "0.arrow"
    with pa.ipc.open_file(pa.memory_map(str(source))) as file:
        table = file.read_all()
    rows = table.to_pylist()

    def opened(changes: dict[int, dict[str, Any]]) -> None:
        changed = pa.Table.from_pylist([row | changes.get(i, {}) for i, row in enumerate(rows)], table.schema)
        with pa.ipc.new_file(str(path), table.schema) as file:
            file.write_table(changed)
        open_shard(str(path), record)

    opened({})
    for name in itertools.chain(*PARALLEL):
        few, many = sorted(range(len(rows)), key=lambda i: len(rows[i][name]))[:: len(rows) - 1]
        shorter, longer = rows[many][name][:-1], [*rows[few][name], rows[many][name][-1]]
        for changes in ({many: {name: shorter}}, {many: {name: shorter}, few: {name: longer}}):  # also of equal totals
            with pytest.raises(
                UserError, match=rf"0\.arrow cannot be read: its lists .*{name}.* write the features again"
            ):
                opened(changes)
    words = len(rows[1]["head"])
    wrong = {
        "relation": (-32768, -1, len(RELATIONS)),
        "head": (-1, words),
        "word_of_token": (-2, words),
        "depth": (-1, 1024),
    }
    for name, numbers in wrong.items():
        for number in numbers:
            with pytest.raises(UserError, match=f"its column {name} has a number out of range"):
                opened({1: {name: [*rows[1][name][:-1], number]}})
    phrases = table.column("phrase").combine_chunks()
    lacking = pa.ListArray.from_arrays(
        phrases.offsets, pa.nulls(len(phrases.values), pa.string()), table.schema.field("phrase").type
    )
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(
            table.set_column(table.schema.get_field_index("phrase"), table.schema.field("phrase"), lacking)
        )
    with pytest.raises(UserError, match="its column phrase lacks items"):
        open_shard(str(path), record)


def test_a_query_that_the_features_lack_is_an_error_that_names_the_sample(world: World) -> None:
    _, found = builders(world, load_model(world.tower), "queries")
    kind = next(kind for kind in STREAMS.values() if kind.column == "query")
    rows = found.index.locate(np.arange(2))
    with pytest.raises(UserError, match=r"0\.arrow lacks a query of \S+; write the features again"):
        found.stream(kind._replace(rows=lambda _: [TextRow("no such text")]), rows, [Texts("a", [], [])] * 2)


WRONG: list[tuple[str, Any]] = [
    *(("settings.views", value) for value in (0, 4, 1 << 40, "2", True)),
    *(("settings.tokens", value) for value in ("tower", 5, {"kind": "tower"}, [])),
    *(("training.model.text", value) for value in (None, "x", [], {"name": "cached"})),
    *(("training.model.image.name", value) for value in ("vit_small", None)),
    *(("training.model.image.kwargs.width", value) for value in (-1, 31, 1 << 30, "32", None)),
    *(("training.model.image.kwargs.patches", value) for value in (-1, 3, "4")),
    *((f"training.{name}", 1) for name in ("model.image.kwargs.hidden", "model.embed_dim", "optim")),
    *((name, None) for name in ("training", "training.model", "training.model.image.kwargs", "settings", "tower")),
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_record_with_other_values_is_an_error(world: World, tmp_path: Path, key: str, value: Any) -> None:
    """Those that it may have are compared with the shards: 4 views, for example, of 2 that are twice as wide."""
    record = json.loads((world.features / "features.json").read_text())
    *groups, last = key.split(".")
    functools.reduce(dict.__getitem__, groups, record)[last] = value
    (tmp_path / "features.json").write_text(json.dumps(record))
    for name in ("features", "_manifests"):
        (tmp_path / name).symlink_to(world.features / name)
    with pytest.raises(UserError, match=r"(holds no features|cannot be read).*write "):
        FeatureStore(str(tmp_path), frozenset())
