"""VL-CheckList (Zhao et al. 2022): choice between a caption and one with another object, attribute or relation.

The six object columns are those of PHyCLIP, table 3, and of HyCoCLIP's mean "VL-CO" (appendix E); Syntax-MERU reports
all 13 columns. A column consists of several corpora, such as vg_obj and hake.
"""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import yaml

from hypergrit_common.errors import UserError
from hypergrit_common.files import check_file
from hypergrit_common.text import one_line
from hypergrit_common.yaml_text import parse_yaml
from trainer.evaluation.metrics.items import Items, balanced_items
from trainer.evaluation.sets.annotations import checksums, field
from trainer.evaluation.task import Embedder, ImageSource, MissingFilesError, TaskOptions, TaskResult
from trainer.evaluation.tasks.caption_pairs import CaptionPair, choose
from trainer.evaluation.tasks.examples import Problems, is_file, item, limited, read_kind, require

FOLDER: Final = "vl_checklist"
CORPUS: Final = f"{FOLDER}/corpus/v1"
COLUMNS: Final = {
    **{f"object/{name}": f"Object/Location/{name}" for name in ("center", "mid", "margin")},
    **{f"object/{name}": f"Object/Size/{name}" for name in ("large", "medium", "small")},
    **{f"attribute/{name}": f"Attribute/{name}" for name in ("size", "material", "state", "action", "color")},
    **{f"relation/{name}": f"Relation/{name}" for name in ("spatial", "action")},
}
"""Folder of each column below corpus/v1."""
GROUPS: Final = ("object", "attribute", "relation")
RELEASED_CORPORA: Final = ("vg_obj", "vg")
"""Corpora of PHyCLIP's code, which evaluates vg_obj, and of Visual Genome in the other columns."""
RELEASED_PAIRS: Final = 1000
"""Number of pairs of each file in PHyCLIP's code (MAX_NUM 2000 counts captions)."""


def read_corpus(path: Path, folder: Path) -> tuple[Path, Path]:
    """Read the paths of the annotations and of the image folder, relative to `folder`, from a YAML file.

    Raises UserError if the file is malformed.
    """
    try:
        check_file(path)
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read as YAML: {one_line(error)}; download it again") from error
    annotations, images = (field(values, key, str, str(path)) for key in ("ANNO_PATH", "IMG_ROOT"))
    # The names are compared without following links: data/ is often one to another disk.
    inner = Path(os.path.normpath(folder / annotations))
    if not inner.is_relative_to(os.path.normpath(folder)):
        raise UserError(f"{path}: ANNO_PATH {annotations!r:.80} is not relative to {folder}; correct it")
    return folder / inner.relative_to(os.path.normpath(folder)), folder / images


def read_pairs(
    path: Path, images: Path, group: str, limit: int, problems: Problems
) -> tuple[list[CaptionPair | None], int]:
    """Read the first `limit` pairs (0: all) of an annotation file, and the number of damaged captions.

    Pairs without captions are None.
    An entry is [image, {"POS": [caption, ...], "NEG": [caption, ...]}]; the first captions are used, unchanged.
    Captions with leading or trailing blanks are damaged. Raises UserError if the file is malformed.
    """
    damaged = 0

    def read(numbered: tuple[int, Any]) -> CaptionPair | None:
        nonlocal damaged
        number, entry = numbered
        where = f"{path}, entry {number}"
        name, captions = item(entry, 0, str, where), item(entry, 1, dict, where)
        true, false = (first(field(captions, key, list, where), where) for key in ("POS", "NEG"))
        if not true.strip() or not false.strip():
            return None
        damaged += true != true.strip() or false != false.strip()
        return CaptionPair(image=ImageSource(path=images / name), true=true, false=false, group=group)

    entries = limited(read_kind(path, list), limit)
    return problems.entries(path, enumerate(entries), read, group), damaged


def first(captions: Sequence[Any], where: str) -> str:
    """Return the first caption, or an empty string."""
    return item(captions, 0, str, where) if captions else ""


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Evaluate all corpora of all columns.

    COLUMN/CORPUS is the accuracy of one corpus, COLUMN/mean the mean over its corpora, and COLUMN the corpus of
    PHyCLIP's code, or the mean for the rule "paper". `object`, `attribute` and `relation` are means over columns.
    Missing columns and malformed corpora are listed in the details; raises UserError if there are no others.
    """
    require(root, CORPUS)
    released = options.rule == "released"
    limit = min(options.max_examples or RELEASED_PAIRS, RELEASED_PAIRS) if released else options.max_examples
    metrics: dict[str, float] = {}
    skipped: Counter[str] = Counter()
    counts: dict[str, int] = {}
    damaged: dict[str, int] = {}
    problems = Problems()
    mistakes: list[dict[str, object]] = []
    used: list[Path] = []
    items: dict[str, Items] = {}
    for column, part in COLUMNS.items():
        accuracies: dict[str, float] = {}
        for path in sorted((root / CORPUS / part).glob("*.yaml")):
            key = f"{column}/{path.stem}"
            with problems.of(key):
                annotations, images = read_corpus(path, root / FOLDER)
                if not is_file(annotations):
                    raise MissingFilesError(f"{annotations} is missing")
                every, damaged[key] = read_pairs(annotations, images, key, limit, problems)
                pairs = [pair for pair in every if pair is not None]
                skipped["no caption"] += len(every) - len(pairs)
                choices = choose(
                    embedder, pairs, options.ranking, "squeeze", legacy_norm=options.vlc_legacy_norm, required=False
                )
                skipped.update(choices.skipped)
                used += [path, annotations]
                counts[key] = len(choices.correct)
                if counts[key] == 0:
                    raise MissingFilesError(f"none of its images is usable below {images}")
                accuracies[path.stem] = choices.accuracy
                items |= choices.items(root)
                mistakes += choices.mistakes(root)[:1]
        metrics |= column_metrics(column, accuracies, released)
        if column not in metrics:
            problems.missing[column] = expected(root, column, released)
    problems.require(metrics, f"{root / FOLDER} has no usable corpus; expected corpus/v1, data and the images below it")
    metrics |= group_means(metrics)
    return TaskResult(
        metrics=metrics,
        chance=dict.fromkeys(metrics, 0.5),
        rules={
            "score": options.ranking,
            "pairs": f"first {limit} of each file" if limit else "all",
            "columns": "vg_obj and vg, as in PHyCLIP's code" if released else "mean over the corpora",
            "image": "whole image, squeezed to a square",
            "normalization": "0.5 and then the model's, as in PHyCLIP's code" if options.vlc_legacy_norm else "model's",
            "ties": "count as wrong",
        },
        n_used=sum(counts.values()),
        skipped={reason: n for reason, n in skipped.items() if n} | problems.skipped,
        checksums=checksums(root, root / CORPUS, *sorted(set(used))),
        details={
            "n": counts,
            "damaged_captions": {k: n for k, n in damaged.items() if n},
            **problems.details(),
            "mistakes": mistakes,
        },
        items=with_means(items, metrics, released),
    )


def expected(root: Path, column: str, released: bool) -> str:
    """The layout of a column, as one line."""
    corpus = "vg_obj" if column.startswith("object/") else "vg"
    name = f"{corpus}.yaml, the corpus of PHyCLIP's code" if released else f"CORPUS.yaml, such as {corpus}.yaml"
    return f"expected {root / CORPUS / COLUMNS[column]}/{name}, with its annotations and images below {root / FOLDER}"


def column_metrics(column: str, accuracies: dict[str, float], released: bool) -> dict[str, float]:
    """Metrics of one column from the accuracy of each corpus."""
    if not accuracies:
        return {}
    found = {f"{column}/{corpus}": accuracy for corpus, accuracy in accuracies.items()}
    mean = fmean(accuracies.values())
    chosen = [accuracies[corpus] for corpus in RELEASED_CORPORA if corpus in accuracies] if released else [mean]
    return ({column: chosen[0]} if chosen else {}) | {f"{column}/mean": mean} | found


def with_means(items: dict[str, Items], metrics: dict[str, float], released: bool) -> dict[str, Items]:
    """Items of the corpora, and of the columns and groups whose metric is a mean over them."""
    columns: dict[str, Items] = {}
    for column in COLUMNS:
        corpora = {key.rpartition("/")[2]: found for key, found in items.items() if key.rpartition("/")[0] == column}
        chosen = (
            [corpora[name] for name in RELEASED_CORPORA if name in corpora][:1] if released else [*corpora.values()]
        )
        columns |= {column: balanced_items(chosen)} if chosen else {}
    groups = {
        group: balanced_items([found for column, found in columns.items() if column.startswith(f"{group}/")])
        for group in GROUPS
        if group in metrics
    }
    return items | columns | groups


def group_means(metrics: dict[str, float]) -> dict[str, float]:
    """Mean over the columns of each group of which all columns are present."""
    means = {}
    for group in GROUPS:
        columns = [column for column in COLUMNS if column.startswith(f"{group}/")]
        if all(column in metrics for column in columns):
            means[group] = fmean(metrics[column] for column in columns)
    return means
