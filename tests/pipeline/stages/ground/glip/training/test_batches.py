"""Batches: the order of examples, and mirrored images."""

from itertools import islice
from pathlib import Path

import numpy as np

from pipeline.stages.ground.glip.text import Prompter
from pipeline.stages.ground.glip.training.shards import (
    Example,
    LabelledPhrase,
    draw_batches,
    index_examples,
    list_training_shards,
    mirror,
)
from tests.pipeline.stages.ground.glip.tiny import TINY


def test_each_epoch_holds_every_example_once_in_a_new_order(pipeline_output: Path, tiny_prompter: Prompter) -> None:
    indexed, _ = index_examples(list_training_shards(str(pipeline_output)), tiny_prompter, TINY)
    examples = [example._replace(stored=example.stored._replace(position=i)) for i, example in enumerate(indexed * 5)]

    def positions(start: int, n: int) -> list[list[int]]:
        batches = islice(draw_batches(examples, 4, 0, start), n)
        return [[example.stored.position for example in batch] for batch in batches]

    two_epochs = positions(0, 10)
    for epoch in (two_epochs[:5], two_epochs[5:]):
        assert sorted(position for batch in epoch for position in batch) == list(range(20))
    assert two_epochs[:5] != two_epochs[5:]
    assert positions(7, 3) == two_epochs[7:]


def test_a_mirrored_image_has_mirrored_boxes() -> None:
    image = np.zeros((4, 10, 3), np.uint8)
    image[:, 1:3] = 255
    phrase = LabelledPhrase(span=(0, 1), boxes=(0,))
    found = mirror(Example(image=image, caption="x", phrases=[phrase], boxes=[(1.0, 0.0, 3.0, 4.0)]))
    (box,) = found.boxes
    assert found.image[0, int(box[0]) : int(box[2])].min() == 255
    assert box == (7.0, 0.0, 9.0, 4.0)
