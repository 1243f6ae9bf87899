"""Taxonomy: MERU for images with a chain of labels, such as kingdom to species.

A general label entails the more specific ones of its chain and the image, over any number of levels (transitive
entailment, RCME, arXiv 2506.21476; stacked entailment, arXiv 2508.16744, here without DNA). Images are contrasted with
labels of the same level only. RCME works with angles on the unit sphere and contrasts species alone; the second paper is
known to us by its abstract. So the formulas below are ours.

Shapes: b pairs and m labels on this rank, n pairs and l labels on all ranks, d embedding width.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.distributed.gather import rank, world_size
from trainer.models.config import TaxonomyConfig
from trainer.models.meru import MERU
from trainer.models.points import Points
from trainer.models.terms import Term

# Labels of a taxonomy in a batch, and the contrast of images with labels of the same level.

LEVELS = "levels"
"""Stream of the labels of all pairs, with owner, depth and number of the label."""


class Labels(NamedTuple):
    """Pair, depth and number [l] of the labels of all ranks, and where those of this rank are."""

    pair: Tensor
    depth: Tensor
    label: Tensor
    start: int
    n_own: int
    first_pair: int


def labels_of(points: Points) -> Labels:
    """The labels of a batch, gathered once. Collective. Raises ValueError if the stream lacks a tensor."""
    pair, depth, label = points.labels(LEVELS).unbind(1)
    counts, first_pair = points.counts(LEVELS), sum(points.counts("image")[: rank()])
    return Labels(pair, depth, label, sum(counts[: rank()]), counts[rank()], first_pair)


def level_contrast(points: Points, similarity: Callable[[Tensor, Tensor], Tensor], scale: Tensor) -> Tensor:
    """Contrast of images with the labels of a taxonomy, level by level. Collective.

    Mean over levels, over the labels of a level, and over the images of a label of      (ours)

        -log [e(i, t) / sum_(labels u of the level) e(i, u)] / 2
        -log [e(i, t) / (e(i, t) + sum_(images j with other labels of the level) e(j, t))] / 2

    e is the exponential of the scaled similarity, i the image and t the label. An image whose label is not known at a
    level does not take part there. Copies of a label are candidates of a share each, which needs no list of the
    distinct ones, and so no value of the device.

    Args:
        points: lifted points with the streams "image" and `LEVELS`.
        similarity: maps queries [*k b d] and candidates [*k n d] to similarities [b n].
        scale: inverse temperature [].

    Returns:
        A scalar, whose average over the ranks is the loss of the pairs of all ranks.

    Raises:
        ValueError: the stream is missing, or lacks owner, depth or label.
    """
    levels = labels_of(points)
    rows = slice(levels.start, levels.start + levels.n_own)
    own_pair, depth, label = levels.pair[rows], levels.depth[rows, None], levels.label[rows, None]
    in_level, is_same = levels.depth == depth, levels.label == label  # [m l]
    sizes = (levels.label[:, None] == levels.label).sum(1).to(scale)  # [l] copies of each label
    n_labels = (in_level / sizes).sum(1)  # [m] distinct labels of the level of each row
    n_levels = (1 / (levels.depth[:, None] == levels.depth).sum(1).to(scale)).sum()
    by_label = scale * similarity(points.of("image"), points.all(LEVELS)) - sizes.log()
    logits = by_label[own_pair - levels.first_pair].masked_fill(~in_level, -torch.inf)
    own_row = torch.arange(levels.n_own, device=depth.device) + levels.start
    to_label = logits.logsumexp(1) - logits.gather(1, own_row[:, None])[:, 0] - sizes[rows].log()
    n_pairs = sum(points.counts("image"))
    others = torch.zeros(levels.n_own, n_pairs, device=depth.device, dtype=scale.dtype)
    others.index_add_(1, levels.pair, (in_level & ~is_same).to(scale))
    is_own = torch.arange(n_pairs, device=depth.device) == own_pair[:, None]
    by_image = scale * similarity(points.of(LEVELS), points.all("image"))
    by_image = by_image.masked_fill(~(is_own | (others > 0)), -torch.inf)
    to_image = by_image.logsumexp(1) - by_image.gather(1, own_pair[:, None])[:, 0]
    weights = 1 / (sizes[rows] * n_labels * n_levels)
    return world_size() * (weights * (to_label + to_image)).sum() / 2


class Taxonomy(MERU):
    """Lorentz model; a label entails the deeper labels of its chain and the image."""

    config: TaxonomyConfig

    def terms(self) -> list[Term]:
        """Contrast within levels + entail_weight * (neighbours in the chain + transitive_weight * all other pairs)."""
        return [
            Term(
                name="contrastive/levels",
                value=lambda points: level_contrast(points, self.similarity, self.pair_scale()),
                gathers=("image", LEVELS),
            ),
            Term(name="entailment/chain", value=lambda points: self.chain_energies(points)[0]),
            Term(
                name="entailment/transitive",
                value=lambda points: self.chain_energies(points)[1],
                weight=self.config.transitive_weight,
            ),
        ]

    def chain_energies(self, points: Points) -> tuple[Tensor, Tensor]:
        """Mean energy of the neighbours in the chains of all ranks, and of all other pairs, computed once.

        The image follows the deepest label of its chain, so that a chain of c labels has c pairs of neighbours and
        c (c - 1) / 2 others.
        """

        def compute() -> tuple[Tensor, Tensor]:
            levels, stream = labels_of(points), points.stream(LEVELS)
            pair = levels.pair[levels.start : levels.start + levels.n_own]
            labels, images = points.of(LEVELS), points.of("image")
            is_last = torch.cat([pair[1:] != pair[:-1], pair.new_ones(1, dtype=torch.bool)])
            to_image = self.pair_energy(labels, images.index_select(-2, pair - levels.first_pair))
            near, far = (to_image * is_last).sum(), (to_image * ~is_last).sum()
            for gap in range(1, stream.chain):
                found = self.pair_energy(labels[:-gap], labels[gap:]) * (pair[gap:] == pair[:-gap])
                near, far = (near + found.sum(), far) if gap == 1 else (near, far + found.sum())
            sizes = torch.zeros(len(images) * world_size(), device=pair.device)
            sizes.index_add_(0, levels.pair, torch.ones_like(levels.pair, dtype=sizes.dtype))
            n_far = (sizes * (sizes - 1) / 2).sum().clamp(min=1)
            return world_size() * near / len(levels.pair), world_size() * far / n_far

        return points.once("chains", compute)

    def pair_energy(self, general: Tensor, specific: Tensor) -> Tensor:
        """Energies [m] of pairs of points [m d]: the angle outside the cone, or the exterior angle."""
        return self.energy(general, specific) if self.config.energy == "cone" else self.cone(general, specific)[0]
