"""VG-Attribution and VG-Relation of ARO (Yuksekgonul et al. 2023): choice between captions with swapped words.

HyCoCLIP, section 3.4, reports VG-Attribution. The image is cropped to the annotated box.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from hypergrit_common.errors import UserError
from trainer.evaluation.sets.annotations import checksums, field
from trainer.evaluation.task import Embedder, ImageSource, TaskOptions, TaskResult
from trainer.evaluation.tasks.caption_pairs import CaptionPair, Choices, choose
from trainer.evaluation.tasks.examples import Problems, get_box, item, limited, read_kind, require

IMAGES: Final = "aro/images"
MIN_CASES: Final = 25
"""Groups with fewer cases are excluded from the macro mean, as in the code of ARO."""
N_FREQUENT: Final = 19
"""Number of pairs of attributes in HyCoCLIP's figure."""


def attribute_pair(entry: Mapping[str, Any], where: str) -> str:
    """Name the group of a case of VG-Attribution, the ordered pair of attributes. Raises UserError."""
    attributes = field(entry, "attributes", list, where)
    if len(attributes) != 2:
        raise UserError(f"{where} has {len(attributes)} attributes instead of 2; correct the entry")
    return f"{item(attributes, 0, str, where)}_{item(attributes, 1, str, where)}"


def relation(entry: Mapping[str, Any], where: str) -> str:
    """Name the group of a case of VG-Relation. Raises UserError."""
    return field(entry, "relation_name", str, where)


def read_pairs(
    path: Path, images: Path, group: Callable[[Mapping[str, Any], str], str], problems: Problems
) -> list[CaptionPair]:
    """Read a list of entries with image_path, bbox_x, bbox_y, bbox_w, bbox_h and both captions. Raises UserError."""

    def read(numbered: tuple[int, Any]) -> CaptionPair:
        number, entry = numbered
        where = f"{path}, entry {number}"
        name, true, false = (field(entry, key, str, where) for key in ("image_path", "true_caption", "false_caption"))
        box = get_box([entry.get(f"bbox_{side}") for side in "xywh"], where)
        image = ImageSource(path=images / name, box=box)
        return CaptionPair(image=image, true=true, false=false, group=group(entry, where))

    return problems.entries(path, enumerate(read_kind(path, list)), read)


def group_metrics(choices: Choices) -> dict[str, float]:
    """Micro mean over cases, macro mean over groups of at least `MIN_CASES` cases if there are any, and over all."""
    groups = choices.by_group().values()
    frequent = [accuracy for accuracy, n in groups if n >= MIN_CASES]
    macro = {"macro": fmean(frequent)} if frequent else {}
    return macro | {"micro": choices.accuracy, "macro_all_groups": fmean(accuracy for accuracy, _ in groups)}


def evaluate_aro(
    embedder: Embedder,
    root: Path,
    options: TaskOptions,
    file: str,
    group: Callable[[Mapping[str, Any], str], str],
) -> TaskResult:
    """Evaluate one of the two files. `macro` is the mean over groups, `micro` the mean over cases."""
    require(root, file, IMAGES)
    problems = Problems()
    pairs = limited(read_pairs(root / file, root / IMAGES, group, problems), options.max_examples)
    choices = choose(embedder, pairs, options.ranking, "crop")
    metrics, groups = group_metrics(choices), choices.by_group()
    return TaskResult(
        metrics=metrics,
        chance=dict.fromkeys(metrics, 0.5),
        rules={
            "score": options.ranking,
            "image": "cropped to the box, then resized and center-cropped",
            "ties": "count as wrong",
            "macro": f"mean over groups of at least {MIN_CASES} cases, as in the code of ARO",
        },
        n_used=len(choices.correct),
        skipped={**choices.skipped, **problems.skipped},
        checksums=checksums(root, root / file),
        details={
            "mistakes": choices.mistakes(root),
            **problems.details(),
            "n_groups": len(groups),
            "n_groups_in_macro": sum(n >= MIN_CASES for _, n in groups.values()),
            "most_frequent": [
                {"group": key, "accuracy": accuracy, "n": n} for key, (accuracy, n) in list(groups.items())[:N_FREQUENT]
            ],
        },
    )


def evaluate_attribution(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """VG-Attribution: which attribute belongs to which of two objects."""
    return evaluate_aro(embedder, root, options, "aro/visual_genome_attribution.json", attribute_pair)


def evaluate_relation(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """VG-Relation: which of two objects is the subject of a relation."""
    return evaluate_aro(embedder, root, options, "aro/visual_genome_relation.json", relation)
