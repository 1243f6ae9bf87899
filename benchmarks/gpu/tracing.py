"""Measure where the time of a few calls goes: a trace of torch.profiler, and its kernels, gaps and waits.

`trace` works on a CPU too, where the innermost operations take the place of kernels.
"""

import gzip
import json
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.timing import synchronize

MAX_TRACE_BYTES: Final = 15 << 20
ON_GPU: Final = ("kernel", "gpu_memcpy", "gpu_memset")
WAITS: Final = re.compile(r"cu(da)?(Stream|Device|Event|Ctx)Synchronize|cu(da)?Memcpy(?!.*Async)")
"""Calls of CUDA with which the host waits for the device."""
KINDS: Final = {
    "attention": r"flash|fmha|attention|sdpa",
    "convolution": r"deform|conv|implicit_gemm|im2col|cudnn.*dgrad|cudnn.*wgrad",
    "compiled": r"^triton_",
    "matrix products": r"gemm|gemv|nvjet|cutlass|xmma|cublas|aten::(mm|bmm|addmm|baddbmm)$",
    "optimizer": r"multi_tensor|adam",
    "normalisation": r"layer_?norm|group_?norm|batch_?norm",
    "copies": r"memcpy|memset|copy",
    "reductions": r"reduce|aten::(sum|mean|amax|logsumexp)$",
    "elementwise": r"elementwise|aten::",
}
"""Kind of a kernel -> expression that its name contains; the first match decides."""


class Span(NamedTuple):
    """An event of a trace, in microseconds."""

    name: str
    start: float
    end: float
    thread: tuple[Any, Any]


def trace(
    call: Callable[[], object], calls: int, device: torch.device, path: Path, *, keep: bool = True, host: bool = True
) -> dict[str, Any]:
    """Record `calls` calls and return `figures` of the trace, which stays at `path` with `keep`, up to 15 MiB.

    `path` ends in .json.gz; chrome://tracing and ui.perfetto.dev show it. Without `host`, the operations of the host
    are not recorded on a GPU, which slows the host less.
    """
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CUDA] if on_gpu else []
    activities += [ProfilerActivity.CPU] if host or not on_gpu else []
    synchronize(device)
    with profile(activities=activities) as recorded:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize(device)
        seconds = time.perf_counter() - start
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        recorded.export_chrome_trace(file.name)  # which would compress each line alone
        data = Path(file.name).read_bytes()
    found = figures(json.loads(data)["traceEvents"], calls)
    found["busy_of_all"] = found.get("busy_share", 0.0) * found.get("ms", 0.0) * calls / 1e3 / seconds
    packed = gzip.compress(data, 5) if keep else b""
    if 0 < len(packed) <= MAX_TRACE_BYTES:
        path.write_bytes(packed)
    return found


def figures(events: Iterable[dict[str, Any]], calls: int, top: int = 12) -> dict[str, Any]:
    """Return the figures of the events of a trace, per call; `trace` adds `busy_of_all`, the share of all of its time.

    `busy_share` is the share of the time from the first kernel to the end of the last in which any kernel or copy runs.
    `gaps` are the longest pauses in between, with what the host did meanwhile. `waits` are the calls with which the host
    waits for the device, by the operation that makes them; the last one belongs to the measurement itself.
    """
    by_category: dict[str, list[Span]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and "ts" in event:
            start, thread = float(event["ts"]), (event.get("pid"), event.get("tid"))
            span = Span(event["name"], start, start + float(event.get("dur", 0)), thread)
            by_category[event.get("cat", "")].append(span)
    host = [*by_category["cpu_op"], *by_category["cuda_runtime"], *by_category["cuda_driver"]]
    kernels = [span for category in ON_GPU for span in by_category[category]] or innermost(by_category["cpu_op"])
    if not kernels:
        return {"kernels": 0}
    merged = union(kernels)
    window = merged[-1][1] - merged[0][0]
    pauses = [(end, start) for (_, end), (start, _) in pairwise(merged)]
    pauses.sort(key=lambda pause: pause[0] - pause[1])
    seconds: dict[str, float] = defaultdict(float)
    kinds: dict[str, float] = defaultdict(float)
    for span in kernels:
        seconds[span.name] += span.end - span.start
        kinds[kind_of(span.name)] += span.end - span.start
    waits = [span for span in host if WAITS.match(span.name)]
    total = sum(kinds.values())
    return {
        "ms": window / 1e3 / calls,
        "kernels": len(kernels) / calls,
        "busy_share": sum(end - start for start, end in merged) / window,
        "kinds": {kind: spent / total for kind, spent in largest(kinds)},
        "top": [{"name": name[:100], "ms": spent / 1e3 / calls} for name, spent in largest(seconds)[:top]],
        "gaps": [
            {"ms": (end - start) / 1e3, "host": doing(host, (start + end) / 2)} for start, end in pauses[:top] if end > start
        ],
        "gaps_over_20us": sum(end - start > 20 for start, end in pauses) / calls,
        "waits": len(waits) / calls,
        "wait_ms": sum(span.end - span.start for span in waits) / 1e3 / calls,
        "waits_by_operation": dict(Counter(caller(by_category["cpu_op"], span) for span in waits).most_common(top)),
    }  # fmt: skip


def largest(values: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the items, the largest value first."""
    return sorted(values.items(), key=lambda item: -item[1])


def kind_of(kernel: str) -> str:
    """Return the kind of a kernel, from its name.

    >>> kind_of("nvjet_hsh_128x256_64x4_2x1_v_bz_TNT"), kind_of("void pytorch_flash::flash_fwd_kernel<...>")
    ('matrix products', 'attention')
    """
    return next((kind for kind, words in KINDS.items() if re.search(words, kernel, re.IGNORECASE)), "other")


def union(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """Return the times in which any of the spans runs, as disjoint intervals in order."""
    merged: list[tuple[float, float]] = []
    for span in sorted(spans, key=lambda span: span.start):
        if merged and span.start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], span.end))
        else:
            merged.append((span.start, span.end))
    return merged


def innermost(spans: Sequence[Span]) -> list[Span]:
    """Return the times in which each span is the innermost one of its thread, as spans."""
    found: list[Span] = []
    by_thread: dict[Any, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        by_thread[span.thread].append(span)
    for members in by_thread.values():
        open_spans, now = list[Span](), members[0].start
        for following in [*members, None]:
            start = float("inf") if following is None else following.start
            while open_spans:
                last = open_spans[-1]
                if min(last.end, start) > now:
                    found.append(last._replace(start=now, end=min(last.end, start)))
                    now = found[-1].end
                if last.end > start:
                    break
                open_spans.pop()
            if following is not None:
                open_spans.append(following)
                now = following.start
    return found


def doing(spans: Sequence[Span], moment: float) -> str:
    """Return the names of the innermost spans of all threads at a moment, or "python"."""
    active = [span for span in spans if span.start <= moment < span.end]
    shortest = {span.thread: span for span in sorted(active, key=lambda span: span.start - span.end)}
    return ", ".join(sorted({span.name for span in shortest.values()}))[:200] or "python"


def caller(operations: Sequence[Span], inner: Span) -> str:
    """Return the name of the innermost operation around a span of the same thread."""
    around = [span for span in operations if span.thread == inner.thread and span.start <= inner.start < span.end]
    return min(around, key=lambda span: span.end - span.start).name if around else "python"
