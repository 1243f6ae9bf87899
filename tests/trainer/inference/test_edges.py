"""Inference at the edges: points that entail themselves, inputs of every form, values that are not finite."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

from hypergrit_common.errors import NotFiniteError, UserError
from tests.trainer.small import NAMES, small_model
from trainer.checkpoints.model import LoadedModel, load_state
from trainer.data.preprocess import PreprocessConfig
from trainer.inference.model import Model
from trainer.models.cones import Cones
from trainer.text.tokenizer import Tokenizer


def model_of(name: str, **fields: Any) -> Model:
    module = small_model(name, **fields)
    parts = LoadedModel(model=module, tokenizer=Tokenizer([], 8), preprocess=PreprocessConfig(size_px=16), config={})
    return Model(parts, torch.device("cpu"))


def points_of(model: Model, n: int = 5, seed: int = 0) -> torch.Tensor:
    features = torch.randn(n, 16, generator=torch.Generator().manual_seed(seed))
    return model._join(model.module.lift_text(features).detach())


@pytest.mark.parametrize("name", NAMES)
def test_a_point_is_at_no_distance_from_itself_and_entails_itself(name: str) -> None:
    model = model_of(name, **({"factor_dim": 8} if name == "phyclip" else {}))
    points, root = points_of(model), torch.zeros(1, 16)
    assert model.distance(points, points).diagonal().abs().max() < 1e-6
    if name != "clip":
        assert model.radius(root).item() == 0
    if name not in ("clip", "phyclip"):
        assert model.nearest(points, model.index(points), k=1).distances.abs().max() < 1e-6
    if isinstance(model.module, Cones):
        copies = points * (1 + 1e-6 * torch.randn(points.shape, generator=torch.Generator().manual_seed(1)))
        for scale in (0.7, 1.0):
            assert model.entails(points, copies, scale).diagonal().all()
            assert model.entails(root, points, scale).all()
        others = points_of(model, seed=1)
        assert not model.entails(others, points).all()  # the rule is for equal points alone


def test_losses_and_evaluation_keep_the_limits_of_the_papers() -> None:
    module = small_model("meru")
    points = module.lift_text(torch.randn(3, 16))
    assert module.distance(points, points).diagonal().min() > 1e-4  # type: ignore[operator]


PICTURE = PIL.Image.new("RGB", (20, 12), (200, 30, 60))


def png() -> bytes:
    file = io.BytesIO()
    PICTURE.save(file, "PNG")
    return file.getvalue()


def written() -> io.BytesIO:
    file = io.BytesIO()
    file.write(png())
    return file  # stands at its end


FORMS: list[Callable[[], Any]] = [
    lambda: png(), written, lambda: np.asarray(PICTURE), lambda: torch.tensor(np.asarray(PICTURE)),
    lambda: torch.tensor(np.asarray(PICTURE)).movedim(-1, 0),
    lambda: (image for image in [PICTURE]), lambda: np.asarray(PICTURE)[None], lambda: iter([png()]),
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_images_of_every_form_give_the_same_point(form: Callable[[], Any]) -> None:
    model = model_of("meru")
    assert torch.equal(model.encode_image(form()), model.encode_image(PICTURE))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.encode_image([PICTURE, None]), "image 1: an image is None, NoneType; give a path"),
        (lambda model: model.encode_image([3.5]), "image 0: an image is 3.5, float"),
        (lambda model: model.encode_image(7), "images are 7, int; give one or several"),
        (
            lambda model: model.encode_image(torch.zeros(3, 5, 4, dtype=torch.bfloat16)),
            "image 0: .*bfloat16 .*give uint8",
        ),
        (lambda model: model.encode_image(torch.zeros(3, 4, 4)), "image 0: .* float32 .*give uint8"),
        (lambda model: model.encode_image(io.StringIO("x")), "image 0: .*; give a path"),
        (lambda model: model.encode_text(iter(["a", float("nan")])), "text 1: a text is nan, float; give a str"),
        (lambda model: model.encode_text([b"a"]), "text 0: a text is b'a', bytes"),
        (lambda model: model.encode_text(None), "texts are None, NoneType"),
        (lambda model: model.radius(torch.zeros(16)), r"points are \[16\]; give rows \[n, 16\]"),
        (lambda model: model.distance(torch.zeros(2, 16), torch.zeros(2, 8)), r"points are \[2, 8\]"),
        (lambda model: model.traverse(torch.zeros(1, 2, 16), torch.zeros(2, 16)), r"points are \[1, 2, 16\]"),
        (lambda model: model.nearest([0.0], torch.zeros(2, 16)), "points are list; give a tensor"),
    ],
)
def test_other_inputs_get_one_error_with_index_and_type(call: Callable[[Model], Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call(model_of("meru"))


def test_points_may_be_arrays() -> None:
    model = model_of("hycoclip")
    points = points_of(model)
    expected = model.radius(points.flip(0))
    for array in (points.numpy().astype(np.float64), points.numpy().astype(">f4"), points.numpy().astype(object)):
        assert torch.equal(model.radius(array[::-1]), expected)
    with pytest.raises(UserError, match="points are an array of object; give numbers"):
        model.radius(np.full((2, 16), "x", object))


def test_values_that_are_not_finite_are_counted_and_refused() -> None:
    model = model_of("meru")
    weight = next(model.module.visual.parameters())
    weight.data[..., 0] = torch.inf
    with pytest.raises(NotFiniteError, match="2 of 2 images are not finite"):
        model.encode_image([PICTURE, PICTURE])
    with pytest.raises(ValueError, match="1 entries have values that are NaN or infinite: visual"):
        load_state(small_model("meru"), model.module.state_dict(), Path("broken"))
