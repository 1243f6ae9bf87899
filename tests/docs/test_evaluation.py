"""docs/evaluation.md lists every task, with the size, source, license and files that `--help` prints.

`python -m tests.docs.test_evaluation` prints the table of the data.
"""

import re
from pathlib import Path

from trainer.evaluation.catalog import TASKS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "evaluation.md"


def data_table() -> str:
    """The table of tasks with their files below the data folder, size, source and license, in Markdown."""
    rows = ["| task | files below `ROOT` | size | source | license |", "|---|---|---|---|---|"]
    for name, task in TASKS.items():
        files = ", ".join(f"`{file}`" for file in task.files) or "none"
        rows.append("| " + " | ".join((f"`{name}`", files, task.size, task.source, task.license)) + " |")
    return "\n".join(rows)


def section(title: str) -> str:
    """The text of a section, up to the next title."""
    return DOCUMENT.read_text(encoding="utf-8").split(f"\n{title}\n")[1].split("\n#")[0]


def test_the_table_of_the_data_is_that_of_the_declarations() -> None:
    assert data_table() in section("### Data")


def test_the_table_of_the_metrics_lists_all_tasks_in_order() -> None:
    rows = [row.split("|")[1] for row in section("## Tasks").splitlines() if row.startswith("| `")]
    assert tuple(re.findall(r"`(\w+)`", " ".join(rows))) == tuple(TASKS)


if __name__ == "__main__":
    print(data_table())
