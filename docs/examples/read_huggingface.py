"""Read grit/ as a Hugging Face dataset: python docs/examples/read_huggingface.py out/demo"""

import sys

from datasets import load_dataset

rows = load_dataset("webdataset", data_files=f"{sys.argv[1]}/grit/*.tar", split="train", streaming=True)
for row in rows:
    print(row["__key__"], row["jpg"].size, row["txt"])
    for start, end, *box, score in row["json"]["noun_chunks"]:
        print(f"   {row['txt'][int(start) : int(end)]!r} at {[round(x, 3) for x in box]} score {score:.2f}")
