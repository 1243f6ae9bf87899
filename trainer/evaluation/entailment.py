"""Share of true pairs that satisfy entailment, and the share of mismatched pairs as the chance level.

A general point entails a specific one if the model's entailment energy of the two is 0. For entailment cones, this
means that the exterior angle is at most the half-aperture (MERU, section 3.2). Shares are computed with the
half-aperture scaled by eta, as in training, and with the plain half-aperture. In a product of factors, the share is the
mean over the factors, as is the loss (PHyCLIP eq. 5).

Shapes: n full images or captions, m boxes or phrases, k factors, d embedding width.
"""

from typing import Final

import torch
from torch import Tensor

from trainer.models.dual_encoder import DualEncoder, Entails

DRAWS: Final = 8
"""Mismatched pairs drawn for each true pair; fewer, but at least one, if the total would exceed `MAX_MISMATCHED`."""
MAX_MISMATCHED: Final = 50_000


@torch.no_grad()
def entailment_shares(
    model: DualEncoder, lifted: dict[str, Tensor], owner: Tensor | None, seed: int = 0
) -> dict[str, float]:
    """Shares by name: NAME/satisfied and NAME/chance; if eta is not 1, NAME/satisfied_plain and NAME/chance_plain too.

    `lifted` holds the points [*k n d] of "image" and "text", those [*k m d] of "box_image" and "box_text" if there are
    boxes, and those of `DualEncoder.word_points`. `owner` [m] is the index of the image that each box belongs to.
    Entailments with a part that is missing are skipped.
    """
    shares: dict[str, float] = {}
    for entails in model.entailments():
        if not {entails.general, entails.specific} <= lifted.keys() or not lifted[entails.general].shape[-2]:
            continue
        general, specific, owners = align_pairs(entails, lifted, owner)
        true_shares = satisfied_shares(model, entails, general, specific, "satisfied")
        shares |= {f"{entails.name}/{key}": value for key, value in true_shares.items()}
        rows, partners = draw_mismatched(owners, seed)
        if len(rows):
            chance = satisfied_shares(model, entails, general[..., rows, :], specific[..., partners, :], "chance")
            shares |= {f"{entails.name}/{key}": value for key, value in chance.items()}
    return shares


def satisfied_shares(
    model: DualEncoder, entails: Entails, general: Tensor, specific: Tensor, name: str
) -> dict[str, float]:
    """The share of pairs with energy 0, as `name`; if eta is not 1, the share for the plain cone too, as NAME_plain."""
    etas = {name: entails.eta} | ({} if entails.eta == 1 else {f"{name}_plain": 1.0})
    return {key: (model.energy(general, specific, eta) == 0).float().mean().item() for key, eta in etas.items()}


def align_pairs(entails: Entails, lifted: dict[str, Tensor], owner: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """General and specific points, pair by pair, and the index of the sample that each pair belongs to.

    If one part is a box or a phrase and the other is not, the other is repeated for each box.
    """
    general, specific = lifted[entails.general], lifted[entails.specific]
    is_box = [part.startswith("box_") for part in (entails.general, entails.specific)]
    if owner is None or not any(is_box):
        return general, specific, torch.arange(general.shape[-2], device=general.device)
    if not is_box[0]:
        general = general[..., owner, :]
    if not is_box[1]:
        specific = specific[..., owner, :]
    return general, specific, owner


def draw_mismatched(owners: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Draw mismatched pairs: indices of general points, and of specific points that belong to a different sample.

    `owners` [n] is the sample of each true pair. About `DRAWS` pairs are drawn for each true pair, fewer for a large n.
    """
    generator = torch.Generator().manual_seed(seed)
    n = len(owners)
    draws = min(DRAWS, max(1, MAX_MISMATCHED // max(n, 1)))
    rows = torch.arange(n).repeat(draws)
    partners = torch.randint(n, (n * draws,), generator=generator)
    differ = owners.cpu()[rows] != owners.cpu()[partners]
    return rows[differ].to(owners.device), partners[differ].to(owners.device)
