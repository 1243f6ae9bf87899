"""Plan of a job on COYO-700M: hours, cores, bytes, requests and cost for clusters with 8, 64 and 256 GPUs.

    python -m benchmarks.scale_plan                                          # the tables of docs/scale.md
    python -m benchmarks.scale_plan gpu_images_per_s=30 gpu_hour_usd=1.8     # with other figures

Every input is a `Figure` that tells if it was measured, simulated, published, assumed or chosen. The rest is sums.
The last line is JSON.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from common.errors import UserError

GPUS: Final = (8, 64, 256)
GPU_RATES: Final = (25, 50, 100, 200)
GPUS_PER_NODE: Final = 8
KINDS: Final = ("assumed", "simulated", "published", "measured", "chosen")
"""Kinds of figures, the least certain first."""


class Figure(NamedTuple):
    """An input of the plan."""

    value: float
    unit: str
    kind: Literal["assumed", "simulated", "published", "measured", "chosen"]
    source: str


FIGURES: Final[Mapping[str, Figure]] = {
    "rows": Figure(747e6, "rows", "published", "COYO-700M's card"),
    "available": Figure(0.55, "of the rows", "published", "users of img2dataset on GRIT: 50 to 60 %"),
    "with_phrase": Figure(0.9, "of the images", "assumed", "captions with at least one noun chunk that is kept"),
    "kept": Figure(0.25, "of the grounded images", "assumed", "GRIT kept 91 M pairs of COYO and LAION (Kosmos-2)"),
    "rows_per_shard": Figure(5000, "rows", "chosen", "`jobs/pipeline/coyo.yaml`"),
    "image_kb": Figure(175, "kB", "assumed", "an image as downloaded; the mean of those of `benchmarks.resolution`"),
    "stored_kb": Figure(101, "kB", "measured", "`benchmarks.resolution`, 512 px, drawn images"),
    "row_kb": Figure(2, "kB", "assumed", "ledger in `arrow/`, JSON and parquet, for each row"),
    "download_rows_per_s": Figure(94, "rows/s of a worker", "measured", "`benchmarks.bad_hosts`, 64 connections"),
    "tls_ms": Figure(0.9, "ms of CPU", "measured", "a new https connection over a new http one, aiohttp alone"),
    "resize_ms": Figure(4.45, "ms of CPU", "measured", "`benchmarks.resolution`, 512 px: decode, resize, encode"),
    "parse_per_s": Figure(404, "captions/s", "measured", "`benchmarks.parse`, web-like captions"),
    "write_per_s": Figure(18851, "samples/s", "measured", "`benchmarks.write` with SHA-256"),
    "gpu_images_per_s": Figure(50, "images/s of a GPU", "assumed", "GLIP-L at 800 px and CLIP on a recent GPU"),
    "gpu_busy": Figure(0.95, "of the time", "simulated", "`benchmarks.busy_cluster`: 98.5 % busy, batches 97 % full"),
    "cores_per_gpu": Figure(12, "cores", "assumed", "CPUs of a GPU node, included in its price"),
    "plan_rows_per_s": Figure(24e6, "rows per CPU second", "measured", "`benchmarks.plan`, parquet"),
    "list_ms": Figure(0.48, "ms of CPU", "measured", "a finished shard on S3, `benchmarks.listing`"),
    "driver_ms": Figure(0.45, "ms of CPU", "measured", "a shard in the driver, `benchmarks.busy_cluster`"),
    "permits_per_s": Figure(1e5, "requests/s", "measured", "the server of permits per host; a row needs two"),
    "reader_rows_per_s": Figure(92e3, "rows/s", "measured", "`benchmarks.row_groups`: the reader of parquet files"),
    "requests_per_shard": Figure(31, "requests", "measured", "counted by the dry run with a store in memory"),
    "weights_gb": Figure(6.9, "GB", "published", "glip_large_model.pth"),
    "gpu_hour_usd": Figure(2.5, "USD", "assumed", "a GPU with its cores"),
    "million_requests_usd": Figure(5, "USD", "assumed", "PUT requests of an object store"),
    "tb_month_usd": Figure(23, "USD", "assumed", "storage"),
}


class Plan(NamedTuple):
    """The plan for one cluster. Rates hold while the models compute."""

    gpus: int
    hours: float
    limit: str
    rows_per_s: float
    cores: float
    gbit_per_s: float
    shards_per_s: float
    requests_per_s: float
    gpu_usd: float


class Totals(NamedTuple):
    """Totals that do not depend on the cluster."""

    shards: float
    downloaded_tb: float
    grounded: float
    kept: float
    stored_tb: float
    requests: float
    core_hours: float
    requests_usd: float
    month_usd: float


def core_seconds_per_row(f: Mapping[str, float]) -> float:
    """Return the seconds for which a row occupies a CPU worker, which has one core and downloads, then parses."""
    cpu_s = (f["tls_ms"] + f["resize_ms"] * f["available"]) / 1e3
    later_s = f["available"] * (1 / f["parse_per_s"] + f["with_phrase"] * f["kept"] / f["write_per_s"])
    return max(1 / f["download_rows_per_s"], cpu_s) + later_s


def plan(f: Mapping[str, float], gpus: int) -> Plan:
    """Plan the job for a cluster of GPU nodes: the slowest of models, CPU workers, permits, reader and driver sets the rate."""
    grounded_share = f["available"] * f["with_phrase"]
    limits = {
        "models": gpus * f["gpu_images_per_s"] * f["gpu_busy"] / grounded_share,
        "CPU workers": gpus * f["cores_per_gpu"] / core_seconds_per_row(f),
        "permits": f["permits_per_s"] / 2,
        "reader": f["reader_rows_per_s"],
        "driver": f["rows_per_shard"] * 1e3 / f["driver_ms"],
    }
    limit = min(limits, key=limits.__getitem__)
    rate = limits[limit]
    hours = f["rows"] / rate / 3600
    shards_per_s = rate / f["rows_per_shard"]
    return Plan(
        gpus=gpus,
        hours=hours,
        limit=limit,
        rows_per_s=rate,
        cores=rate * core_seconds_per_row(f),
        gbit_per_s=rate * f["available"] * f["image_kb"] * 8e-6,
        shards_per_s=shards_per_s,
        requests_per_s=shards_per_s * f["requests_per_shard"],
        gpu_usd=hours * gpus * f["gpu_hour_usd"],
    )


def totals(f: Mapping[str, float]) -> Totals:
    """Return the sums over all rows."""
    shards, images = f["rows"] / f["rows_per_shard"], f["rows"] * f["available"]
    grounded = images * f["with_phrase"]
    kept, requests = grounded * f["kept"], shards * f["requests_per_shard"]
    stored_tb = (kept * f["stored_kb"] + f["rows"] * f["row_kb"]) / 1e9
    return Totals(
        shards=shards,
        downloaded_tb=images * f["image_kb"] / 1e9,
        grounded=grounded,
        kept=kept,
        stored_tb=stored_tb,
        requests=requests,
        core_hours=f["rows"] * core_seconds_per_row(f) / 3600,
        requests_usd=requests / 1e6 * f["million_requests_usd"],
        month_usd=stored_tb * f["tb_month_usd"],
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figures_table(f: Mapping[str, float]) -> str:
    """List the inputs with their kind and source."""
    entries = ((key, FIGURES[key]) for key in f)
    return table(
        ("key", "value", "", "source"),
        ((f"`{key}`", f"{f[key]:,.10g} {figure.unit}", figure.kind, figure.source) for key, figure in entries),
    )


def clusters_table(f: Mapping[str, float]) -> str:
    """Plan each cluster."""
    plans = [plan(f, gpus) for gpus in GPUS]
    head = ("GPUs", *(str(p.gpus) for p in plans))
    return table(
        head,
        (
            (f"nodes of {GPUS_PER_NODE} GPUs", *(f"{p.gpus / GPUS_PER_NODE:,.0f}" for p in plans)),
            ("weights, fetched once per node", *(f"{p.gpus / GPUS_PER_NODE * f['weights_gb']:,.0f} GB" for p in plans)),
            ("hours (days)", *(f"{p.hours:,.1f} ({p.hours / 24:,.1f})" for p in plans)),
            ("limited by", *(p.limit for p in plans)),
            ("rows/s", *(f"{p.rows_per_s:,.0f}" for p in plans)),
            ("cores that download and parse, of those at the GPUs", *(
                f"{p.cores:,.0f} of {p.gpus * f['cores_per_gpu']:,.0f}" for p in plans
            )),
            ("network, images only", *(f"{p.gbit_per_s:,.1f} Gbit/s" for p in plans)),
            ("shards/s", *(f"{p.shards_per_s:,.2f}" for p in plans)),
            ("requests/s to the output", *(f"{p.requests_per_s:,.0f}" for p in plans)),
            ("share of the driver's time", *(f"{p.shards_per_s * f['driver_ms'] / 10:,.2f} %" for p in plans)),
            ("share of the permit server's time", *(
                f"{200 * p.rows_per_s / f['permits_per_s']:,.0f} %" for p in plans
            )),
            ("share of the time of the reader of rows", *(
                f"{100 * p.rows_per_s / f['reader_rows_per_s']:,.0f} %" for p in plans
            )),
            ("cost of the nodes", *(f"{p.gpu_usd:,.0f} USD" for p in plans)),
        ),
    )  # fmt: skip


def rates_table(f: Mapping[str, float]) -> str:
    """Plan each cluster for other rates of a GPU."""
    rows = []
    for rate in GPU_RATES:
        plans = [plan({**f, "gpu_images_per_s": rate}, gpus) for gpus in GPUS]
        rows.append([f"{rate} images/s", *(f"{p.hours:,.1f} h, {p.limit}, {p.gpu_usd:,.0f} USD" for p in plans)])
    return table(("one GPU", *(f"{gpus} GPUs" for gpus in GPUS)), rows)


def totals_table(f: Mapping[str, float]) -> str:
    """List the sums over all rows, and the least certain kind of figure in each."""
    t = totals(f)
    images = ("rows", "available")
    kept = (*images, "with_phrase", "kept")
    work = (*images, "download_rows_per_s", "tls_ms", "resize_ms", "parse_per_s", "write_per_s")
    rows: Sequence[tuple[str, str, Sequence[str]]] = (
        ("shards", f"{t.shards:,.0f}", ("rows", "rows_per_shard")),
        ("bytes downloaded", f"{t.downloaded_tb:,.0f} TB", (*images, "image_kb")),
        ("images through the models", f"{t.grounded / 1e6:,.0f} M", (*images, "with_phrase")),
        ("pairs kept", f"{t.kept / 1e6:,.0f} M", kept),
        ("bytes stored", f"{t.stored_tb:,.1f} TB, {t.month_usd:,.0f} USD a month", (*kept, "stored_kb", "row_kb")),
        (
            "requests to the output",
            f"{t.requests / 1e6:,.1f} M, {t.requests_usd:,.0f} USD",
            ("rows", "requests_per_shard", "million_requests_usd"),
        ),
        ("hours of a core, to download and parse", f"{t.core_hours:,.0f}", work),
        ("planning (CPU time)", f"{f['rows'] / f['plan_rows_per_s']:,.0f} s", ("rows", "plan_rows_per_s")),
        (
            "finding the finished shards at a restart (CPU time)",
            f"{t.shards * f['list_ms'] / 1e3:,.0f} s",
            ("list_ms",),
        ),
    )
    return table(
        ("all rows", "", "rests on figures that are"), ((name, value, weakest(keys)) for name, value, keys in rows)
    )


def weakest(keys: Iterable[str]) -> str:
    """Return the least certain kind of these figures."""
    return min((FIGURES[key].kind for key in keys), key=KINDS.index)


def sections(f: Mapping[str, float]) -> list[str]:
    """Return the tables of docs/scale.md."""
    return [clusters_table(f), rates_table(f), totals_table(f), figures_table(f)]


def read_figures(arguments: Iterable[str]) -> dict[str, float]:
    """Return the inputs, changed by `key=value` arguments. Raises UserError for an unknown key or a value below 0."""
    values = {key: figure.value for key, figure in FIGURES.items()}
    for argument in arguments:
        key, _, text = argument.partition("=")
        try:
            if key not in values or not float(text) > 0:
                raise ValueError
            values[key] = float(text)
        except ValueError:
            raise UserError(f"{argument}: give KEY=NUMBER above 0, with one of the keys {', '.join(values)}") from None
    return values


def main(arguments: Sequence[str]) -> None:
    """Print the tables, and a line of JSON."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return
    try:
        figures = read_figures(arguments)
    except UserError as error:
        sys.exit(f"error: {error}")
    print(*sections(figures), sep="\n\n")
    result = {
        str(gpus): {"hours": round(plan(figures, gpus).hours, 1), "limit": plan(figures, gpus).limit} for gpus in GPUS
    }
    print(json.dumps({"name": "scale_plan", **result}))


if __name__ == "__main__":
    main(sys.argv[1:])
