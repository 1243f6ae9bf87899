"""The expanded test file of HierarCaps: for each image a chain of captions, and a chain that is wrong for it.

The file has the columns positive, negative and image_url, with four captions in each chain. No paper states how it is
scored; here a choice is correct if the positive caption of a level scores higher than the negative one; ties are wrong.
"""

import csv
from pathlib import Path
from typing import Final, NamedTuple

from common.errors import UserError
from trainer.evaluation.tasks.base import Embedder, ImageSource, TaskOptions
from trainer.evaluation.tasks.caption_pairs import CaptionPair, choose
from trainer.evaluation.tasks.examples import limited

EXPANDED: Final = "hierarcaps/hierarcaps_test_expanded.csv"
LEVELS: Final = 4
JOINER: Final = " => "


class Pair(NamedTuple):
    """File name and address of an image, and the captions that fit and do not fit it, from general to specific."""

    image: str
    url: str
    positive: tuple[str, ...]
    negative: tuple[str, ...]


def read_chain(text: str | None, where: str) -> tuple[str, ...]:
    """The captions of a chain. Raises UserError, beginning with `where`, unless there are four."""
    captions = tuple(part.strip() for part in (text or "").split(JOINER.strip()))
    if len(captions) != LEVELS or not all(captions):
        raise UserError(f"{where} has no chain of {LEVELS} captions joined by `{JOINER.strip()}`; correct it")
    return captions


def read_pairs(path: Path) -> list[Pair]:
    """Read the file. Raises UserError, naming the line, if a row is malformed."""
    pairs = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if not {"positive", "negative", "image_url"} <= set(reader.fieldnames or ()):
                raise UserError(f"{path} lacks the columns positive, negative and image_url; download it again")
            for row in reader:
                where = f"{path}, line {reader.line_num}"
                chains = [read_chain(row[key], where) for key in ("positive", "negative")]
                if not row["image_url"]:
                    raise UserError(f"{where} has no image_url; correct it")
                pairs.append(Pair(row["image_url"].rsplit("/", 1)[-1], row["image_url"], *chains))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read: {error}; download it again") from error
    return pairs


def evaluate_expanded(
    embedder: Embedder, path: Path, images: Path, options: TaskOptions
) -> tuple[dict[str, float], dict[str, int]]:
    """Accuracy of each level, whose chance level is 0.5, and numbers of choices that were not made, by reason."""
    pairs = [
        CaptionPair(
            image=ImageSource(path=images / row.image, urls=(row.url,)),
            true=true,
            false=false,
            group=f"level_{level}",
        )
        for row in limited(read_pairs(path), options.max_examples)
        for level, (true, false) in enumerate(zip(row.positive, row.negative, strict=True), 1)
    ]
    choices = choose(embedder, pairs, options.ranking, "crop")
    found = {f"expanded/{group}": share for group, (share, _) in sorted(choices.by_group().items())}
    return found, {f"expanded file: {why}": n for why, n in choices.skipped.items()}
