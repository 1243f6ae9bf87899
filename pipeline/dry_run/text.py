"""The predictions of a dry run as lines of text."""

from collections.abc import Iterator

from pipeline.capacity import DOWNLOAD_CPU
from pipeline.dry_run.estimate import Estimate, Job, Prediction
from schemas.files import FILES

BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
METHOD = (
    "Brackets hold 95 % of a bootstrap over the rows of the sample, for times also over its shards; for rows kept, "
    "Wilson's interval. The prediction holds if the rest of the input, the network and the cluster are like the sample."
)


def prediction_lines(found: Prediction, job: Job, n_planned: int, store_requests: float) -> Iterator[str]:
    """Yield the lines of a prediction; `n_planned` counts all shards of the job, `store_requests` those to stores."""
    done = n_planned - job.n_shards
    finished = f"; {done:,} of {n_planned:,} are finished already, and not counted" if done else ""
    yield f"sample: {found.n_sampled:,} of {job.n_rows:,} rows in {job.n_shards:,} shards (seed {job.seed}){finished}"
    yield ""
    yield line("rows kept", found.kept, "{:,.0f}")
    n_dropped = sum(found.drops.values())
    yield f"dropped in the sample: {n_dropped:,} of {found.n_sampled:,} rows"
    for (stage, reason), n in found.drops.items():
        yield f"  {stage + ': ' + reason:32}{n:>8,}  {n / found.n_sampled:6.1%}"
    yield ""
    for name, files in FILES.items():
        parts = [found.n_bytes[str(kind)] for kind in files if str(kind) in found.n_bytes]
        if parts:
            yield line(f"bytes of {name}/", added(parts), bytes_format=True)
    rest = [estimate for kind, estimate in found.n_bytes.items() if kind.startswith("_")]
    yield line("bytes of index and manifests", added(rest), bytes_format=True)
    yield ""
    yield line("hours", found.hours, "{:,.3g}")
    yield f"  on {job.capacity.description}, without the start of its workers"
    unit = "GPU hours (ground, score)" if job.capacity.gpus_per_model else "model hours (ground, score)"
    yield line(unit, found.model_hours * (job.capacity.gpus_per_model or 1.0), "{:,.3g}")
    stages = [(stage, seconds) for stage, seconds in found.stage_seconds.items() if seconds and stage != DOWNLOAD_CPU]
    total = sum(seconds for _, seconds in stages)
    yield "  time by stage: " + ", ".join(f"{stage} {seconds / total:.0%}" for stage, seconds in stages)
    yield line("requests to hosts", found.requests, "{:,.0f}")
    yield f"{'requests to object stores':32}{store_requests:>14,.0f}  (counted for a shard without rows, and by file sizes)"
    yield ""
    yield METHOD


def line(name: str, estimate: Estimate, number: str = "", bytes_format: bool = False) -> str:
    """Return a line with an estimate and its interval."""
    show = human_bytes if bytes_format else number.format
    return f"{name:32}{show(estimate.value):>14}  [{show(estimate.low)}, {show(estimate.high)}]"


def added(parts: list[Estimate]) -> Estimate:
    """Add estimates that depend on the same rows: the sums of their bounds are bounds."""
    return Estimate(*(sum(bounds) for bounds in zip(*parts, strict=True))) if parts else Estimate(0.0, 0.0, 0.0)


def human_bytes(n: float) -> str:
    """Format a number of bytes: `1.25 GB`."""
    size, unit = next(((size, unit) for size, unit in BYTE_UNITS if n >= size), (1, "B"))
    return f"{n / size:,.3g} {unit}"
