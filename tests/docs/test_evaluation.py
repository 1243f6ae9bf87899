"""docs/evaluation.md lists every task and published figures; `python -m tests.docs.test_evaluation` prints their table."""

import re
from pathlib import Path

from trainer.evaluation.catalog import TASKS
from trainer.evaluation.report.tables import published

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "evaluation.md"


CHECKPOINTS = {
    ("MERU", "MERU", "L/16"): "meru:meru_vit_l.pth",
    ("HyCoCLIP", "HyCoCLIP", "B/16"): "hycoclip:hycoclip_vit_b.pth",
    ("PHyCLIP", "PHyCLIP", "B/16"): "phyclip:phyclip_vit_b.pth",
    ("UNCHA", "UNCHA", "B/16"): "uncha:uncha_vit_b.pth",
    ("Hyper3-CLIP", "Hyper3-CLIP beta", "B/16"): "hyper3_clip",
}
"""(paper, model, backbone) of published rows -> the released checkpoint, as `model` takes it."""
HEADLINES = {"classification": "imagenet/accuracy", "retrieval": "coco/text_to_image/recall@5", "hierarchical": "TIE"}
"""Tasks of the table, each with the metric that stands for its published table; otherwise the first one of the row."""


def papers_table() -> str:
    """A table of tasks by paper: a released checkpoint, as `model` takes it, and a published figure of it."""
    rows = ["| paper | `model` | task | metric | published |", "|---|---|---|---|---:|"]
    for paper in dict.fromkeys(key[0] for key in CHECKPOINTS):
        for task, metric in HEADLINES.items():
            for line in published()[task]:
                model = CHECKPOINTS.get((paper, line["model"], line["backbone"]))
                if line["paper"] != paper or model is None:
                    continue
                name = metric if metric in line["values"] else next(iter(line["values"]))
                table = line["table"] if line["table"].startswith("of") else f"table {line['table']}"
                source = f"{paper}, {table.removeprefix('of its ')}"
                rows.append(f"| {source} | `{model}` | `{task}` | `{name}` | {line['values'][name]} |")
    return "\n".join(rows)


def section(title: str) -> str:
    """The text of a section, up to the next title."""
    return DOCUMENT.read_text(encoding="utf-8").split(f"\n{title}\n")[1].split("\n#")[0]


def test_the_table_of_the_metrics_lists_all_tasks_in_order() -> None:
    rows = [row.split("|")[1] for row in section("## Tasks").splitlines() if row.startswith("| `")]
    assert tuple(re.findall(r"`(\w+)`", " ".join(rows))) == tuple(TASKS)


def test_the_table_of_the_papers_has_the_published_figures() -> None:
    assert papers_table() in section("### Published figures")


if __name__ == "__main__":
    print(papers_table())
