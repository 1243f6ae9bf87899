"""List the examples of shards that training can use."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.ground.glip.config import GlipConfig
from pipeline.ground.glip.images import Size, network_size, padded_size
from pipeline.ground.glip.text import Prompter
from pipeline.ground.glip.training.shards import StoredExample, read_examples


class IndexedExample(NamedTuple):
    """An example of a shard, and the padded size of its image in the network."""

    stored: StoredExample
    padded_size: Size


def index_examples(
    urls: Sequence[str], prompter: Prompter, config: GlipConfig
) -> tuple[list[IndexedExample], Counter[str]]:
    """Return the examples with boxes and a phrase that can be tokenized; count the skipped ones by reason."""
    indexed: list[IndexedExample] = []
    skipped: Counter[str] = Counter()
    for url in urls:
        for stored in read_examples(url):
            plan = prompter.plan(stored.caption, sorted(set(stored.spans)), "caption")
            if not stored.boxes:
                skipped["no box"] += 1
            elif not plan.prompts:
                skipped[plan.dropped[0].reason] += 1
            else:
                size = network_size(stored.height, stored.width, config.detect)
                indexed.append(IndexedExample(stored, padded_size(size)))
    return indexed, skipped
