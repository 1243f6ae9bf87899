"""Kernels, gaps and waits of a trace. The events have the form of those of torch.profiler on a GPU."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.tracing import figures, kind_of, trace


def event(name: str, category: str, start: float, duration: float, thread: int = 1) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "ts": start, "dur": duration, "pid": 0, "tid": thread}


def gpu_events() -> list[dict[str, Any]]:
    """Two products that overlap with a copy, a pause of 40 us in which the host reads a value, and another kernel."""
    return [
        event("nvjet_tst_128x128", "kernel", 100, 30, 7),
        event("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 110, 5, 8),
        event("nvjet_tst_128x128", "kernel", 130, 20, 7),
        event("triton_poi_fused_add_0", "kernel", 190, 10, 7),
        event("aten::mm", "cpu_op", 10, 50),
        event("aten::item", "cpu_op", 80, 90),
        event("aten::_local_scalar_dense", "cpu_op", 82, 80),
        event("cudaStreamSynchronize", "cuda_runtime", 85, 75),
        event("cudaMemcpyAsync", "cuda_runtime", 84, 1),
        event("cudaLaunchKernel", "cuda_runtime", 20, 2),
        {"ph": "i", "name": "a mark", "ts": 3},
    ]


def test_busy_share_gaps_and_waits_of_a_gpu() -> None:
    found = figures(gpu_events(), calls=2)
    assert found["ms"] == pytest.approx(0.05)  # from 100 to 200 us, two calls
    assert found["kernels"] == 2
    assert found["busy_share"] == pytest.approx(0.6)
    assert found["gaps"] == [{"ms": 0.04, "host": "python"}]  # no operation of the host at 170 us
    assert found["gaps_over_20us"] == 0.5
    assert found["waits"] == 0.5
    assert found["wait_ms"] == pytest.approx(0.0375)
    assert found["waits_by_operation"] == {"aten::_local_scalar_dense": 1}
    assert found["kinds"] == pytest.approx({"matrix products": 50 / 65, "compiled": 10 / 65, "copies": 5 / 65})


def test_a_gap_names_the_innermost_operation_of_each_thread_of_the_host() -> None:
    events = [*gpu_events(), event("aten::index", "cpu_op", 160, 30, 2), event("aten::sort", "cpu_op", 165, 20, 2)]
    assert figures(events, 1)["gaps"][0]["host"] == "aten::sort"


def test_a_trace_without_events_has_no_kernels() -> None:
    assert figures([], 1) == {"kernels": 0}


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90>>", "attention"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matrix products"),
        ("triton_red_fused_native_layer_norm_3", "compiled"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("void at::native::vectorized_elementwise_kernel<4, log1p>", "elementwise"),
        ("void vision::ops::deformable_im2col_kernel<float>", "convolution"),
        ("unheard_of", "other"),
    ],
)
def test_kinds_of_kernels(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind


def test_the_time_of_an_operation_is_without_that_of_the_operations_inside_it() -> None:
    events = [event("a", "cpu_op", 0, 10), event("b", "cpu_op", 2, 3), event("c", "cpu_op", 20, 5)]
    found = figures([*events, event("d", "cpu_op", 4, 20, 2)], 1)
    assert {item["name"]: item["ms"] for item in found["top"]} == pytest.approx(
        {"a": 0.007, "b": 0.003, "c": 0.005, "d": 0.02}
    )


def test_a_cpu_has_its_innermost_operations_as_kernels(tmp_path: Path) -> None:
    x = torch.rand(256, 256)
    path = tmp_path / "trace.json.gz"
    found = trace(lambda: x @ x, 3, torch.device("cpu"), path)
    assert found["kernels"] >= 1
    assert found["top"][0]["name"] == "aten::mm"
    assert 0 < found["busy_of_all"] <= found["busy_share"] <= 1
    assert path.stat().st_size > 100
