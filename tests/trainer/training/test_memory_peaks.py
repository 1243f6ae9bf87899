"""Estimates of memory beside measured peaks.

    python -m pytest tests/trainer/training/test_memory_peaks.py -m rest -rP

Measured is the largest proportional memory (PSS) of a run and its loader processes less that at the time of the estimate,
which is compared with the memory that is free then.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hypergrit_common.processes import stat_fields
from trainer.data.synthetic import write_synthetic_shard

ROOT = Path(__file__).parents[3]
# Drawn captions have up to 42 tokens, and the estimate is that of captions that fill the context.
COMMON = "steps=2 optim.warmup_steps=1 device=cpu log.tensorboard=false model.text.context_length=32"
SMALL = (
    'model.image.size_px=64 model.image.kwargs={"embed_dim":128,"depth":4,"num_heads":2,"patch_size":16} '
    "model.text.width=128 model.text.layers=4 model.text.heads=2 data.workers=1"
)
CASES = {
    "hycoclip": f"{SMALL} batch_size=512",
    "micro_batch": f"{SMALL} batch_size=512 micro_batch_size=128",
    "checkpoint": f"{SMALL} batch_size=512 checkpoint_activations=true",
    "vit_s": "batch_size=8 data.workers=2",
}
ESTIMATE = re.compile(r"the run needs about ([\d.]+)")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic_shard(tmp_path_factory.mktemp("shards"))


def memory_of(pid: int) -> int:
    """The proportional memory of a process and its children in bytes, without those that have ended."""
    found = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    total = 0
    for process in [pid, *(child for child in found if (fields := stat_fields(child)) and int(fields[1]) == pid)]:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


@pytest.mark.rest
@pytest.mark.parametrize("name", CASES)
def test_the_estimate_is_within_a_quarter_of_the_measured_peak(name: str, shards: Path, tmp_path: Path) -> None:
    log, start, peak = tmp_path / "log", 0, 0
    command = [
        sys.executable,
        "-m",
        "trainer.train",
        "model_name=hycoclip",
        *COMMON.split(),
        *CASES[name].split(),
        f"output={tmp_path}/run",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with log.open("w") as file, subprocess.Popen(
        [*command, f"shards={shards}"], cwd=ROOT, stderr=file, env=environment
    ) as process:  # fmt: skip
        while process.poll() is None:
            used = memory_of(process.pid)
            peak = max(peak, used)
            start = start or (used if ESTIMATE.search(log.read_text()) else 0)
            time.sleep(0.02)
    assert process.returncode == 0, log.read_text()
    found = ESTIMATE.search(log.read_text())
    assert found
    measured = (peak - start) / 1e9
    print(f"{name}: estimated {found[1]}, measured {measured:.2f} GB")
    assert float(found[1]) == pytest.approx(measured, rel=0.25)
