"""Words in hyperbolic space, by factor: norms of WordNet groups, and HoroPCA of families of words.

PHyCLIP, figures 4 and 5 and appendix D.2: a factor reacts to the words of one family, which form a hierarchy in it and
stay near the origin in other factors. The paper does not list its words; those of data/words.json are from WordNet. A
model without factors has one, so that its norms and disks can be compared. Indices of factors belong to one training run.

Shapes: n words, k factors, d width of a factor.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from trainer.analyses.horopca import horopca
from trainer.evaluation.metrics.entailment import order_share, roc_auc
from trainer.evaluation.metrics.spaces import factor_points, space_of
from trainer.evaluation.plots import draw_boxes, draw_disk, draw_heat
from trainer.evaluation.task import Embedder, Figure, TaskOptions, TaskResult, UnsuitableModelError
from trainer.evaluation.tasks.examples import lift_texts
from trainer.models.hyperbolic import Hyperbolic
from trainer.models.registry import model_name

# Groups and families of words in the factors of a product of hyperbolic spaces (PHyCLIP, section 4.3 and appendix D.2).
#
# Shapes: n words, k factors.

WORDS_FILE: Final = Path(__file__).resolve().parents[1] / "evaluation" / "data" / "words.json"


@dataclass(frozen=True)
class Family:
    """Words of one family, and edges (word, hypernym) between them."""

    words: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]


@cache
def read_words() -> tuple[dict[str, tuple[str, ...]], dict[str, Family]]:
    """The groups of nouns and the families of data/words.json, by name."""
    content = json.loads(WORDS_FILE.read_text(encoding="utf-8"))
    families = {
        name: Family(tuple(part["words"]), tuple((word, parent) for word, parent in part["edges"]))
        for name, part in content["families"].items()
    }
    return {name: tuple(words) for name, words in content["groups"].items()}, families


def separation(inside: Tensor, outside: Tensor) -> Tensor:
    """Difference of the mean norms of two sets of words [n k] by factor [k], in units of their standard deviation."""
    spread = torch.cat([inside - inside.mean(0), outside - outside.mean(0)]).square().mean(0).sqrt()
    return (inside.mean(0) - outside.mean(0)) / spread.clamp(min=1e-12)


def factor_of(inside: Tensor, outside: Tensor) -> int:
    """The factor in which the norms of a family [n k] exceed those of other words [n k] most."""
    return int(separation(inside, outside).argmax())


def held_out_auc(inside: Tensor, outside: Tensor) -> float:
    """Probability that a word of the family has a larger norm than another word, in the factor of the family.

    The factor is chosen on one half of the words and measured on the other one, in both directions, so that the chance
    level is 0.5. `inside` and `outside` are norms [n k].
    """
    halves = [(inside[start::2], outside[start::2]) for start in (0, 1)]
    found = []
    for (chosen, others), (tested, rest) in ((halves[0], halves[1]), (halves[1], halves[0])):
        factor = factor_of(chosen, others)
        found.append(roc_auc(tested[:, factor], rest[:, factor]))
    return sum(found) / len(found)


def edge_order(norms: Mapping[str, float], edges: Sequence[tuple[str, str]]) -> float:
    """Share of the edges (word, hypernym) whose hypernym is nearer the origin."""
    specific, general = (torch.tensor([norms[edge[i]] for edge in edges], dtype=torch.float64) for i in (0, 1))
    return order_share(general, specific)


def strongest(norms: Tensor, words: Sequence[str], k: int) -> dict[int, list[str]]:
    """The `k` words with the largest norms [n k] in each factor, for the factors in order of their spread."""
    order = norms.std(0, unbiased=False).argsort(descending=True).tolist()
    top = norms.topk(min(k, len(words)), dim=0).indices
    return {factor: [words[i] for i in top[:, factor].tolist()] for factor in order}


PROMPT: Final = "a photo of a {}"
TOP: Final = 10
N_FACTORS_SHOWN: Final = 16


def evaluate(embedder: Embedder, root: Path, options: TaskOptions) -> TaskResult:
    """Embed the words and compare their norms by factor. Raises UnsuitableModelError without hyperbolic space."""
    model = embedder.model
    if not isinstance(model, Hyperbolic):
        raise UnsuitableModelError(f"{model_name(model)} has no hyperbolic space")
    groups, families = read_words()
    sets = {**groups, **{name: family.words for name, family in families.items()}}
    words = list(dict.fromkeys(word for part in sets.values() for word in part))
    points = lift_texts(embedder, [PROMPT.format(word) for word in words])
    radii = space_of(model).radius(points).cpu()
    norms = radii.T if radii.ndim == 2 else radii[:, None]  # [n k]
    balls = factor_points(model, points).cpu()  # [k n d]
    place = {word: number for number, word in enumerate(words)}
    rows = {name: [place[word] for word in part] for name, part in sets.items()}
    outside = {name: [i for i in range(len(words)) if i not in set(part)] for name, part in rows.items()}
    own = {name: factor_of(norms[rows[name]], norms[outside[name]]) for name in sets}
    metrics: dict[str, float] = {}
    for name, family in families.items():
        key = name.split()[0]
        metrics[f"{key}/auc"] = held_out_auc(norms[rows[name]], norms[outside[name]])
        in_factor = {word: norms[place[word], own[name]].item() for word in family.words}
        metrics[f"{key}/order"] = edge_order(in_factor, family.edges)
        for where, other in (("", name), ("_elsewhere", next(other for other in families if other != name))):
            metrics[f"{key}/median_distance{where}"] = norms[rows[name], own[other]].median().item()
    return TaskResult(
        metrics=metrics,
        chance={name: 0.5 for name in metrics if name.endswith(("/auc", "/order"))},
        rules={
            "prompt": PROMPT,
            "words": "frequent nouns of WordNet 3.0 and two families, data/words.json; the paper lists none",
            "factor": "the one in which the norms of a set exceed those of all other words most",
            "auc": "family against all other words; the factor is chosen on one half and measured on the other one",
            "order": "share of the edges of a family whose hypernym is nearer the origin, in the family's factor",
            "elsewhere": "in the factor of the other family",
        },
        n_used=len(words),
        details={
            "families": {name: f"factor {own[name]}" for name in families},
            "factors": factor_table(norms, words, rows, outside),
        },
        figures=[*overview(norms, rows, outside), *disks(balls, rows, own, families)],
    )


def factor_table(
    norms: Tensor, words: list[str], rows: Mapping[str, list[int]], outside: Mapping[str, list[int]]
) -> list[dict[str, Any]]:
    """For the factors with the largest spread of norms [n k]: the words and the set that they react to most."""
    shifts = {name: separation(norms[part], norms[outside[name]]) for name, part in rows.items()}
    top = strongest(norms, words, TOP)
    table = []
    for factor in list(top)[:N_FACTORS_SHOWN]:
        best = max(shifts, key=lambda name: float(shifts[name][factor]))
        shift = f"{best} ({shifts[best][factor].item():+.1f} standard deviations)"
        table.append({"factor": factor, "reacts_to": shift, "words": ", ".join(top[factor])})
    return table


def overview(norms: Tensor, rows: Mapping[str, list[int]], outside: Mapping[str, list[int]]) -> list[Figure]:
    """The distribution of the norms of each set, and for several factors the shift of each set in each factor."""
    totals = {name: norms[part].sum(1).numpy() for name, part in rows.items()}
    label = "distance to the origin" + (", sum over the factors" if norms.shape[1] > 1 else "")
    figures = [Figure("norms", "Distances of words from the origin", draw_boxes, totals, label)]
    if norms.shape[1] > 1:
        shifts = torch.stack([separation(norms[part], norms[outside[name]]) for name, part in rows.items()])
        order = shifts.argmax(0).mul(1000).sub(shifts.amax(0)).argsort()  # by the set that a factor reacts to
        title, label = "Factors and the words that they react to", "distance against other words, standard deviations"
        factors = [str(factor) for factor in order.tolist()]
        figures.append(Figure("factors", title, draw_heat, shifts[:, order].numpy(), list(rows), factors, label))
    return figures


def disks(
    balls: Tensor, rows: Mapping[str, list[int]], own: Mapping[str, int], families: Mapping[str, Family]
) -> list[Figure]:
    """HoroPCA of all families in the factor of each, with the edges of the hierarchy."""
    if balls.shape[-1] < 2:
        return []
    figures = []
    members = [i for name in families for i in rows[name]]
    for factor in dict.fromkeys(own[name] for name in families):
        coordinates = horopca(balls[factor][members]).coordinates.numpy()
        groups, labels, edges, start = {}, {}, [], 0
        for name, family in families.items():
            found = coordinates[start : start + len(family.words)]
            groups[name], labels[name], start = found, family.words, start + len(family.words)
            place = {word: tuple(found[i].tolist()) for i, word in enumerate(family.words)}
            edges += [(place[word], place[parent]) for word, parent in family.edges]
        of = " and ".join(name for name in families if own[name] == factor)
        title = f"HoroPCA of words, factor {factor} of {of}" if len(balls) > 1 else "HoroPCA of words"
        figures.append(Figure(f"disk_{factor}", title, draw_disk, groups, labels=labels, edges=edges))
    return figures
