"""Shards on their way, and the groups of them that share the batches of a model worker."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pipeline.read.types import ShardPlan
from pipeline.run import Step
from schemas.attempts import attempt_of, shard_of


@dataclass(eq=False)
class Shard:
    """A shard on its way: its next step, what the steps before have left, and its failures.

    `prepared` are the table and the notes of `prepare`, `inferred` those of `infer`; both are empty until then. `home`
    is the node that holds the prepared table, and `nodes` are those on which the next step has failed. An `is_mate`
    shard is committed already, or has failed: it only fills the batches of its group as before.
    """

    plan: ShardPlan
    step: Step = "prepare"
    prepared: tuple[Any, ...] = ()
    inferred: tuple[Any, ...] = ()
    nbytes: int = 0
    home: str = ""
    is_mate: bool = False
    attempts: int = 0
    crashes: int = 0
    losses: int = 0
    is_rescued: bool = False
    nodes: set[str] = field(default_factory=set)
    group: "Group" = field(init=False)

    def __post_init__(self) -> None:
        self.group = Group(self.plan.index, [self])

    @property
    def state(self) -> tuple[Any, ...]:
        """The arguments of the next step."""
        if self.step == "prepare":
            return ()
        return self.prepared if self.step == "infer" else (self.prepared[0], *self.inferred)

    @property
    def needs_models(self) -> bool:
        """The shard has not left the models yet, and its result is needed."""
        return not self.is_mate and self.step != "write"

    def forget(self) -> None:
        """Drop the tables of the shard, to begin again."""
        self.step, self.prepared, self.inferred, self.is_rescued = "prepare", (), (), False
        self.nodes.clear()


class Holder(Protocol):
    """A model worker, which holds groups."""

    def forget(self, group: "Group") -> None:
        """Drop the present run of a group."""
        ...


@dataclass(eq=False)
class Group:
    """Consecutive shards that go through one model worker in order; a shard alone does not share batches.

    A failed group is run again from its first shard, so that its batches are the same. `model` has the first `n_fed`
    shards of this run.
    """

    index: int
    shards: list[Shard]
    model: Holder | None = None
    run: int = 0
    n_fed: int = 0
    is_finishing: bool = False
    is_finished: bool = False
    is_held: bool = False  # until the death of its worker is judged
    is_offered: bool = False  # waits for a model worker
    crashes: int = 0
    losses: int = 0
    is_shared: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """The name of this run at a model worker."""
        return self.index, self.run

    def next(self) -> Shard | None:
        """Return the shard to feed next, if it is prepared."""
        if self.is_held or self.is_finished or self.n_fed >= len(self.shards):
            return None
        shard = self.shards[self.n_fed]
        return shard if shard.prepared else None

    @property
    def is_fed(self) -> bool:
        """All shards are at the model worker, but the last batches are not computed."""
        return not (self.is_held or self.is_finishing or self.is_finished) and self.n_fed == len(self.shards)

    @property
    def is_needed(self) -> bool:
        """The result of a shard is missing."""
        return any(shard.needs_models for shard in self.shards)

    def begin_again(self) -> None:
        """Start another run."""
        self.run += 1
        self.n_fed, self.model = 0, None
        self.is_finishing = self.is_finished = self.is_held = False


def make_groups(plans: Sequence[ShardPlan], mates: Iterable[ShardPlan], size: int) -> list[Group]:
    """Return the groups of `plans`: shards with the same index // size, in their order, with their committed `mates`.

    A group with a shard that failed before comes where this shard is in `plans`. With size 1, each shard is alone.
    """
    if size == 1:
        return [Shard(plan).group for plan in plans]
    members: dict[tuple[int, int], list[Shard]] = {}
    for plan in plans:
        key = group_of(plan, size)
        found = members.pop(key, [])  # moves the group to the end
        members[key] = [*found, Shard(plan)]
    planned = {plan.index for plan in plans}
    for plan in mates:
        if plan.index not in planned and (key := group_of(plan, size)) in members:
            members[key].append(Shard(plan, is_mate=True))
    groups = []
    for shards in members.values():
        shards.sort(key=lambda shard: shard.plan.index)
        group = Group(shards[0].plan.index, shards, is_shared=True)
        for shard in shards:
            shard.group = group
        groups.append(group)
    return groups


def group_of(plan: ShardPlan, size: int) -> tuple[int, int]:
    """Return the group of a shard: it depends on its index alone."""
    return attempt_of(plan.index), shard_of(plan.index) // size
