"""The steps of a sequence: verbs with their options, disturbances, damages and the web; chosen by a seed, kept as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

CASES = Path(__file__).parents[1] / "cases"
VERBS = {
    "run": 8,
    "retry": 4,
    "rewrite": 6,
    "takedown": 6,
    "verify": 2,
    "requeue": 3,
    "explore": 3,
    "export": 2,
    "damage": 5,
    "web": 2,
}
"""Verb -> weight among the steps of a random sequence."""
DISTURBED = ("run", "retry", "rewrite", "takedown", "requeue", "explore", "export")
KINDS = ("kill", "kill_after", "full", "broken", "half", "stop")
"""What may happen at an I/O call of a verb; `stop`: the process stands still while another machine runs the next verb."""
MOST_CALLS = {
    "run": 1400,
    "retry": 1000,
    "rewrite": 1400,
    "takedown": 600,
    "requeue": 115,
    "explore": 210,
    "export": 250,
}
"""Number of I/O calls of a verb, roughly."""
MOST_REQUESTS = {
    "run": 230,
    "retry": 260,
    "rewrite": 270,
    "takedown": 320,
    "requeue": 95,
    "explore": 75,
    "export": 60,
}
"""Number of requests of a verb to a store, roughly."""
REWRITES: tuple[tuple[str, ...], ...] = (
    ("score.min_score=0.72",),
    ("score.min_score=0.8", "write.formats=[train,arrow]"),
    ("write.formats=[train,grit,arrow]", "write.image_bytes=true"),
    ("dedupe=[bytes]",),
    ("dedupe=[url,bytes,picture]", "dedupe_radius=0"),
    ("samples_per_shard=3", "seed=5"),
    ("samples_per_shard=2", "shuffle=false", "dedupe=[bytes]"),
    ("against={evaluation}",),
    ("incomplete=true", "score.min_score=0.72"),
    ("overwrite=true", "samples_per_shard=4"),
    ("overwrite=true",),
)
"""Options of rewrites. `{evaluation}` is a list with the hash of an image."""
EXPLORES = ("report", "row", "static")
FORMATS = ("coco", "odvg")
DAMAGES = ("flip", "truncate", "delete")
PLACES = ("train", "grit", "arrow", "_index", "_manifests", "_summaries", "_timings", "stats.json", "_dropped")


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step: `output` is a, the job's, or b, which rewrites of a make."""

    verb: str
    output: str = "a"
    options: tuple[str, ...] = ()
    kind: str = ""  # of the disturbance
    at: int = 0  # number of the I/O call that is disturbed
    machine: int = 0  # on which the verb runs
    seed: int = 0  # of choices that depend on the output, such as the place of a damage


def make_steps(seed: int, calls: Mapping[str, int] = MOST_CALLS) -> list[Step]:
    """The steps of a random sequence."""
    rng = Random(f"sequence {seed}")
    steps = [random_step(rng, "run", "a", calls)]
    for verb in rng.choices(list(VERBS), list(VERBS.values()), k=rng.randint(4, 9)):
        steps.append(random_step(rng, verb, "b" if verb == "rewrite" else rng.choice("aaab"), calls))
    return steps


def random_step(rng: Random, verb: str, output: str, calls: Mapping[str, int]) -> Step:
    """A step of a verb with random options, often disturbed."""
    options: tuple[str, ...] = ()
    match verb:
        case "run" | "retry":
            output = "a"
            options = rng.choice([(), (), (), ("dry_run=true",)]) if verb == "run" else ()
        case "rewrite":
            options = rng.choice(REWRITES)
        case "takedown":
            options = (rng.choice(["url", "url", "sha256", "host"]), *rng.choice([(), (), (), ("dry_run=true",)]))
        case "explore":
            options = (rng.choice(EXPLORES),)
        case "export":
            options = (rng.choice(FORMATS),)
        case "damage":
            options = (rng.choice(DAMAGES), rng.choice(PLACES))
        case "web":
            options = (rng.choice(["up", "up", "down"]),)
    kind, at = "", 0
    if verb in DISTURBED and rng.random() < 0.55:
        kind = rng.choice(KINDS)
        at = rng.randrange(calls[verb])
    return Step(
        verb=verb, output=output, options=options, kind=kind, at=at, machine=rng.randrange(2), seed=rng.randrange(10**6)
    )


def to_json(steps: Sequence[Step]) -> str:
    """The steps as JSON, one per line."""
    lines = (json.dumps({name: value for name, value in asdict(step).items() if value}) for step in steps)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def from_json(text: str) -> list[Step]:
    """The steps that `to_json` describes."""
    values: list[dict[str, Any]] = json.loads(text)
    return [Step(**{**value, "options": tuple(value.get("options", ()))}) for value in values]
