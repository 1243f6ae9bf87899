"""Results of the evaluations by variant and seed, and the verdicts on the claims."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from common.errors import UserError
from common.json_file import read_object
from demo.paper.claims import CHANCE, Claim
from demo.paper.plan import TASKS, result_folder
from demo.paper.statistics import Interval, above, difference
from demo.paper.variants import Variant
from trainer.evaluation.items import Items, read_items

Verdict = Literal["shown", "not shown", "contradicted", "not measured"]
VERDICTS: Final[tuple[Verdict, ...]] = ("shown", "not shown", "contradicted", "not measured")


@dataclass(frozen=True, kw_only=True)
class Row:
    """The results of a variant: for each seed the content of TASK.json by task, and the items by TASK:METRIC."""

    variant: Variant
    contents: Sequence[Mapping[str, Mapping[str, Any]]]
    items: Sequence[Mapping[str, Items]]

    def metric(self, name: str) -> list[float]:
        """The values of a metric TASK:METRIC, one per seed; empty if the model has no such metric."""
        task, _, metric = name.partition(":")
        values = [content[task].get("metrics", {}).get(metric) for content in self.contents]
        return [] if None in values else values

    def items_of(self, name: str) -> list[Items]:
        """The items of a metric, one per seed; empty if there are none."""
        return [found[name] for found in self.items if name in found]


def read_row(folder: Path, variant: Variant, n_seeds: int) -> Row:
    """Read the results of a variant. Raises UserError, naming the file, for one that is missing or damaged."""
    contents: list[dict[str, dict[str, Any]]] = []
    items: list[dict[str, Items]] = []
    for seed in range(n_seeds):
        results = result_folder(folder, variant, seed)
        try:
            contents.append({task: read_object(results / f"{task}.json") for task in TASKS})
        except (OSError, ValueError) as error:
            raise UserError(f"{results}: {error}; delete the folder and run again") from error
        files = [(task, results / f"{task}.npz") for task in TASKS]
        items.append(
            {
                f"{task}:{name}": found
                for task, path in files
                if path.is_file()
                for name, found in read_items(path).items()
            }
        )
    return Row(variant=variant, contents=contents, items=items)


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict on a claim, with the measured difference of its rows and the interval; None if not measured."""

    claim: Claim
    verdict: Verdict
    interval: Interval | None


def judge(claim: Claim, rows: Mapping[str, Row], n_replicates: int) -> Judgement:
    """Compare the rows of a claim. A claim is shown or contradicted if the interval lies on one side of 0."""
    first, second = (
        rows[key].items_of(claim.metric) if key in rows else [] for key in (claim.first, claim.second or "")
    )
    if not first or (claim.second and not second):
        return Judgement(claim=claim, verdict="not measured", interval=None)
    found = difference(first, second, n_replicates) if claim.second else above(first, CHANCE, n_replicates)
    sign = 1 if claim.direction == "above" else -1
    verdicts: dict[int, Verdict] = {1: "shown", 0: "not shown", -1: "contradicted"}
    return Judgement(claim=claim, verdict=verdicts[sign * found.side], interval=found)
