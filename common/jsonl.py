"""The rows that a training run writes down: JSON, one a line, each with its `step`."""

import json
from pathlib import Path

from common.disk import atomic_write


def truncate(path: Path, step: int, last: str = "") -> None:
    """Drop the rows after `step`, the step of the checkpoint that a run goes on from: the run will write them again.

    `last` names a field. If given, of the rows of `step` itself only those with this field stay: the others were written after the
    checkpoint (such as the evaluation that follows the last step), and will be written again too.
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
    with atomic_write(path) as draft:
        draft.write_text("".join(kept), encoding="utf-8")
