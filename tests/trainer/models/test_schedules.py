"""Courses of settings: their values, what is refused, and what a model does with them."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from hypergrit_common.config import from_plain
from hypergrit_common.errors import UserError
from tests.trainer import small_run
from tests.trainer.launches import graph_counter
from tests.trainer.small import small_batch, small_model
from trainer.models import dual_encoder
from trainer.models.config import HyCoCLIPConfig
from trainer.models.meru import MERU
from trainer.models.schedules import Course, check_schedules, courses_of, values_at
from trainer.models.terms import Term
from trainer.training.build import check_limits

LINEAR = {"course": "linear", "values": [0.1, 0.3], "steps": [10, 20]}


def course(kind: str, *values: float, steps: tuple[int, int] = (10, 20)) -> dict[str, Any]:
    return {"course": kind, "values": list(values), "steps": list(steps)}


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("constant", (0.7,), [0.7] * 6),
        ("linear", (1.0, 3.0), [1, 1, 1.4, 2, 3, 3]),
        ("cosine", (1.0, 3.0), [1, 1, 2 - math.cos(0.2 * math.pi), 2, 3, 3]),
        ("log", (1.0, 0.25), [1, 1, 0.25**0.2, 0.5, 0.25, 0.25]),
    ],
)
def test_a_course_has_its_form_and_its_exact_ends(kind: str, values: tuple[float, ...], expected: list[float]) -> None:
    found = from_plain(Course, course(kind, *values), "")
    assert [found.at(step) for step in (0, 10, 12, 15, 20, 99)] == pytest.approx(expected)
    assert (found.at(10), found.at(20)) == (values[0], values[-1])


def test_of_several_courses_the_last_that_has_begun_counts() -> None:
    parts = [course("linear", 0.0, 1.0, steps=(2, 4)), course("constant", 5.0, steps=(6, 7))]
    courses = courses_of(HyCoCLIPConfig(schedules={"min_radius": parts}))
    assert [values_at(courses, step)["min_radius"] for step in range(9)] == [0, 0, 0, 0.5, 1, 1, 5, 5, 5]


REFUSED = [
    ("curvature", LINEAR, "schedules.curvature is no setting of this model; give one of temperature_init"),
    ("logit_bias_init", LINEAR, "is no setting"),
    *(
        (name, LINEAR, f"{name} has no real number")
        for name in ("embed_dim", "use_boxes", "image.size_px", "entail_terms")
    ),
    ("entail_terms.other", LINEAR, "'other' is not a term of the loss"),
    ("eta_inter", 0.3, r"eta_inter is 0.3; give \{course: linear"),
    ("eta_inter", course("linaer", 0, 1), "course is linaer; give constant, linear, cosine or log"),
    ("eta_inter", course("linear", 0), "linear takes 2 finite numbers"),
    ("eta_inter", course("constant", 0, 1), "constant takes 1 finite number$"),
    ("eta_inter", course("linear", 0, math.inf), "finite"),
    ("eta_inter", course("log", 0, 1), "log needs numbers above 0"),
    ("eta_inter", course("linear", 1, -1), "eta_inter cannot become -1: eta_inter is -1"),
    ("eta_inter", course("linear", 0, 1, steps=(5, 5)), "a later last one"),
    ("eta_inter", course("linear", 0, 1, steps=(-5, 5)), "a first step from 0 on"),
    ("eta_inter", course("linear", 0, 1, steps=(90, 101)), "ends at step 101, after optim.steps=100"),
    ("eta_inter", [LINEAR, course("constant", 1, steps=(19, 30))], "overlap or are not in order"),
    ("eta_inter", {"course": "linear", "steps": [0, 1]}, "eta_inter: values is not set"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_a_course_that_makes_no_sense_is_explained(name: str, value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_schedules(HyCoCLIPConfig(schedules={name: value}), steps=100)


def test_a_temperature_beyond_the_limit_of_the_model_is_refused(tmp_path: Path) -> None:
    schedule = f"model.schedules.temperature_init={course('log', 0.1, 0.005, steps=(0, 9))}"
    with pytest.raises(
        UserError, match=r"schedules\.temperature_init cannot become 0\.005: .* above max_logit_scale=100"
    ):
        small_run.small_run(tmp_path / "run", schedule)


@pytest.mark.parametrize("name", ["meru", "poinclip", "phyclip", "uncha"])
def test_a_scalar_with_a_course_is_set_and_not_learned(name: str) -> None:
    fields: dict[str, Any] = {"factor_dim": 8} if name == "phyclip" else {}
    schedules = {"curv_init": course("log", 1, 0.01), "temperature_init": course("linear", 0.1, 0.05)}
    model = small_model(name, schedules=schedules, **fields)
    scale = model.get_parameter(next(iter(model.temperatures)))
    for step, c, temperature in ((0, 1.0, 0.1), (15, 0.1, 0.075), (30, 0.01, 0.05)):
        model.begin_step(step)
        model.clamp_parameters()
        assert model.scalars()["curvature"].flatten().tolist() == pytest.approx(
            [c] * model.get_parameter("curv").numel()
        )
        assert scale.exp().item() == pytest.approx(1 / temperature)
        assert (model.config.curv_init, model.config.temperature_init) == pytest.approx((c, temperature))  # type: ignore[attr-defined]
    assert not scale.requires_grad
    assert not model.get_parameter("curv").requires_grad
    assert model.visual_alpha.requires_grad


def test_the_check_of_courses_changes_no_weight() -> None:
    model = small_model("meru", schedules={"curv_init": course("log", 1, 0.5)})
    torch.nn.init.constant_(model.visual_alpha, 0.3)  # as read from another model; steps of the training clamp it
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_limits(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.step_number == 0


def test_a_weight_with_a_course_weighs_its_term() -> None:
    model, batch = small_model("meru", schedules={"entail_weight": course("linear", 0, 1)}), small_batch()
    for step, share in ((1, 0.0), (10, 0.0), (15, 0.5), (20, 1.0)):
        model.begin_step(step)
        losses = model(batch)
        torch.testing.assert_close(losses.loss, losses.terms["contrastive"] + share * losses.terms["entailment"])


class Stepping(MERU):
    """A model whose loss uses the number of the step."""

    def terms(self) -> list[Term]:
        return [*super().terms(), Term(name="rising", value=lambda points: points.step / 100 * points.of("text").sum())]


@pytest.mark.rest
def test_values_that_change_compile_the_loss_a_few_times_not_in_each_step() -> None:
    schedules = {name: course("log", 0.1, 1, steps=(0, 50)) for name in ("min_radius", "entail_weight", "curv_init")}
    config: Any = small_model("meru", schedules=schedules).config
    model, graphs = Stepping(config), list[int]()
    torch.compiler.reset()
    model.losses = torch.compile(model.losses, backend=graph_counter(graphs), fullgraph=True)  # type: ignore[method-assign]
    batch, counts = small_batch(), []
    for step in range(1, 7):
        model.begin_step(step)
        expected = type(model).losses(model, dataclasses.replace(model.features(batch), step=step)).loss
        torch.testing.assert_close(model(batch).loss, expected)
        counts.append(len(graphs))
    assert counts[-1] == counts[2] <= 3


def test_the_first_step_tells_which_settings_with_a_course_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    schedules = {"eta_inter": LINEAR, "curv_init": LINEAR, "entail_terms.text_image": LINEAR, "min_radius": LINEAR}
    model = small_model("hycoclip", schedules=schedules)
    monkeypatch.setattr(dual_encoder.DualEncoder, "losses", lambda self, pairs: (self.terms(), None)[1])
    model.begin_step(0)
    model(small_batch())
    assert model.unread == {"min_radius"}
    model.begin_step(1)
    assert type(model.config) is HyCoCLIPConfig
