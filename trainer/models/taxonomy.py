"""Taxonomy: MERU for images with a chain of labels, such as kingdom to species.

A general label entails the more specific ones of its chain and the image, over any number of levels (transitive
entailment, RCME, arXiv 2506.21476; stacked entailment, arXiv 2508.16744, here without DNA). Images are contrasted with
labels of the same level only. RCME works with angles on the unit sphere and contrasts species alone; the second paper is
known to us by its abstract. So the formulas below are ours.

Shapes: b pairs and m labels on this rank, n pairs and l labels on all ranks, c distinct labels, d embedding width.
"""

import torch
from torch import Tensor

from trainer.batch import Stream
from trainer.distributed.gather import counts_of_ranks, gather, rank, world_size
from trainer.models.config import TaxonomyConfig
from trainer.models.meru import MERU
from trainer.models.points import Points
from trainer.models.terms import Term

LEVELS = "levels"
"""Stream of the labels of all pairs, with owner, depth and number of the label."""


class Taxonomy(MERU):
    """Lorentz model; a label entails the deeper labels of its chain and the image."""

    config: TaxonomyConfig

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {LEVELS}

    def stream_features(self, stream: Stream) -> Stream:
        """Features of a stream. Equal texts pass the tower once: all images of a batch may share a kingdom."""
        rows, place = stream.rows.unique(dim=0, return_inverse=True)
        found = super().stream_features(stream._replace(rows=rows))
        return found._replace(rows=found.rows[place])

    def terms(self) -> list[Term]:
        """Contrast within levels + entail_weight * (neighbours in the chain + transitive_weight * all other pairs)."""
        return [
            Term(name="contrastive/levels", value=self.level_contrast),
            Term(name="entailment/chain", value=lambda points: mean_of_ranks(self.chain_energies(points)[0])),
            Term(
                name="entailment/transitive",
                value=lambda points: mean_of_ranks(self.chain_energies(points)[1]),
                weight=self.config.transitive_weight,
            ),
        ]

    def level_contrast(self, points: Points) -> Tensor:
        """Mean over levels, over the labels of a level, and over the images of a label of      (ours)

            -log [e(i, t) / sum_(labels u of the level) e(i, u)] / 2
            -log [e(i, t) / (e(i, t) + sum_(images j with other labels of the level) e(j, t))] / 2

        e is the exponential of the scaled similarity, i the image and t the label. An image whose label is not known at
        a level does not take part there.
        """
        owner, depth, label = facts_of(points.stream(LEVELS))
        counts, n_pairs = points.counts(LEVELS), len(points.pairs.image)
        start, first_pair = sum(counts[: rank()]), rank() * n_pairs
        facts = gather(torch.stack([owner + first_pair, depth, label], 1), counts)
        _, group = facts[:, 2].unique(return_inverse=True)  # [l]
        sizes = group.bincount()
        first = torch.full_like(sizes, len(group)).scatter_reduce(0, group, torch.arange(len(group)).to(group), "amin")
        depths = facts[first, 1]  # [c]
        in_level = depths.bincount()
        own_group, own_pair, scale = group[start : start + len(owner)], owner + first_pair, self.pair_scale()
        weights = 1 / (sizes * in_level[depths] * in_level.count_nonzero()).to(scale)
        by_label = scale * self.similarity(points.of("image"), points.all(LEVELS)[..., first, :])
        to_label = masked_loss(by_label[owner], depths == depth[:, None], own_group)
        table = torch.full((len(in_level), n_pairs * world_size()), -1, device=group.device)
        table[facts[:, 1], facts[:, 0]] = group
        others, own = table[depth], torch.arange(table.shape[1], device=group.device) == own_pair[:, None]
        is_candidate = own | (others >= 0) & (others != own_group[:, None])
        by_image = scale * self.similarity(points.of(LEVELS), points.all("image"))
        to_image = masked_loss(by_image, is_candidate, own_pair)
        return world_size() * (weights[own_group] * (to_label + to_image)).sum() / 2

    def chain_energies(self, points: Points) -> tuple[Tensor, Tensor]:
        """Energies of the pairs of neighbours in the chains of this rank, and of all other pairs, computed once.

        The image follows the deepest label of its chain.
        """

        def compute() -> tuple[Tensor, Tensor]:
            owner, _, _ = facts_of(points.stream(LEVELS))
            labels, images = points.of(LEVELS), points.of("image")
            is_last = torch.cat([owner[1:] != owner[:-1], owner.new_ones(1, dtype=torch.bool)])
            to_image = self.pair_energy(labels, images.index_select(-2, owner))
            near, far = [to_image[is_last]], [to_image[~is_last]]
            for gap in range(1, int(owner.bincount().max())):
                rows = (owner[gap:] == owner[:-gap]).nonzero()[:, 0]
                (near if gap == 1 else far).append(self.pair_energy(labels[rows], labels[rows + gap]))
            return torch.cat(near), torch.cat(far)

        return points.once("chains", compute)

    def pair_energy(self, general: Tensor, specific: Tensor) -> Tensor:
        """Energies [m] of pairs of points [m d]: the angle outside the cone, or the exterior angle."""
        return self.energy(general, specific) if self.config.energy == "cone" else self.cone(general, specific)[0]


def facts_of(levels: Stream) -> tuple[Tensor, Tensor, Tensor]:
    """Owner, depth and number [m] of the labels of a stream. Raises ValueError if one is missing."""
    if levels.owner is None or levels.depth is None or levels.label is None:
        raise ValueError("the stream levels needs owner, depth and label; build it as trainer.data.batch_builder does")
    return levels.owner, levels.depth, levels.label


def masked_loss(logits: Tensor, is_candidate: Tensor, target: Tensor) -> Tensor:
    """Cross entropy [m] of the logits [m c] of the candidates with the target column [m]."""
    return -logits.masked_fill(~is_candidate, -torch.inf).log_softmax(1).gather(1, target[:, None])[:, 0]


def mean_of_ranks(values: Tensor) -> Tensor:
    """This rank's share [] of the mean of the values [m] of all ranks, for gradients averaged over ranks. Collective."""
    return world_size() * values.sum() / max(sum(counts_of_ranks(len(values))), 1)
