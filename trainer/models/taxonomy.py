"""Taxonomy: MERU for images with a chain of labels, such as kingdom to species.

A general label entails the more specific ones of its chain and the image, over any number of levels (transitive
entailment, RCME, arXiv 2506.21476; stacked entailment, arXiv 2508.16744, here without DNA). Images are contrasted with
labels of the same level only. RCME works with angles on the unit sphere and contrasts species alone; the second paper is
known to us by its abstract. So the formulas below are ours.

Shapes: b pairs and m labels on this rank, n pairs and l labels on all ranks, d embedding width.
"""

import torch
from torch import Tensor

from trainer.distributed.gather import world_size
from trainer.models.config import TaxonomyConfig
from trainer.models.levels import LEVELS, labels_of, level_contrast
from trainer.models.meru import MERU
from trainer.models.points import Points
from trainer.models.terms import Term


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
