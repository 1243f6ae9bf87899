"""Read train/ with webdataset: python docs/examples/read_webdataset.py out/demo"""

import sys
from pathlib import Path

import webdataset

shards = sorted(str(path) for path in Path(sys.argv[1], "train").glob("*.tar"))
for sample in webdataset.WebDataset(shards, shardshuffle=False).decode("pil"):
    print(sample["__key__"], sample["child.jpg"].size, sample["child.txt"])
    for i in range(int(sample["numparents.txt"])):
        box = sample["json"]["boxes"][sample["json"]["parents"][i]["box"]]
        print(f"   {sample[f'parent{i:03d}.jpg'].size} {sample[f'parent{i:03d}.txt']!r} score {box['score']:.2f}")
