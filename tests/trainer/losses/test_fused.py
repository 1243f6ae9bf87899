import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton comes with torch for Linux alone")

ROOT = Path(__file__).resolve().parents[3]
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch.cuda finds no GPU here")


@pytest.mark.parametrize("device", ["interpreter", pytest.param("gpu", marks=[pytest.mark.gpu, NO_GPU])])
def test_the_kernels_agree_with_the_plain_formula_and_with_the_chunked_function(device: str) -> None:
    """All of fused_checks.py."""
    environment = {**os.environ, "TRITON_INTERPRET": str(int(device == "interpreter"))}
    command = [sys.executable, "-m", "pytest", "tests/trainer/losses/fused_checks.py", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("capability", [80, 90])
def test_a_gpus_compiler_takes_the_kernels(capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a GPU, as far as machine code: what the interpreter lets pass and the compiler does not."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from trainer.losses.fused_kernels import gradient_kernel, softmax_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    constants: dict[str, Any] = {"METRIC": "l1", "ROWS": 64, "COLUMNS": 64, "DEPTH": 16, "ONE": False}
    kinds = dict.fromkeys(["n_rows", "n_columns", "width", "n_factors", "tiles"], "i32") | {"eps": "fp32"}
    kinds |= dict.fromkeys(["x", "y"], "*fp64") | dict.fromkeys(["targets", "row_targets", "column_targets"], "*i64")
    kinds |= dict.fromkeys(constants, "constexpr")
    for kernel in (softmax_kernel, gradient_kernel):
        signature = {name: kinds.get(name, "*fp32") for name in kernel.arg_names}
        source = ASTSource(kernel, signature, {name: constants[name] for name in signature if name in constants})
        compiled = triton.compile(source, GPUTarget("cuda", capability, 32), {"num_warps": 8, "num_stages": 2})
        assert compiled.asm["cubin"]
        assert compiled.metadata.shared <= 96 * 1024  # what a block may have on every GPU since Ampere
