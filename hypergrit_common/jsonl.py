"""The metrics file of a training run: JSON Lines, each row with its `step`."""

import json
from pathlib import Path

from hypergrit_common.disk import atomic_write


def truncate(path: Path, step: int, required_field: str = "") -> None:
    """Remove the rows after `step`, the step of the checkpoint from which a run resumes; the run writes them again.

    Rows of `step` itself are kept; if `required_field` is given, only those that have it. The trainer sets it to remove
    the evaluation after the last step, which is repeated when a finished run is started again. Does nothing if the file
    does not exist.
    """
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # the process was killed while it wrote the last line
            break
        if row["step"] > step or (row["step"] == step and required_field and required_field not in row):
            break
        kept.append(line + "\n")
    with atomic_write(path) as draft:
        draft.write_text("".join(kept), encoding="utf-8")
