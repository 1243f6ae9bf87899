"""Read train/ as a Hugging Face dataset: python docs/examples/read_huggingface_train.py out/demo"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import webdataset
from datasets import IterableDataset


def samples(shards: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the samples of tars; `load_dataset` refuses them, since their numbers of boxes differ."""
    yield from webdataset.WebDataset(shards, shardshuffle=False).decode("pil")


shards = sorted(str(path) for path in Path(sys.argv[1], "train").glob("*.tar"))
for row in IterableDataset.from_generator(samples, gen_kwargs={"shards": shards}):
    print(row["__key__"], row["child.jpg"].size, row["child.txt"], row["numparents.txt"])
