"""Read train/ for a loop of your own: python docs/examples/read_open_shards.py out/demo"""

import sys

from torch.utils.data import DataLoader

from pipeline import open_shards

samples = open_shards(f"{sys.argv[1]}/train", needs=["boxes"])  # or URLs, or "pipe:aws s3 cp s3://b/{000..099}.tar -"
for sample in DataLoader(samples, batch_size=None, num_workers=1):
    print(sample["caption"], sample["image"].shape, [(box["phrase"], box["crop"].shape) for box in sample["boxes"]])
