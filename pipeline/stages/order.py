"""The stages of a job, in their order."""

from collections.abc import Iterable
from typing import Any, Final, Literal

from hypergrit_common.errors import UserError
from pipeline.stages.captions import Captions
from pipeline.stages.download.stage import Download
from pipeline.stages.ground.stage import Ground
from pipeline.stages.parse.stage import Parse
from pipeline.stages.recaption import Recaption
from pipeline.stages.score.stage import Score
from pipeline.stages.stage import Stage
from schemas.rows import READ

STAGES: Final[tuple[type[Stage], ...]] = (Download, Captions, Recaption, Parse, Ground, Score)
"""Between `read` and `write`. Schemas, steps and timings of a job follow from this list.

The settings of a stage are also a field of PipelineConfig, so that they are typed. Its drop reasons are in
schemas.status, since readers of an output, and the trainer, load no stage.
"""
SCHEMAS: Final = {"read": READ, **{stage.name: stage.schema for stage in STAGES if stage.schema is not None}}
"""Stage -> schema of the table after it, of those that add columns."""


def with_further(further: Iterable[type[Stage]]) -> tuple[type[Stage], ...]:
    """Return STAGES with further ones, each behind the stage `after` and those that already follow it.

    Args:
        further: stages of the user, in their order.

    Returns:
        All stages in the order in which rows pass them.

    Raises:
        UserError: a name is taken or no identifier, `after` is unknown, or `schema` is not None: the files of an output
            have the columns of STAGES.
    """
    found = list(STAGES)
    for stage in further:
        names = [other.name for other in found]
        if stage.name in (*names, "read", "write"):
            raise UserError(f"two stages are called {stage.name!r}; give {stage.__name__} another name")
        if not stage.name.isidentifier() or stage.schema is not None:
            raise UserError(
                f"{stage.__name__}: its name must be an identifier, and its schema None: it adds no columns"
            )
        if stage.after not in names:
            raise UserError(f"{stage.__name__}.after is {stage.after!r}; choose one of {', '.join(names)}")
        place = names.index(stage.after) + 1
        while place < len(found) and found[place] not in STAGES and found[place].after == stage.after:
            place += 1
        found.insert(place, stage)
    return tuple(found)


Step = Literal["prepare", "infer", "write", "compute"]
STEPS: Final[tuple[Step, ...]] = ("prepare", "infer", "write")
"""The steps of a job; shards that are made of finished ones have the step `compute` alone."""


def steps_of(config: Any) -> dict[Step, tuple[str, ...]]:
    """Divide the stages of a job into steps. The first stage with a model begins the second.

    Args:
        config: a PipelineConfig.

    Returns:
        Step -> the names of its stages in their order, "read" and "write" included.

    Raises:
        UserError: as `with_further`.
    """
    before, after = ["read"], list[str]()
    for stage in with_further(config.further):
        if not stage.is_used(getattr(config, stage.name)):
            continue
        (after if after or stage.has_model(getattr(config, stage.name)) else before).append(stage.name)
    return {"prepare": tuple(before), "infer": tuple(after), "write": ("write",)}
