"""Groups and families of words in the factors of a product of hyperbolic spaces (PHyCLIP, section 4.3 and appendix D.2).

Shapes: n words, k factors.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from trainer.evaluation.analysis.order import order_share, roc_auc

WORDS_FILE: Final = Path(__file__).resolve().parents[1] / "data" / "words.json"


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
