"""Read train/ as PyTorch batches with one random box per image: python docs/examples/read_torch.py out/demo"""

import random
import sys
from pathlib import Path
from typing import Any

import webdataset
from torch.utils.data import DataLoader


def with_one_box(sample: dict[str, Any]) -> tuple[Any, str, Any, str]:
    """Return image, caption, box and phrase; image and box are float tensors [3, 224, 224] in [0, 1]."""
    i = random.randrange(int(sample["numparents.txt"]))
    return sample["child.jpg"], sample["child.txt"], sample[f"parent{i:03d}.jpg"], sample[f"parent{i:03d}.txt"]


if __name__ == "__main__":
    shards = sorted(str(path) for path in Path(sys.argv[1], "train").glob("*.tar"))
    # Shards are divided among the workers; with fewer shards than workers, some workers have none.
    samples = webdataset.WebDataset(shards, shardshuffle=100, seed=0, empty_check=False).decode("torchrgb")
    for image, text, box_image, box_text in DataLoader(samples.map(with_one_box), batch_size=4, num_workers=1):
        print(tuple(image.shape), tuple(box_image.shape), list(zip(text, box_text, strict=True)))
