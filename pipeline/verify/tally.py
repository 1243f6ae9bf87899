"""Count the rows of arrow/ as the manifest does, and compare the counts."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pipeline.write.counts import check_row, count_removed
from pipeline.write.samples import Row, kept_boxes
from schemas.manifest import Manifest
from schemas.status import KEPT


class Tally:
    """Running counts over the rows passed to `add`."""

    def __init__(self) -> None:
        self.dropped: dict[str, Counter[str]] = {}
        self.removed: dict[str, Counter[str]] = {"phrases": Counter(), "boxes": Counter()}
        self.totals: Counter[str] = Counter()
        self.keys: set[str] = set()

    def add(self, row: Row) -> None:
        """Count a row. Raises ValueError if it is neither kept with boxes nor dropped for a reason, or its key repeats."""
        if row["key"] in self.keys:
            raise ValueError("its key occurs twice")
        self.keys.add(row["key"])
        check_row({**row, "image": row["image"] or b"elsewhere"})  # the image may be in grit/ alone
        self.totals["read"] += 1
        self.totals["asked"] += sum(chunk["removed"] is None for chunk in row["noun_chunks"] or ())
        removed = count_removed([row])
        self.removed["phrases"].update(removed["phrases"])
        self.removed["boxes"].update(removed["boxes"])
        if row["status"] != KEPT:
            self.dropped.setdefault(row["stage"], Counter())[row["reason"]] += 1
            return
        boxes = kept_boxes(row)
        if not boxes:
            raise ValueError("it is kept without a box")
        self.totals["kept"] += 1
        self.totals["boxes"] += len(boxes)
        self.totals["phrases"] += len({row["boxes"][i]["phrase"] for i in boxes})

    def problems(self, manifest: Manifest) -> Iterator[str]:
        """Describe the counts of the manifest that differ."""
        counts: dict[str, Any] = {**manifest, **manifest["counts"]}
        for name in ("read", "kept", "boxes", "phrases", "asked"):
            if name in counts and counts[name] != self.totals[name]:
                yield f"{self.totals[name]} {name} in its rows, but {counts[name]} in the manifest"
        dropped = {stage: dict(reasons) for stage, reasons in self.dropped.items()}
        recorded = {stage: {r: n for r, n in reasons.items() if n} for stage, reasons in counts["dropped"].items()}
        if dropped != {stage: reasons for stage, reasons in recorded.items() if reasons}:
            yield f"rows dropped: {dropped} in its rows, but {recorded} in the manifest"
        removed = {kind: dict(values) for kind, values in self.removed.items()}
        if "removed" in counts and removed != counts["removed"]:
            yield f"removed: {removed} in its rows, but {counts['removed']} in the manifest"
