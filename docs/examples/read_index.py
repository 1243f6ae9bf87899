"""Read single members of train/ by their place in _index/: python docs/examples/read_index.py out/demo"""

import sys
from pathlib import Path

import pyarrow as pa

output = Path(sys.argv[1])
for path in sorted(Path(output, "_index").glob("*.arrow")):
    for sample in pa.ipc.open_file(pa.memory_map(str(path))).read_all().to_pylist():
        if sample["format"] != "train":
            continue
        with Path(output, "train", path.relative_to(output / "_index")).with_suffix(".tar").open("rb") as tar:
            places = {member["name"]: member for member in sample["members"]}
            tar.seek(places["child.txt"]["offset"])
            print(sample["key"], tar.read(places["child.txt"]["size"]).decode(), f"{len(places)} members")
