"""Shards whose rows share batches, from PARSED tables to SCORED ones."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from pipeline.batches.batcher import MAX_BYTES, Batcher, Row
from pipeline.batches.networks import GroundNetwork, TowerNetwork
from pipeline.batches.row import Inferred, Models
from pipeline.batches.scored import Scored
from pipeline.ground.stage import Ground, add_boxes, kept_rows
from pipeline.ground.stage import Row as Columns
from pipeline.score.stage import Place, Rows, Score, score_table
from schemas.table import without_images


@dataclass(eq=False)
class Waiting:
    """A shard of which some rows have no result yet."""

    number: int
    table: pa.Table  # without images
    rows: dict[int, Columns]
    results: dict[int, Inferred] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"ground": 0.0, "score": 0.0})

    def spend(self, stage: str, seconds: float) -> None:
        """Add time of a stage."""
        self.seconds[stage] += seconds


class SharedBatches:
    """Takes shards in a fixed order, and returns each when its last row has left the networks.

    The result of a row depends on the rows added before it, and those that fill its batches, not on time. Only rows
    that wait for a full batch keep their images.
    """

    def __init__(self, ground: Ground, score: Score, max_bytes: int = MAX_BYTES) -> None:
        grounder = GroundNetwork(ground.grounder, ground.config.batch_size)
        scorer = score.scorer
        texts, images = (TowerNetwork(embed, scorer.batch_size) for embed in (scorer.embed_texts, scorer.embed_images))
        self.models = Models(ground, score, grounder, texts, images)
        self.batcher = Batcher([grounder, texts, images], max_bytes)
        self._done: deque[Waiting] = deque()

    def add(self, number: int, table: pa.Table) -> Iterator[Scored]:
        """Add the rows of a PARSED table; yield the shards that are finished."""
        shard = Waiting(number, without_images(table), kept_rows(table))
        if not shard.rows:
            self._done.append(shard)
        images = table["image"]
        for i, row in shard.rows.items():
            steps = self.models.infer(row, images[i].as_py())
            self.batcher.add(Row(steps, self._end_of(shard, i), shard.spend))
            yield from self._finished()
        yield from self._finished()

    def finish(self) -> Iterator[Scored]:
        """Compute the batches that are not full, and yield the remaining shards."""
        self.batcher.flush()
        yield from self._finished()

    def close(self) -> None:
        """End the threads."""
        self.models.grounder.close()

    def _end_of(self, shard: Waiting, i: int) -> Callable[[Inferred], None]:
        def end(result: Inferred) -> None:
            shard.results[i] = result
            if len(shard.results) == len(shard.rows):
                self._done.append(shard)

        return end

    def _finished(self) -> Iterator[Scored]:
        while self._done:
            shard = self._done.popleft()
            boxes = {i: shard.results[i].boxes for i in shard.rows}
            removed = {i: result.removed for i, result in shard.results.items() if result.removed}
            grounded = add_boxes(shard.table, shard.rows, boxes, removed)
            score = self.models.score
            table = score_table(grounded, score.thresholds, Computed(shard.results), score.keep_all)
            n_rows = {"ground": len(shard.rows), "score": sum(bool(found) for found in boxes.values())}
            yield Scored(shard.number, table, {name: (shard.seconds[name], n_rows[name]) for name in n_rows})


class Computed:
    """The cosines that rows have computed."""

    def __init__(self, results: dict[int, Inferred]) -> None:
        self._results = results

    def of_boxes(self, rows: Rows, places: Sequence[Place]) -> list[float]:
        """Return the cosine of crop and phrase for each box."""
        return [self._results[i].cosines[b] for i, b in places]

    def of_rows(self, rows: Rows, indices: Sequence[int]) -> list[float]:
        """Return the cosine of image and caption for each row."""
        found = [self._results[i].similarity for i in indices]
        return [value for value in found if value is not None]
