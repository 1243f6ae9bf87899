"""HiMo-Docci (HiMo-CLIP, AAAI 2026, arXiv 2511.06653): captions that grow by one sentence at a time.

HiMo@K of an image is Pearson's correlation of the number of the caption and its score. It depends on the scale of the
scores: a similarity that is not a cosine gives another correlation for the same order.
"""

from pathlib import Path
from typing import Final, NamedTuple

from torch.nn.utils.rnn import pad_sequence

from hypergrit_common.errors import UserError
from trainer.evaluation.metrics.chains import himo
from trainer.evaluation.metrics.items import mean_items
from trainer.evaluation.metrics.ranking import choice_scores
from trainer.evaluation.sets.annotations import checksums, field, json_object, numbered_lines
from trainer.evaluation.task import Embedder, ImageSource, TaskOptions, TaskResult
from trainer.evaluation.tasks.examples import Problems, distinct, embed_sources, item, limited, require

FILE: Final = "himo/himo_docci_data.json"
IMAGES: Final = "docci/images"


class HimoRow(NamedTuple):
    """File name of an image, and its captions, each with one sentence more than the one before."""

    image: str
    captions: tuple[str, ...]


def read_rows(path: Path, problems: Problems) -> list[HimoRow]:
    """Read the file, one JSON object in each line. Raises UserError if it is malformed."""

    def read(numbered: tuple[int, str]) -> HimoRow:
        where = f"{path}, line {numbered[0]}"
        entry = json_object(numbered[1], where)
        listed = field(entry, "caption", list, where)
        captions = tuple(item(listed, i, str, f"{where}: caption") for i in range(len(listed)))
        if len(captions) < 2:
            raise UserError(f"{where} has {len(captions)} captions, but growth needs two; download it again")
        return HimoRow(field(entry, "img_path", str, where), captions)

    return problems.entries(path, numbered_lines(path), read)


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """HiMo@K as `pearson`, and the share of images whose score rises with each sentence as `monotone`."""
    require(root, FILE)
    problems = Problems()
    rows = limited(read_rows(root / FILE, problems), options.max_examples)
    images = embed_sources(embedder, [ImageSource(path=root / IMAGES / row.image) for row in rows])
    used = [rows[i] for i in images.usable.tolist()]
    texts, places = distinct([caption for row in used for caption in row.captions])
    own = places.split([len(row.captions) for row in used])
    columns = pad_sequence(list(own), batch_first=True)
    image_rows = images.rows[images.usable]
    scores = choice_scores(embedder.model, images.features, embedder.texts(texts), image_rows, columns, options.ranking)
    found = himo([row[: len(part)] for row, part in zip(scores, own, strict=True)])
    items = {name: mean_items(values) for name, values in found.items()}
    return TaskResult(
        metrics={name: values.metric() for name, values in items.items()},
        chance={"pearson": 0.0},
        rules={"score": options.ranking, "image": "center crop", "ties": "do not rise; constant scores have pearson 0"},
        n_used=len(used),
        skipped=images.skipped() | problems.skipped,
        checksums=checksums(root, root / FILE),
        details=problems.details(),
        items=items,
    )
