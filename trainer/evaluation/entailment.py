"""How often what ought to entail does, beside pairs that do not belong together.

A general point entails a specific one if the model's energy of the two is 0: in a cone, if the exterior angle is at most
the half-aperture (MERU, section 3.2). It is asked with the aperture scaled by the eta that was trained with, and with the
plain cone. In a product of factors the share is the mean over factors, as is the loss (PHyCLIP eq. 5).

Shapes: n wholes, m boxes, k factors, d embedding width.
"""

import torch
from torch import Tensor

from trainer.models.dual_encoder import DualEncoder, Entails

DRAWS = 8  # mismatched partners for each pair,
MAX_MISMATCHED = 50_000  # as long as they are not more than this, or one each


@torch.no_grad()
def entailment_shares(
    model: DualEncoder, lifted: dict[str, Tensor], owner: Tensor | None, seed: int = 0
) -> dict[str, float]:
    """Shares by name: NAME/satisfied and NAME/chance; where eta is not 1, NAME/satisfied_plain and NAME/chance_plain too.

    `lifted` holds the points [*k n d] of "image", "text" and, with `owner` [m], those [*k m d] of "box_image", "box_text";
    those of words pair by pair.
    """
    shares: dict[str, float] = {}
    for entails in model.entailments():
        if not {entails.general, entails.specific} <= lifted.keys() or not lifted[entails.general].shape[-2]:
            continue
        general, specific, owners = aligned(entails, lifted, owner)
        right = of_pairs(model, entails, general, specific, "satisfied")
        shares |= {f"{entails.name}/{key}": value for key, value in right.items()}
        rows, partners = mismatched(owners, seed)
        if len(rows):
            wrong = of_pairs(model, entails, general[..., rows, :], specific[..., partners, :], "chance")
            shares |= {f"{entails.name}/{key}": value for key, value in wrong.items()}
    return shares


def of_pairs(model: DualEncoder, entails: Entails, general: Tensor, specific: Tensor, name: str) -> dict[str, float]:
    etas = {name: entails.eta} | ({} if entails.eta == 1 else {f"{name}_plain": 1.0})
    return {key: (model.energy(general, specific, eta) == 0).float().mean().item() for key, eta in etas.items()}


def aligned(entails: Entails, lifted: dict[str, Tensor], owner: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """General and specific points, pair by pair, and the whole that each pair belongs to."""
    general, specific = lifted[entails.general], lifted[entails.specific]
    boxed = [part.startswith("box_") for part in (entails.general, entails.specific)]
    if owner is None or not any(boxed):
        return general, specific, torch.arange(general.shape[-2], device=general.device)
    if not boxed[0]:
        general = general[..., owner, :]
    if not boxed[1]:
        specific = specific[..., owner, :]
    return general, specific, owner


def mismatched(owners: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Rows and partners of other owners, drawn at random: about `DRAWS` for each row, or fewer of many rows."""
    generator = torch.Generator().manual_seed(seed)
    n = len(owners)
    draws = min(DRAWS, max(1, MAX_MISMATCHED // max(n, 1)))
    rows = torch.arange(n).repeat(draws)
    partners = torch.randint(n, (n * draws,), generator=generator)
    apart = owners.cpu()[rows] != owners.cpu()[partners]
    return rows[apart].to(owners.device), partners[apart].to(owners.device)
