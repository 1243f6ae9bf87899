"""Pictures of a run: pairs as the model sees them, distances from the root, confusions."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from hypergrit_common.images import Image
from tests.trainer.data.samples import Files, train_files, write_shards
from tests.trainer.small_run import SAMPLES_PER_SHARD, run, run_forked
from trainer.batch import Batch
from trainer.evaluation.held_out.evaluate import Confusion, Details
from trainer.text.tokenizer import Tokenizer
from trainer.training.pictures import MAX_CLASSES, OTHERS, confusion_picture, evaluation_pictures, merged, pair_picture

TOKENIZER = Tokenizer([], context_length=60)
COLOURS = ((250, 10, 20), (10, 220, 30), (20, 30, 240), (240, 230, 10))
PLAIN = "a dog on a sofa"
HOSTILE = (
    r"$\frac{1}{",
    "$10 to $20 \\",
    "\x1b[2J\x00 ‮exe.txt",
    "犬 🐕 कुत्ता",
    "",
    "long " * 2000,
)
TEXTS = tuple(filter(None, HOSTILE))  # a sample without a caption is bad


def solid(colour: tuple[int, int, int]) -> Tensor:
    return torch.tensor(colour, dtype=torch.uint8)[:, None, None].expand(3, 16, 16)


def batch_of(captions: tuple[str, str], phrases: tuple[str, str] = ("a dog", "a sofa")) -> Batch:
    """Two pairs; both boxes belong to the second. Images and boxes have a colour each."""
    images = torch.stack([solid(colour) for colour in COLOURS])
    return Batch(
        images=images[:2],
        token_ids=TOKENIZER(captions),
        box_images=images[2:].float() / 255,
        box_token_ids=TOKENIZER(phrases),
        box_owner=torch.tensor([1, 1]),
    )


def centre(picture: Image, colour: tuple[int, int, int]) -> tuple[float, float]:
    """Mean row and column of the pixels of a colour; there must be many."""
    rows, columns = np.nonzero((picture == np.array(colour)).all(-1))
    assert len(rows) > 2000
    return rows.mean(), columns.mean()


def test_each_image_is_left_of_its_own_boxes() -> None:
    first, second, box, other_box = (
        centre(pair_picture(batch_of((PLAIN, PLAIN)), TOKENIZER, 8), colour) for colour in COLOURS
    )
    assert first[0] < second[0] == pytest.approx(box[0], abs=1) == pytest.approx(other_box[0], abs=1)
    assert first[1] == pytest.approx(second[1], abs=1)
    assert second[1] < box[1] < other_box[1]


def test_the_limit_counts_pairs() -> None:
    one, two = (pair_picture(batch_of((PLAIN, PLAIN)), TOKENIZER, limit) for limit in (1, 2))
    assert two.shape[0] == pytest.approx(2 * one.shape[0], rel=0.02)
    assert not (one == np.array(COLOURS[1])).all(-1).any()


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_neither_fails_nor_moves_the_images(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = pair_picture(batch_of((text, text), (text, text)), TOKENIZER, 2)
    plain = pair_picture(batch_of((PLAIN, PLAIN)), TOKENIZER, 2)
    assert found.shape == plain.shape
    for colour in COLOURS:
        assert centre(found, colour) == pytest.approx(centre(plain, colour))


def test_captions_are_written_above_their_images() -> None:
    shown, other = (pair_picture(batch_of((text, PLAIN)), TOKENIZER, 2) for text in (PLAIN, "two cats"))
    changed = np.nonzero((shown != other).any((1, 2)))[0]
    assert len(changed)
    assert changed.max() < centre(shown, COLOURS[0])[0]


def test_classes_beyond_the_limit_are_counted_as_one() -> None:
    table = np.array([[5, 0, 1], [0, 7, 2], [0, 0, 9]])
    assert merged(table, [0, 2]).tolist() == [[5, 1, 0], [0, 9, 0], [0, 2, 7]]
    n = MAX_CLASSES + 60
    many = Confusion(torch.eye(n, dtype=torch.int64), [f"class {i}" for i in range(n)])
    few = Confusion(
        torch.eye(MAX_CLASSES, dtype=torch.int64), [f"class {i}" for i in range(MAX_CLASSES - 1)] + [OTHERS]
    )
    assert confusion_picture(many).shape == pytest.approx(confusion_picture(few).shape, rel=0.05)


def test_distances_that_are_no_numbers_are_left_out() -> None:
    nan = float("nan")
    details = Details(
        distances={"image": torch.tensor([nan, nan]), "text": torch.tensor([1.0, nan, 2.0])}, quantity="distance"
    )
    pictures = evaluation_pictures(details)
    assert {name: values.tolist() for name, values in pictures.histograms.items()} == {"distances/text": [1.0, 2.0]}
    assert list(pictures.images) == ["distances/all"]
    assert evaluation_pictures(Details()).images == {}


def hostile_sample(number: int) -> Files:
    files = train_files(number, n_boxes=1 if number % 3 else 4)
    return files | {"child.txt": TEXTS[number % len(TEXTS)].encode()}


def events(output: Path) -> Any:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert len(list((output / "tensorboard").iterdir())) == 1
    return accumulators.EventAccumulator(str(output / "tensorboard"), {"images": 0, "histograms": 0}).Reload()


def steps(found: list[Any]) -> list[int]:
    return [event.step for event in found]


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    """Settings of a run with evaluations, on captions that are hostile."""
    import cv2

    write_shards(tmp_path / "hostile", SAMPLES_PER_SHARD, hostile_sample)
    for name, grey in (("a cat", 80), ("$x^", 160)):
        (tmp_path / "classes" / name).mkdir(parents=True)
        cv2.imwrite(str(tmp_path / "classes" / name / "0.png"), np.full((16, 16, 3), grey, np.uint8))
    shards = tmp_path / "hostile"
    return [
        f"data.shards={shards}",
        f"evaluation.shards={shards}",
        f"evaluation.image_folders=[{tmp_path / 'classes'}]",
        "evaluation.every=5",
        "steps=6",
    ]


def test_a_run_writes_pictures_that_decode_and_changes_nothing_else(tmp_path: Path, sources: list[str]) -> None:
    output, without = tmp_path / "run", tmp_path / "without"
    assert run(output, *sources, "log.tensorboard=true") == 0
    assert run(without, *sources) == 0
    found = events(output)
    assert steps(found.Images("pairs/first_batch")) == [1]
    assert steps(found.Images("distances/all")) == steps(found.Images("confusion/classes")) == [5, 6]
    for tag in ("pairs/first_batch", "distances/all", "confusion/classes"):
        event = found.Images(tag)[0]
        pixels = decoded(event.encoded_image_string)
        assert pixels.shape == (event.height, event.width, 3)
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20  # not an empty picture
    for stream in ("image", "text", "box_image", "box_text"):
        assert steps(found.Histograms(f"distances/{stream}")) == [5, 6]
    n_samples = sum(SAMPLES_PER_SHARD)
    assert found.Histograms("distances/image")[0].histogram_value.num == n_samples
    assert found.Histograms("distances/box_text")[0].histogram_value.num > n_samples
    weights, expected = (load_file(path / "model" / "model.safetensors") for path in (output, without))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert read_rows(output) == read_rows(without)


def test_log_images_0_writes_numbers_only(tmp_path: Path, sources: list[str]) -> None:
    assert run(tmp_path / "run", *sources, "log.tensorboard=true", "log.images=0") == 0
    tags = events(tmp_path / "run").Tags()
    assert not tags["images"]
    assert not tags["histograms"]
    assert "loss/total" in tags["scalars"]


def test_only_the_first_process_writes(tmp_path: Path, sources: list[str], free_port: int) -> None:
    settings = [*sources, "steps=2", "optim.warmup_steps=0", "log.tensorboard=true"]
    assert run_forked(tmp_path / "run", *settings, port=free_port, faults=[None, None]) == [0, 0]
    assert steps(events(tmp_path / "run").Images("pairs/first_batch")) == [1]


def decoded(png: bytes) -> Image:
    import cv2

    pixels = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR_RGB)
    assert pixels is not None
    return pixels.astype(np.uint8)


def read_rows(output: Path) -> list[dict[str, float]]:
    """The rows of metrics.jsonl without the measured times."""
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [{k: v for k, v in row.items() if k not in ("samples_per_s", "data_wait_share", "paused_s")} for row in rows]
