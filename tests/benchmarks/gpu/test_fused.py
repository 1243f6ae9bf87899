"""The Triton kernels: their tests in the interpreter or on a GPU, and their compilation for GPUs."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is installed with torch on Linux only")

ROOT = Path(__file__).resolve().parents[3]
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")


@pytest.mark.rest
@pytest.mark.parametrize("device", ["interpreter", pytest.param("gpu", marks=[pytest.mark.gpu, NO_GPU])])
def test_kernels_match_the_plain_formula_and_the_chunked_loss(device: str) -> None:
    """Runs the tests of fused_checks.py in a separate process."""
    environment = {**os.environ, "TRITON_INTERPRET": str(int(device == "interpreter"))}
    command = [sys.executable, "-m", "pytest", "tests/benchmarks/gpu/fused_checks.py", "-p", "no:cacheprovider"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert " passed" in result.stdout


@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile_for_a_gpu(capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compile to machine code, which needs no GPU. The compiler rejects some code that the interpreter accepts."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from benchmarks.gpu.fused_kernels import gradient_kernel, softmax_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    constants: dict[str, Any] = {"METRIC": "l1", "ROWS": 64, "COLUMNS": 64, "DEPTH": 16, "SINGLE_FACTOR": False}
    types = dict.fromkeys(["n_rows", "n_columns", "width", "n_factors", "tiles_per_split"], "i32") | {"eps": "fp32"}
    types |= dict.fromkeys(["x", "y"], "*fp64") | dict.fromkeys(["targets", "row_targets", "column_targets"], "*i64")
    types |= dict.fromkeys(constants, "constexpr")
    for kernel in (softmax_kernel, gradient_kernel):
        signature = {name: types.get(name, "*fp32") for name in kernel.arg_names}
        source = ASTSource(kernel, signature, {name: constants[name] for name in signature if name in constants})
        compiled = triton.compile(source, GPUTarget("cuda", capability, 32), {"num_warps": 8, "num_stages": 2})
        assert compiled.asm["cubin"]
        assert compiled.metadata.shared <= 96 * 1024  # the limit per block of all GPUs since Ampere
        # No atomic orders other memory operations, which would empty the pipeline for each tile and factor.
        assert "acq_rel" not in compiled.asm["ptx"]
        assert kernel is softmax_kernel or "relaxed" in compiled.asm["ptx"]
