"""The rows that a training run writes down: JSON, one a line, each with its `step`."""

import json
from pathlib import Path

from common.disk import replacing


def truncate(path: Path, step: int, last: str = "") -> None:
    """Keep the rows up to a step: those after the checkpoint that a run goes on from are written again.

    With `last`, of that step itself the rows with this name alone: what else it has was written after the checkpoint.
    """
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # the last line of a killed run
            break
        if row["step"] > step or (row["step"] == step and last and last not in row):
            break
        kept.append(line + "\n")
    with replacing(path) as draft:
        draft.write_text("".join(kept), encoding="utf-8")
