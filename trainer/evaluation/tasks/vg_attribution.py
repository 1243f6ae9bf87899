"""VG-Attribution of ARO: which attribute belongs to which of two objects."""

from pathlib import Path
from typing import Final

from trainer.evaluation.tasks.aro import attribute_pair, evaluate_aro
from trainer.evaluation.tasks.base import Embedder, Task, TaskOptions, TaskResult

FILE: Final = "aro/visual_genome_attribution.json"


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Evaluate the file. `macro` is the mean over groups, `micro` the mean over cases."""
    return evaluate_aro(embedder, root, options, FILE, attribute_pair)


TASK = Task(
    name="vg_attribution",
    title="VG-Attribution",
    files=("aro/visual_genome_attribution.json", "aro/images/*.jpg"),
    size="28,748 cases in 4,517 images; 1 GB together with VG-Relation",
    source="https://github.com/mertyg/vision-language-models-are-bows",
    license="MIT (annotations); the images of Visual Genome have CC BY 4.0",
    evaluate=evaluate,
)
