"""VG-Relation of ARO: which of two objects is the subject of a relation."""

from pathlib import Path
from typing import Final

from trainer.evaluation.tasks.aro import evaluate_aro, relation
from trainer.evaluation.tasks.base import Embedder, Task, TaskOptions, TaskResult

FILE: Final = "aro/visual_genome_relation.json"


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Evaluate the file. `macro` is the mean over groups, `micro` the mean over cases."""
    return evaluate_aro(embedder, root, options, FILE, relation)


TASK = Task(
    name="vg_relation",
    title="VG-Relation",
    files=("aro/visual_genome_relation.json", "aro/images/*.jpg"),
    size="23,937 cases in 5,316 images; 1 GB together with VG-Attribution",
    source="https://github.com/mertyg/vision-language-models-are-bows",
    license="MIT (annotations); the images of Visual Genome have CC BY 4.0",
    evaluate=evaluate,
)
