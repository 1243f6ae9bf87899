"""Courses of settings over the steps of a training: `model.schedules`. Does not import torch."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from hypergrit_common.config import from_plain
from hypergrit_common.errors import UserError, prefixed
from trainer.models.config import ModelConfig

C = TypeVar("C", bound=ModelConfig)


@dataclass(frozen=True, kw_only=True)
class Course:
    """How a setting changes: from `values[0]` at step `steps[0]` to `values[1]` at step `steps[1]`.

    Steps count from 0. "log" changes the logarithm of the value linearly. "constant" has one value and does not change.
    """

    course: Literal["constant", "linear", "cosine", "log"]
    values: tuple[float, ...]
    steps: tuple[int, int]

    def __post_init__(self) -> None:
        n = 1 if self.course == "constant" else 2
        if len(self.values) != n or not all(map(math.isfinite, self.values)):
            raise UserError(f"values is {list(self.values)}; {self.course} takes {n} finite number{'s'[: n - 1]}")
        if self.course == "log" and min(self.values) <= 0:
            raise UserError(f"values is {list(self.values)}; log needs numbers above 0")
        if not 0 <= self.steps[0] < self.steps[1]:
            raise UserError(f"steps is {list(self.steps)}; give a first step from 0 on, and a later last one")

    def at(self, step: int) -> float:
        """The value at a step: `values[0]` up to `steps[0]`, the last of `values` from `steps[1]` on."""
        start, end = self.values[0], self.values[-1]
        share = (step - self.steps[0]) / (self.steps[1] - self.steps[0])
        if not 0 < share < 1:
            return end if share >= 1 else start
        if self.course == "log":
            return start * (end / start) ** share
        return start + (end - start) * (math.sin(math.pi / 2 * share) ** 2 if self.course == "cosine" else share)


def courses_of(config: ModelConfig) -> dict[str, list[Course]]:
    """The courses of `config.schedules` by setting, in their order. Raises UserError that names the setting."""
    found = {}
    for name, value in config.schedules.items():
        parts = value if isinstance(value, list | tuple) and value else [value]
        if not all(isinstance(part, Mapping) for part in parts):
            form = "{course: linear, values: [A, B], steps: [C, D]}"
            raise UserError(f"schedules.{name} is {value!r:.80}; give {form}, or several")
        found[name] = [from_plain(Course, part, f"schedules.{name}") for part in parts]
    return found


def with_values(config: C, values: Mapping[str, float]) -> C:
    """A copy of `config` with `values` by setting; SETTING.NAME changes an entry of a dict of weights. Raises UserError."""
    changes: dict[str, Any] = {}
    for name, value in values.items():
        setting, _, entry = name.partition(".")
        whole = changes.get(setting, getattr(config, setting))
        changes[setting] = {**whole, entry: value} if entry else value
    return dataclasses.replace(config, **changes)


def values_at(courses: Mapping[str, list[Course]], step: int) -> dict[str, float]:
    """The values in a step: those of the last course of each setting which has begun, or of its first one."""
    chosen = {name: [part for part in parts if part.steps[0] <= step] or parts[:1] for name, parts in courses.items()}
    return {name: parts[-1].at(step) for name, parts in chosen.items()}


def check_schedules(config: ModelConfig, steps: int) -> None:
    """Check the courses of a run.

    Args:
        config: settings of the model; those without courses are valid.
        steps: number of steps of the run.

    Raises:
        UserError: a setting is unknown or no real number, or a course leaves its range or that of the steps.
    """
    types = get_type_hints(type(config))
    hints = {item.name: (types[item.name], *get_args(types[item.name])) for item in dataclasses.fields(config)}
    numbers = [name for name, kinds in hints.items() if float in kinds and get_origin(kinds[0]) is not tuple]
    weights = [name for name in numbers if get_origin(types[name]) is dict]
    settings = ", ".join(f"{name}.NAME" if name in weights else name for name in numbers)
    for name, courses in courses_of(config).items():
        setting, _, entry = name.partition(".")
        if setting not in numbers or bool(entry) != (setting in weights):
            problem = "has no real number that may change" if setting in hints else "is no setting of this model"
            raise UserError(f"schedules.{name} {problem}; give one of {settings}")
        ends = [step for course in courses for step in course.steps]
        if ends != sorted(ends):
            raise UserError(f"schedules.{name} has courses that overlap or are not in order; give later steps")
        if ends[-1] > steps:
            raise UserError(f"schedules.{name} ends at step {ends[-1]}, after optim.steps={steps}; give fewer steps")
        for value in (value for course in courses for value in course.values):
            with prefixed(f"schedules.{name} cannot become {value:g}: "):
                with_values(dataclasses.replace(config, schedules={}), {name: value})


def watched(config: C, unread: set[str]) -> C:
    """A copy of `config` that notes what is read: reading a setting of the copy removes its name from `unread`."""

    class Watched(type(config)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            unread.discard(name)
            return super().__getattribute__(name)

    copy: C = object.__new__(Watched)
    vars(copy).update(vars(config))
    return copy
