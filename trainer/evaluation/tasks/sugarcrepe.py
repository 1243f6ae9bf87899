"""SugarCrepe (Hsieh et al. 2023): choice between a caption of COCO and a version with a changed meaning.

PHyCLIP, table 3. Its "overall" is the mean over all 7,511 pairs.
"""

from pathlib import Path
from typing import Any, Final

import torch

from trainer.evaluation.sets.annotations import checksums, field
from trainer.evaluation.task import Embedder, ImageSource, MissingFilesError, TaskOptions, TaskResult
from trainer.evaluation.tasks.caption_pairs import CaptionPair, Choices, choose
from trainer.evaluation.tasks.examples import Problems, limited, read_kind, require

FILES: Final = ("replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att", "add_obj", "add_att")
IMAGES: Final = "coco/val2017"


def read_pairs(path: Path, images: Path, problems: Problems) -> list[CaptionPair]:
    """Read one file, an object of entries with the keys filename, caption and negative_caption. Raises UserError."""

    def read(named: tuple[str, Any]) -> CaptionPair:
        key, entry = named
        image, true, false = (
            field(entry, name, str, f"{path}, entry {key!r}") for name in ("filename", "caption", "negative_caption")
        )
        return CaptionPair(image=ImageSource(path=images / image), true=true, false=false, group=path.stem)

    return problems.entries(path, read_kind(path, dict).items(), read)


def read_files(root: Path, limit: int) -> tuple[dict[str, list[CaptionPair]], Problems]:
    """Read the first `limit` pairs (0: all) of each file, and list missing and malformed files with the reason.

    Raises UserError and MissingFilesError if there are no others.
    """
    found: dict[str, list[CaptionPair]] = {}
    problems = Problems()
    for name in FILES:
        path = root / f"sugarcrepe/{name}.json"
        with problems.of(name):
            if not path.is_file():
                raise MissingFilesError(f"{path} is missing")
            found[name] = list(limited(read_pairs(path, root / IMAGES, problems), limit))
    names = [f"sugarcrepe/{name}.json" for name in FILES]
    problems.require(found, f"{root / names[0]} is missing; expected {', '.join(names)} in {root}")
    return found, problems


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Evaluate the seven files, whose names are those of the metrics.

    `overall` is the micro and `macro` the macro mean; they need all files. Missing and malformed files are listed in
    the details; raises UserError or MissingFilesError if there are no others.
    """
    found, problems = read_files(root, options.max_examples)
    require(root, IMAGES)
    pairs = [pair for part in found.values() for pair in part]
    squeezed = options.rule == "released"
    choices = choose(embedder, pairs, options.ranking, "squeeze" if squeezed else "crop")
    return TaskResult(
        metrics=metrics_of(choices),
        chance=dict.fromkeys(metrics_of(choices), 0.5),
        rules={
            "score": options.ranking,
            "image": "squeezed to a square, as PHyCLIP's code" if squeezed else "center crop, as SugarCrepe's code",
            "ties": "count as wrong",
            "overall": "mean over all pairs",
        },
        n_used=len(choices.correct),
        skipped={**choices.skipped, **problems.skipped},
        checksums=checksums(root, *(root / f"sugarcrepe/{name}.json" for name in found)),
        details={
            "n": {name: n for name, (_, n) in choices.by_group().items()},
            **problems.details(),
            "mistakes": choices.mistakes(root),
        },
        items=choices.items(root) | ({} if len(found) < len(FILES) else {"overall": choices.all_items(root)}),
    )


def metrics_of(choices: Choices) -> dict[str, float]:
    """Accuracy of each file in the order of the papers, and the micro and macro means if there are all files."""
    found = choices.by_group()
    columns: dict[str, float] = {name: found[name][0] for name in FILES if name in found}
    if len(columns) < len(FILES):
        return columns
    macro = torch.tensor(list(columns.values()), dtype=torch.float64).mean().item()
    return columns | {"overall": choices.accuracy, "macro": macro}
