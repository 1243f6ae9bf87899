"""Scenes of the miniature study: no training scene shows an unseen pair, and tars are written once."""

import json
import tarfile
from itertools import islice
from pathlib import Path

from demo.paper.scenes import is_unseen, training_scenes, unseen_colours, unseen_pairs, write_tar
from demo.world.scenes import SHARD_SEEDS, compose
from demo.world.vocabulary import COLOURS, CONCEPTS


def test_training_scenes_never_show_an_unseen_pair_though_scenes_do() -> None:
    scenes = list(islice(training_scenes(SHARD_SEEDS[0]), 20))
    for scene in scenes:
        slots = compose(scene.seed)[0]
        assert not unseen_pairs(slots)
        assert not unseen_colours(slots)
    assert len({scene.style for scene in scenes}) == 3
    seeds = range(SHARD_SEEDS[0], SHARD_SEEDS[0] + 100)
    assert any(unseen_pairs(compose(seed)[0]) for seed in seeds)
    assert any(unseen_colours(compose(seed)[0]) for seed in seeds)


def test_the_shares_of_unseen_pairs_are_as_stated() -> None:
    names = sorted(concept.name for concept in CONCEPTS)
    pairs = [is_unseen("concepts", a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    assert abs(sum(pairs) / len(pairs) - 0.04) < 0.01
    colours = [is_unseen("colour", colour, name) for colour in COLOURS for name in names]
    assert abs(sum(colours) / len(colours) - 0.1) < 0.03


def test_a_tar_has_the_scenes_with_captions_and_another_their_true_boxes(tmp_path: Path) -> None:
    for kind in ("pairs", "true"):
        (tmp_path / kind).mkdir()
    write_tar(tmp_path, SHARD_SEEDS, (0, 3))
    files = {}
    for kind in ("pairs", "true"):
        with tarfile.open(tmp_path / kind / "00000.tar") as tar:
            files[kind] = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    assert len(files["pairs"]) == len(files["true"]) == 6
    for number in range(3):
        key = f"{number:09d}"
        assert files["pairs"][f"{key}.jpg"] == files["true"][f"{key}.jpg"]
        true = json.loads(files["true"][f"{key}.json"])
        assert true["caption"].encode() == files["pairs"][f"{key}.txt"]
        assert true["noun_chunks"]
    (tmp_path / "true" / "00000.tar").write_bytes(b"kept")
    write_tar(tmp_path, SHARD_SEEDS, (0, 3))
    assert (tmp_path / "true" / "00000.tar").read_bytes() == b"kept"
