"""Read train/ with Daft, one tar after the other: python docs/examples/read_daft.py out/demo"""

import sys
from pathlib import Path

import daft

for shard in sorted(Path(sys.argv[1], "train").glob("*.tar")):
    rows = daft.read_webdataset(str(shard)).select("__key__", "child.jpg", "child.txt", "numparents.txt")
    for row in rows.to_pylist():
        print(row["__key__"], row["child.txt"], row["numparents.txt"])
