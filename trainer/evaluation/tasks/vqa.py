"""Questions on images with several answers to choose from, on the six data sets of HAC (arXiv 2604.23665).

A model answers by the text "QUESTION ANSWER" with the best score, which for hyperbolic models is the inner product. The
sets are published in several formats: here each is a list of entries with the keys image, question, options and answer,
the index of the right option. Our rule: entries with other numbers of options than four count too.

Shapes: n questions.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import torch

from hypergrit_common.errors import UserError
from trainer.evaluation.metrics.items import mean_items
from trainer.evaluation.metrics.ranking import choice_scores, is_first_best
from trainer.evaluation.sets.annotations import checksums, field
from trainer.evaluation.task import Embedder, ImageSource, MissingFilesError, TaskOptions, TaskResult
from trainer.evaluation.tasks.examples import Problems, distinct, embed_sources, item, limited, merge, read_kind

SETS: Final = ("aokvqa", "mmstar", "seedbench", "scienceqa", "realworldqa", "ai2d")
FILE: Final = "questions.json"


@dataclass(frozen=True, kw_only=True)
class Question:
    """An image and the texts of the answers, the right one first."""

    image: ImageSource
    texts: tuple[str, ...]


def read_questions(path: Path, problems: Problems) -> list[Question]:
    """Read a file of questions; the images are in the folder images/ beside it. Raises UserError if it is malformed."""

    def read(numbered: tuple[int, Any]) -> Question:
        where = f"{path}, item {numbered[0]}"
        image, question = (field(numbered[1], name, str, where) for name in ("image", "question"))
        options, answer = field(numbered[1], "options", list, where), field(numbered[1], "answer", int, where)
        if len(options) < 2 or not 0 <= answer < len(options):
            raise UserError(f"{where}: answer {answer} is no index of {len(options)} options, two or more; correct it")
        answers = [f"{question} {item(options, number, str, where)}" for number in range(len(options))]
        right = answers.pop(answer)
        return Question(image=ImageSource(path=path.parent / "images" / image), texts=(right, *answers))

    return problems.entries(path, enumerate(read_kind(path, list)), read, f"{path.parent.name}/{path.name}")


def evaluate_set(embedder: Embedder, root: Path, name: str, options: TaskOptions, problems: Problems) -> TaskResult:
    """The accuracy on one set. Raises MissingFilesError without its file or images, UserError for a malformed file."""
    path = root / "vqa" / name / FILE
    if not path.is_file():
        raise MissingFilesError(f"{path} is missing")
    questions = limited(read_questions(path, problems), options.max_examples)
    images = embed_sources(embedder, [question.image for question in questions])
    used = [questions[number] for number in images.usable.tolist()]
    correct = torch.zeros(len(used), dtype=torch.bool)
    texts, rows = distinct([text for question in used for text in question.texts])
    features, places = embedder.texts(texts), rows.split([len(question.texts) for question in used])
    for count in {len(question.texts) for question in used}:
        chosen = torch.tensor([number for number, question in enumerate(used) if len(question.texts) == count])
        text_rows = torch.stack([places[number] for number in chosen.tolist()])
        image_rows = images.rows[images.usable][chosen]
        scores = choice_scores(embedder.model, images.features, features, image_rows, text_rows, options.ranking)
        correct[chosen] = is_first_best(scores)
    chance = sum(1 / len(question.texts) for question in used) / len(used)
    units = torch.tensor([crc32(question.image.path.name.encode()) for question in used])  # those of one image are one
    return TaskResult(
        metrics={"accuracy": correct.double().mean().item()},
        chance={"accuracy": chance},
        rules={"score": options.ranking, "text": "QUESTION ANSWER", "image": "center crop", "ties": "count as wrong"},
        n_used=len(used),
        skipped=images.skipped(),
        checksums=checksums(root, path),
        items={"accuracy": mean_items(correct, units)},
    )


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Evaluate the sets that are found. Raises MissingFilesError or UserError if there are none."""
    problems, parts = Problems(), dict[str, TaskResult]()
    for name in SETS:
        with problems.of(name):
            parts[name] = evaluate_set(embedder, root, name, options, problems)
    problems.require(
        parts, f"{root / 'vqa' / SETS[0] / FILE} is missing; expected vqa/SET/{FILE} for {', '.join(SETS)}"
    )
    return merge(parts, problems)
