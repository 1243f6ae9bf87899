"""The loss of Taxonomy in float64 against loops over images, labels and levels, and its gradient against differences."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hypergrit_common.errors import UserError
from tests.trainer.small import small_batch, small_model, with_stream
from trainer.batch import Batch, Stream, named_streams
from trainer.models.taxonomy import Taxonomy

CHAINS = [
    ["animal", "bird", "robin"],
    ["animal", "bird", "crow"],
    ["animal", None, "dog"],
    ["plant", "tree"],
    ["animal"],
]
"""Labels by depth: a level is unknown, chains end early, and a kingdom is shared."""
B = len(CHAINS)


def features(seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """Features of the images [b d], and of each label by its name."""
    generator = torch.Generator().manual_seed(seed)
    names = sorted({name for chain in CHAINS for name in chain if name})
    rows = torch.randn(B + len(names), 16, dtype=torch.float64, generator=generator)
    return rows[:B], dict(zip(names, rows[B:], strict=True))


def pairs_of(images: Tensor, labels: dict[str, Tensor]) -> Batch:
    rows = [(i, d, name) for i, chain in enumerate(CHAINS) for d, name in enumerate(chain) if name]
    owner, depth, _ = zip(*rows, strict=True)
    numbers = [1000 * d + sorted(labels).index(name) for _, d, name in rows]
    stream = Stream(
        torch.stack([labels[name] for _, _, name in rows]),
        "text",
        torch.tensor(owner),
        torch.tensor(depth),
        torch.tensor(numbers),
        chain=3,
    )
    return with_stream(Batch(streams=named_streams({"image": images})), "levels", stream)


def model_of(**fields: object) -> Taxonomy:
    model = small_model("taxonomy", **fields).double()
    assert isinstance(model, Taxonomy)
    with torch.no_grad():
        model.curv.fill_(math.log(0.7))
        model.visual_alpha.fill_(-0.4)
        model.textual_alpha.fill_(-0.9)
    return model


def expected(
    model: Taxonomy, images: Tensor, labels: dict[str, Tensor], energy: Callable[..., float]
) -> dict[str, float]:
    """The terms by their definitions."""
    points = model.lift_image(images)
    texts = {name: model.lift_text(row) for name, row in labels.items()}
    scale = model.logit_scale.exp().item()

    def e(i: int, name: str) -> float:
        return math.exp(scale * model.similarity(points[i : i + 1], texts[name][None]).item())

    levels = []
    for depth in range(3):
        own = {i: chain[depth] for i, chain in enumerate(CHAINS) if len(chain) > depth and chain[depth]}
        groups = []
        for name in sorted(set(own.values())):
            members = [i for i, label in own.items() if label == name]
            losses = []
            for i in members:
                others = sum(e(j, name) for j, label in own.items() if label != name)
                losses.append(-math.log(e(i, name) / sum(e(i, other) for other in set(own.values()))) / 2)
                losses[-1] -= math.log(e(i, name) / (e(i, name) + others)) / 2
            groups.append(sum(losses) / len(losses))
        levels.append(sum(groups) / len(groups))
    near, far = [], []
    for i, chain in enumerate(CHAINS):
        nodes = [texts[name] for name in chain if name] + [points[i]]
        for j in range(len(nodes)):
            for k in range(j + 1, len(nodes)):
                (near if k == j + 1 else far).append(energy(nodes[j][None], nodes[k][None]))
    return {
        "contrastive/levels": sum(levels) / len(levels),
        "entailment/chain": sum(near) / len(near),
        "entailment/transitive": sum(far) / len(far),
    }


@pytest.mark.parametrize("kind", ["cone", "angle"])
def test_terms_equal_loops_over_images_labels_and_levels(kind: str) -> None:
    model = model_of(energy=kind, transitive_weight=0.3, entail_weight=0.5)
    images, labels = features()
    losses = model.losses(pairs_of(images, labels))

    def energy(general: Tensor, specific: Tensor) -> float:
        angle, aperture = model.cone(general, specific)
        return angle.item() if kind == "angle" else max(0.0, (angle - aperture).item())

    found = expected(model, images, labels, energy)
    assert {name: losses.terms[name].item() for name in found} == pytest.approx(found, abs=1e-10)
    chain = found["entailment/chain"] + 0.3 * found["entailment/transitive"]
    assert losses.loss.item() == pytest.approx(found["contrastive/levels"] + 0.5 * chain, abs=1e-10)


def test_gradient_equals_differences() -> None:
    model = model_of(energy="angle")
    images, labels = features(1)
    names = sorted(labels)
    rows = torch.cat([images, torch.stack([labels[name] for name in names])])

    def loss(everything: Tensor) -> Tensor:
        return model.losses(pairs_of(everything[:B], dict(zip(names, everything[B:], strict=True)))).loss

    assert torch.autograd.gradcheck(loss, rows.requires_grad_(), eps=1e-6, atol=1e-6)


def test_a_level_with_one_label_adds_nothing_to_the_contrast() -> None:
    model = model_of()
    images, _ = features()
    label = torch.ones(16, dtype=torch.float64)
    stream = Stream(label.repeat(B, 1), "text", torch.arange(B), torch.zeros(B).long(), torch.ones(B).long(), chain=1)
    terms = model.losses(with_stream(Batch(streams=named_streams({"image": images})), "levels", stream)).terms
    assert terms["contrastive/levels"].item() == pytest.approx(0, abs=1e-12)
    assert "entailment/chain" in terms


def test_equal_texts_pass_the_tower_once() -> None:
    model, batch = small_model("taxonomy"), small_batch()
    batch = with_stream(batch, "queries", None)
    seen: list[int] = []
    model.textual.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    features_of = model.features(batch)["levels"].rows
    assert sorted(seen) == [8, 8, 13]  # captions, phrases, and 1 + 4 + 8 labels
    assert batch["levels"].place is not None
    direct = model.text_features(batch["levels"].rows[batch["levels"].place])
    torch.testing.assert_close(features_of, direct)


def test_a_batch_without_levels_and_a_negative_weight_are_errors() -> None:
    with pytest.raises(ValueError, match="needs the stream levels"):
        small_model("taxonomy")(with_stream(small_batch(), "levels", None))
    stream = small_batch()["levels"]._replace(depth=None)
    with pytest.raises(ValueError, match="owner, depth and label"):
        small_model("taxonomy")(with_stream(small_batch(), "levels", stream))
    with pytest.raises(UserError, match="transitive_weight"):
        small_model("taxonomy", transitive_weight=-1.0)
