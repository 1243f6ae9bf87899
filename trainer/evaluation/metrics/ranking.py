"""Ranks and nearest candidates for large pools, in blocks of the score matrix, without sorting it.

Shapes: q queries, n candidates, r queries and m candidates of a block, k factors, d width of a point. Points are [q d],
or [*k q d] in a product of factors.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import torch
from torch import Tensor

from trainer.evaluation.embed import device_of, embed_texts
from trainer.evaluation.metrics.entailment import average_precision
from trainer.models.config import Ranking
from trainer.models.dual_encoder import DualEncoder
from trainer.text.base import TextTokenizer

BLOCK_NUMBERS: Final = 2**22
"""Maximum number of scores of a block, times the number of factors; 16 MiB in float32."""

AT_ONCE: Final = 2**16
"""Candidates that are scored at once."""

Score = Callable[[Tensor, Tensor], Tensor]
"""Scores [r m] of points [*k r d] and [*k m d]; larger is better."""


def score_of_any(model: DualEncoder, ranking: Ranking) -> Score:
    """The score of points of any modality, such as captions among captions, or points on the way to the root.

    A model whose similarity has roles for image and text compares them by `similarity`, which has none.
    """
    return partial(model.scores, ranking=ranking) if model.is_symmetric else model.similarity


def split(points: Tensor, n: int) -> int:
    """The number of queries whose scores with n candidates are a block."""
    factors = points.shape[0] if points.ndim == 3 else 1
    return max(1, BLOCK_NUMBERS // max(1, factors * n))


def pieces(n: int, size: int) -> list[slice]:
    """Slices of at most `size` that cover 0 to n."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


@torch.no_grad()
def pessimistic_ranks(
    score: Score,
    queries: Tensor,
    candidates: Tensor,
    query_ids: Tensor,
    candidate_ids: Tensor,
    at_once: int = AT_ONCE,
) -> Tensor:
    """Ranks [q] from 0 of the best relevant candidate of each query: candidates with the query's id are relevant.

    The rank is the number of other candidates that score the same or more, so that ties count against the model, and
    constant scores give the last rank. Scores that are not numbers count as ties. A query without a relevant candidate
    has rank -1. Candidates are scored `at_once` at a time; a larger pool is scored twice.
    """
    device, parts = queries.device, pieces(candidates.shape[-2], at_once)
    pair_rows, pair_columns = (part.to(device) for part in matching_pairs(query_ids.cpu(), candidate_ids.cpu()))
    found = [torch.zeros(0, dtype=torch.int64)]
    for rows in pieces(queries.shape[-2], split(queries, min(at_once, candidates.shape[-2]))):
        points = queries[..., rows, :]
        first, last = torch.searchsorted(pair_rows, torch.tensor([rows.start, rows.stop], device=device)).tolist()
        own_rows, own_columns = pair_rows[first:last] - rows.start, pair_columns[first:last]
        own = points.new_empty(len(own_rows))
        for part in parts:
            scores = score(points, candidates[..., part, :])
            inside = (own_columns >= part.start) & (own_columns < part.stop)
            own[inside] = scores[own_rows[inside], own_columns[inside] - part.start].to(own.dtype)
        best = points.new_full((points.shape[-2],), -torch.inf).scatter_reduce(0, own_rows, own, "amax")
        best.index_fill_(0, own_rows[own.isnan()], torch.nan)
        above = -torch.bincount(own_rows[~(own < best[own_rows])], minlength=len(best))
        for part in parts:
            if len(parts) > 1:
                scores = score(points, candidates[..., part, :])
            above += scores.shape[1] - (scores < best[:, None]).sum(1)
        has_own = torch.bincount(own_rows, minlength=len(best)) > 0
        found.append(torch.where(has_own, above, -1).cpu())
    return torch.cat(found)


@torch.no_grad()
def ranks_of_matches(score: Score, queries: Tensor, candidates: Tensor) -> Tensor:
    """Ranks [n] from 0 of candidate i for query i, in blocks. Equal scores keep the order of the candidates.

    Constant scores therefore give the chance level. Scores that are not numbers rank above all others.
    """
    n = candidates.shape[-2]
    columns = torch.arange(n, device=candidates.device)
    found = [torch.zeros(0, dtype=torch.int64)]
    for rows in pieces(queries.shape[-2], split(queries, n)):
        scores = score(queries[..., rows, :], candidates)
        own_columns = columns[rows, None]
        own = scores.gather(1, own_columns)
        is_before = ~(scores <= own) | ((scores == own) & (columns < own_columns))
        found.append((is_before & (columns != own_columns)).sum(1).cpu())
    return torch.cat(found)


@torch.no_grad()
def best_candidates(score: Score, queries: Tensor, candidates: Tensor) -> Tensor:
    """Index [q] of the first of the best candidates of each query, in blocks."""
    blocks = pieces(queries.shape[-2], split(queries, candidates.shape[-2]))
    best = [score(queries[..., rows, :], candidates).argmax(1).cpu() for rows in blocks]
    return torch.cat([torch.zeros(0, dtype=torch.int64), *best])


def matching_pairs(query_ids: Tensor, candidate_ids: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs of a query and a candidate with equal ids, as rows and columns, sorted by row."""
    ids, order = candidate_ids.sort(stable=True)
    first, last = (torch.searchsorted(ids, query_ids, side=side) for side in ("left", "right"))
    counts = last - first
    rows = torch.arange(len(query_ids)).repeat_interleave(counts)
    starts = (first - counts.cumsum(0) + counts).repeat_interleave(counts)
    return rows, order[starts + torch.arange(len(rows))]


def recall_at(ranks: Tensor, ks: Iterable[int]) -> dict[int, float]:
    """Share of queries with rank below k, for each k. Queries with rank -1 are ignored."""
    known = ranks[ranks >= 0]
    return {k: (known < k).double().mean().item() if len(known) else 0.0 for k in ks}


def chance_recall(n_candidates: int, n_relevant: Tensor, k: int) -> float:
    """Expected recall at k of a random ranking, 1 - C(n - r, k) / C(n, k), mean over queries with r [q] > 0 relevant."""
    counts, times = n_relevant[n_relevant > 0].unique(return_counts=True)
    missed = torch.ones(len(counts), dtype=torch.float64)
    for i in range(min(k, n_candidates)):
        missed *= ((n_candidates - counts - i).clamp(min=0).double()) / (n_candidates - i)
    return float(((1 - missed) * times).sum() / times.sum()) if len(counts) else 0.0


@torch.no_grad()
def top_k(score: Score, queries: Tensor, candidates: Tensor, k: int, at_once: int = AT_ONCE) -> tuple[Tensor, Tensor]:
    """Scores and indices [q min(k, n)] of the best candidates of each query, best first.

    Candidates are scored `at_once` at a time and the best are merged, so that the pool may hold millions. Equal scores
    keep the order of the candidates. Scores that are not numbers come last.
    """
    n = candidates.shape[-2]
    k = min(k, n)
    found = [(torch.zeros(0, k), torch.zeros(0, k, dtype=torch.int64))]
    for rows in pieces(queries.shape[-2], split(queries, min(at_once, n))):
        points = queries[..., rows, :]
        best = points.new_empty(points.shape[-2], 0)
        indices = torch.empty(points.shape[-2], 0, dtype=torch.int64, device=points.device)
        for part in pieces(n, at_once):
            values, columns = first_largest(score(points, candidates[..., part, :]), k)
            best, indices = torch.cat([best, values], 1), torch.cat([indices, columns + part.start], 1)
            order = best.argsort(dim=1, descending=True, stable=True)[:, :k]
            best, indices = best.gather(1, order), indices.gather(1, order)
        found.append((best.float().cpu(), indices.cpu()))
    return torch.cat([scores for scores, _ in found]), torch.cat([columns for _, columns in found])


def first_largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest scores [q k] of each row [q m] and their columns; of equal scores, those of the first columns.

    `topk` does not define the order of equal scores.
    """
    scores = torch.where(scores.isnan(), -torch.inf, scores)
    k = min(k, scores.shape[1])
    last = scores.topk(k).values[:, -1:]
    above, equal = scores > last, scores == last
    keep = above | (equal & (equal.cumsum(1) <= k - above.sum(1, keepdim=True)))
    columns = keep.nonzero()[:, 1].view(len(scores), k)
    return scores.gather(1, columns), columns


# Evaluation metrics as functions of scores and labels.
#
# Shapes: q queries, n candidates, c classes.


def macro_accuracy(predicted: Tensor, target: Tensor, n_classes: int) -> float:
    """Mean recall of the classes that occur as target or prediction, as torchmetrics' `MulticlassAccuracy` computes it.

    A class that is predicted but never the target counts with a recall of 0.
    """
    hits = torch.bincount(target[predicted == target], minlength=n_classes)
    targets = torch.bincount(target, minlength=n_classes)
    occurs = (targets + torch.bincount(predicted, minlength=n_classes)) > 0
    return (hits[occurs] / targets[occurs].clamp(min=1)).mean().item()


def confusion(predicted: Tensor, target: Tensor, n_classes: int) -> Tensor:
    """Numbers of images [c c] by true class (row) and predicted class (column)."""
    return torch.bincount(target * n_classes + predicted, minlength=n_classes**2).view(n_classes, n_classes)


# Images that show several classes. Shapes: n images, c classes.

IGNORED: Final = -1
"""Label of a class that an image may show, such as a difficult object of VOC: the image does not count for it."""


def class_precisions(scores: Tensor, labels: Tensor) -> Tensor:
    """Average precision [c] of ranking all images by their score for a class, from scores and labels [n c].

    Labels are 1, 0 or `IGNORED`. Equal scores are one step of the curve. NaN for a class that no image shows, or all do.
    """
    columns = zip(scores.unbind(1), labels.unbind(1), strict=True)
    found = [average_precision(column[own == 1], column[own == 0], balanced=False) for column, own in columns]
    return torch.tensor(found, dtype=torch.float64)


def prevalence(labels: Tensor) -> Tensor:
    """Share [c] of the counted images that show a class: about the average precision at random; NaN as for precisions."""
    shown, absent = (labels == 1).sum(0).double(), (labels == 0).sum(0).double()
    return torch.where((shown > 0) & (absent > 0), shown / (shown + absent), torch.nan)


# Zero-shot classification of image folders (Radford et al. 2021, section 3.1).
#
# The hyperbolic papers use the same protocol.
#
# Shapes: c classes, p prompts, b images, k factors, d embedding width.


def class_features(
    model: DualEncoder, tokenizer: TextTokenizer, names: list[str], prompts: tuple[str, ...], batch_size: int
) -> Tensor:
    """Features [c p d] of the prompts of each class, for `lift_prompts`."""
    texts = [prompt.replace("{}", name) for name in names for prompt in prompts]
    return embed_texts(model, tokenizer, texts, batch_size).unflatten(0, (len(names), len(prompts)))


@torch.no_grad()
def predict(model: DualEncoder, image_features: Tensor, classes: Tensor, ranking: Ranking) -> Tensor:
    """The index [b] of the best class of each image, from features [b d] before the lift and lifted classes [*k c d]."""
    points = model.lift_image(image_features.to(classes.device))
    return best_candidates(partial(model.scores, ranking=ranking, query="image"), points, classes)


# Choice of the true caption of an image among several (VL-CheckList, SugarCrepe, ARO).
#
# Shapes: n examples, u images, t texts, c captions per example, d embedding width.

BLOCK: Final = 128
"""Number of examples that are scored at once, all images against all captions of the block."""


@torch.inference_mode()
def choice_scores(
    model: DualEncoder, images: Tensor, texts: Tensor, image_rows: Tensor, text_rows: Tensor, ranking: Ranking
) -> Tensor:
    """Scores [n c] of the captions `texts[text_rows]` of each image `images[image_rows]`.

    `images` [u d] and `texts` [t d] are features before the lift, `image_rows` is [n] and `text_rows` [n c]. Equal
    features have exactly equal scores: they share one column of the matrix product.
    """
    device, parts = device_of(model), []
    for start in range(0, len(image_rows), BLOCK):
        rows = text_rows[start : start + BLOCK]
        features, column = texts[rows.flatten()].unique(dim=0, return_inverse=True)
        queries = model.lift_image(images[image_rows[start : start + BLOCK]].to(device))
        scores = model.scores(queries, model.lift_text(features.to(device)), ranking, "image")
        parts.append(scores.gather(1, column.view(rows.shape).to(device)).cpu())
    return torch.cat(parts) if parts else torch.zeros(text_rows.shape)


def is_first_best(scores: Tensor) -> Tensor:
    """Mask [n], True if the first score of [n c] is larger than all others. Ties and NaN are False."""
    return (scores[:, :1] > scores[:, 1:]).all(1)
