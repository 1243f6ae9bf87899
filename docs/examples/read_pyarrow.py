"""Read all input rows of arrow/ with status, boxes and scores: python docs/examples/read_pyarrow.py out/demo"""

import sys
from pathlib import Path

import pyarrow as pa

for path in sorted(Path(sys.argv[1], "arrow").glob("*.arrow")):
    for row in pa.ipc.open_file(pa.memory_map(str(path))).read_all().to_pylist():
        if row["status"] == "dropped":
            print(row["key"], "dropped by", row["stage"], row["reason"], row["detail"])
            continue
        print(row["key"], "kept:", row["caption"])
        for box, scores in zip(row["boxes"], row["box_scores"], strict=True):
            chunk = row["noun_chunks"][box["phrase"]]
            print(
                f"   {row['caption'][chunk['start'] : chunk['end']]!r} {box['score']:.2f} {scores['removed'] or 'kept'}"
            )
