"""The expanded test file of HierarCaps: for each image a chain of captions, and a chain that is wrong for it.

The file has the columns positive, negative and image_url, with four captions in each chain. No paper states how it is
scored; here a choice is correct if the positive caption of a level scores higher than the negative one; ties are wrong.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from hypergrit_common.errors import UserError
from hypergrit_common.files import check_file
from trainer.evaluation.task import Embedder, ImageSource, TaskOptions
from trainer.evaluation.tasks.caption_pairs import CaptionPair, choose
from trainer.evaluation.tasks.examples import Problems, limited

Parsed = TypeVar("Parsed")

EXPANDED: Final = "hierarcaps/hierarcaps_test_expanded.csv"
LEVELS: Final = 4
JOINER: Final = " => "


class Pair(NamedTuple):
    """File name and address of an image, and the captions that fit and do not fit it, from general to specific."""

    image: str
    url: str
    positive: tuple[str, ...]
    negative: tuple[str, ...]


def read_chain(text: str | None, where: str, levels: int = LEVELS) -> tuple[str, ...]:
    """The captions of a chain. Raises UserError, beginning with `where`, unless there are `levels`."""
    captions = tuple(part.strip() for part in (text or "").split(JOINER.strip()))
    if len(captions) != levels or not all(captions):
        raise UserError(f"{where} has no chain of {levels} captions joined by `{JOINER.strip()}`; correct it")
    return captions


def read_table(
    path: Path, columns: Sequence[str], problems: Problems, parse: Callable[[Mapping[str, str | None], str], Parsed]
) -> list[Parsed]:
    """Read a CSV file with the given columns: the values of `parse` for each row and its place, such as "FILE, line 2".

    Rows for which `parse` raises UserError are recorded in `problems`. Raises UserError if the file is malformed.
    """
    form = f"the columns {','.join(columns)}, separated by commas, in UTF-8, or download an official file again"
    try:
        check_file(path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            if not set(columns) <= set(reader.fieldnames or ()):
                raise UserError(f"{path} has the columns {reader.fieldnames or []!s:.200}; give {form}")
            rows = ((row, f"{path}, line {reader.line_num}") for row in reader)
            return problems.entries(path, rows, lambda numbered: parse(*numbered))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read: {error}; give {form}") from error


def read_pair(row: Mapping[str, str | None], where: str) -> Pair:
    """Read one row. Raises UserError, beginning with `where`."""
    positive, negative = (read_chain(row[key], where) for key in ("positive", "negative"))
    url = row["image_url"]
    if not url:
        raise UserError(f"{where} has no image_url; correct it")
    return Pair(url.rsplit("/", 1)[-1], url, positive, negative)


def evaluate_expanded(
    embedder: Embedder, path: Path, images: Path, options: TaskOptions, problems: Problems
) -> tuple[dict[str, float], dict[str, int]]:
    """Accuracy of each level, whose chance level is 0.5, and numbers of choices that were not made, by reason."""
    rows = read_table(path, ("positive", "negative", "image_url"), problems, read_pair)
    pairs = [
        CaptionPair(
            image=ImageSource(path=images / row.image, urls=(row.url,)),
            true=true,
            false=false,
            group=f"level_{level}",
        )
        for row in limited(rows, options.max_examples)
        for level, (true, false) in enumerate(zip(row.positive, row.negative, strict=True), 1)
    ]
    choices = choose(embedder, pairs, options.ranking, "crop")
    found = {f"expanded/{group}": share for group, (share, _) in sorted(choices.by_group().items())}
    return found, {f"expanded file: {why}": n for why, n in choices.skipped.items()}
