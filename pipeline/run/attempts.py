"""Rules for a shard whose step has failed or does not count: it is tried again, put off or given up.

Both runners follow these rules. They differ in how a call is made and how it ends.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pipeline.output.manifest import failed_shard
from pipeline.run.progress import Follower, tell
from pipeline.run.steps import Failed, Notes
from pipeline.stages.order import STEPS, Step

logger = logging.getLogger("hypergrit")

LEAST: Final = 20
"""Rows without an answer below which a shard tells nothing: its hosts may be dead."""
PAUSE_S: Final = 30.0
"""Pause before a shard is computed again, which doubles with each time."""
WEIGHT: Final = 0.9
"""Weight of a shard beside the next one, its square beside the one after that, and so on."""


class Breaker:
    """Compares the downloads of the shards of a job. A shard is put off if too few of its rows got an answer.

    That is if none got one, as long as no other shard counts; later, if of the rows that usually get an answer, fewer
    than half got one. After `retries` times the result of a shard counts, whatever it is: a job whose hosts are all dead
    ends. The last shards decide what is usual, so that the rows of an input may become worse from some shard on.
    """

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self._n_put_off = Counter[int]()
        self._n_asked = self._n_unanswered = 0.0  # of the shards that count

    def pause_s(self, plan: Any, notes: Notes) -> float:
        """Judge a shard after its step `prepare`; return the pause after which it is computed again, 0 if it counts."""
        n_before = self._n_put_off[plan.index]
        if self._is_cut_off(notes) and n_before < self._retries:
            self._n_put_off[plan.index] += 1
            pause_s = PAUSE_S * 2.0**n_before
            cause = "check the network of this machine, and its name server"
            if notes.host:
                cause = f"they are all of {notes.host}, which may be down or refuse this machine; otherwise {cause}"
            logger.warning(
                "%d of %d rows of shard %d got no answer, far more than usual; it is computed again in %.0f s: %s",
                *(notes.unanswered, notes.asked, plan.index, pause_s, cause),
            )
            return pause_s
        self._n_asked = WEIGHT * self._n_asked + notes.asked
        self._n_unanswered = WEIGHT * self._n_unanswered + notes.unanswered
        return 0.0

    def _is_cut_off(self, notes: Notes) -> bool:
        if notes.unanswered < LEAST:
            return False
        if not self._n_asked:
            return notes.unanswered == notes.asked
        usual = self._n_unanswered / self._n_asked
        return notes.unanswered / notes.asked > (1 + usual) / 2


@dataclass(eq=False)
class Shard:
    """A shard on its way: its next step, what the step before has left, and its failures.

    `state` are the table, of `nbytes` bytes, and the notes of the step before. `nodes` are those on which the next step
    has failed.
    """

    plan: Any  # ShardPlan, or Task
    step: Step = "prepare"
    state: tuple[Any, ...] = ()
    nbytes: int = 0
    attempts: int = 0
    crashes: int = 0
    losses: int = 0
    is_rescued: bool = False
    nodes: set[str] = field(default_factory=set)


class Attempts:
    """The shards of a run that are not in a call: they wait for their next step, are put off, or have failed.

    `n_left` are those without a result. `is_local`: all calls run on this machine.
    """

    def __init__(self, plans: Sequence[Any], steps: Sequence[Step], retries: int, is_local: bool = False) -> None:
        self.n_left, self.steps, self.retries, self.is_local = len(plans), steps, retries, is_local
        self.breaker = Breaker(retries)
        self.tasks: dict[Step, deque[Shard]] = {step: deque() for step in steps}
        self.tasks[steps[0]].extend(Shard(plan, steps[0]) for plan in plans)
        self.for_models: deque[Shard] = deque()  # prepared, and not at a model worker
        self.failed: deque[Failed] = deque()
        self.later: list[tuple[float, Shard]] = []  # with the time of their turn
        self.held = self.made = self.n_made = 0  # bytes of tables that are held, of those made, and their number

    def queue(self, shard: Shard, first: bool = False) -> None:
        """Let a shard wait for its next step."""
        is_model = shard.step == "infer" and not shard.is_rescued
        waiting = self.for_models if is_model else self.tasks[shard.step]
        (waiting.appendleft if first else waiting.append)(shard)

    def wake(self) -> None:
        """Queue the shards first whose pause is over."""
        for due, shard in [entry for entry in self.later if entry[0] <= time.monotonic()]:
            self.later.remove((due, shard))
            self.begin_again(shard)

    def has_passed(self, shard: Shard, notes: Notes, seconds: float | None = None) -> bool:
        """Let a shard go on to its next step; return False if the step does not count, and the shard is put off."""
        index, step = shard.plan.index, shard.step
        if step == "prepare" and (pause_s := self.breaker.pause_s(shard.plan, notes)):
            tell(Follower.lost, index)
            self.later.append((time.monotonic() + pause_s, shard))
            return False
        tell(Follower.ended, index, step, seconds)
        shard.step = self.steps[self.steps.index(step) + 1]
        return True

    def keep(self, shard: Shard, table: Any, notes: Notes, nbytes: int) -> None:
        """Hold the table that a step has left, and let the shard wait for the step after it."""
        self.release(shard)
        shard.state, shard.nbytes, shard.is_rescued = (table, notes), nbytes, False
        shard.nodes.clear()
        self.held += nbytes
        self.made += nbytes
        self.n_made += 1
        self.queue(shard)

    def release(self, shard: Shard) -> None:
        """Drop the table of a shard."""
        self.held -= shard.nbytes
        shard.state, shard.nbytes = (), 0

    def begin_again(self, shard: Shard) -> None:
        """Let a shard begin again whose table is lost, or does not count."""
        self.release(shard)
        shard.step, shard.is_rescued = self.steps[0], False
        shard.nodes.clear()
        self.queue(shard, first=True)

    def has_room(self, n_coming: int, nbytes: float) -> bool:
        """Return True if another table fits into `nbytes` besides those that are being made, taken to have the mean size."""
        mean = self.made / self.n_made if self.n_made else 0
        return not (self.held or n_coming) or self.held + (n_coming + 1) * mean <= nbytes

    def count(self, shard: Shard, text: str, trace: str, is_crash: bool) -> None:
        """Count a failure of a shard: let it wait for another attempt, or give up.

        After a crash, the step of a job runs in child processes, which find the rows at fault. On a cluster that is after
        the second crash, since the first may be due to its machine, and after the other shards. On one machine a shard
        begins again at once, and a crash in the search is its end.
        """
        shard.attempts += 1
        shard.crashes += is_crash
        is_searched = is_crash and shard.step in STEPS
        is_last = shard.is_rescued or not is_searched
        if (self.is_local and shard.is_rescued and is_crash) or (shard.attempts > self.retries and is_last):
            self.give_up(shard, text, trace)
            return
        shard.is_rescued = is_searched and (self.is_local or shard.crashes > min(1, self.retries))
        more = " stage by stage" if shard.is_rescued else ""
        logger.warning("step %s of shard %d is tried again%s: %s", shard.step, shard.plan.index, more, text)
        if self.is_local:
            shard.step = self.steps[0]
        self.queue(shard, first=self.is_local)

    def give_up(self, shard: Shard, text: str, trace: str) -> None:
        """Record a shard as failed."""
        self.failed.append(Failed(failed_shard(shard.plan, shard.step, text, trace, shard.attempts)))
        self.n_left -= 1
        self.release(shard)
