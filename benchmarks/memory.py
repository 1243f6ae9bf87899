"""Benchmark: the memory that the trainer estimates before its first step, beside the measured peak, on a CPU.

    python -m benchmarks.memory [--cases syntax_meru phyclip]

Each case is a training of three steps on drawn samples. Measured is the largest proportional memory (PSS) of the run and
its loader processes less that at the time of the estimate, which is compared with the memory that is free then.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from hypergrit_common.processes import stat_fields
from trainer.data.synthetic import write_synthetic_shard

OUT: Final = Path("out/memory")
# Drawn captions have up to 42 tokens, and the estimate is that of captions that fill the context.
COMMON: Final = (
    "steps=3 optim.warmup_steps=1 device=cpu check_memory=false log.tensorboard=false model.text.context_length=32"
)
VIT_S: Final = "batch_size=16 data.workers=2"
SMALL: Final = (
    'model.image.size_px=64 model.image.kwargs={"embed_dim":128,"depth":4,"num_heads":2,"patch_size":16} '
    "model.text.width=128 model.text.layers=4 model.text.heads=2 data.workers=1"
)
CASES: Final = {
    "hycoclip": f"model_name=hycoclip {VIT_S}",
    "micro_batch": f"model_name=hycoclip {VIT_S} micro_batch_size=4",
    "checkpoint": f"model_name=hycoclip {VIT_S} checkpoint_activations=true",
    "bf16": f"model_name=hycoclip {VIT_S} precision=bf16 data.workers=4",
    "frozen": f"model_name=clip {VIT_S} batch_size=24 model.image.frozen=true optim.ema=0.99",
    "syntax_meru": f"model_name=syntax_meru {SMALL} batch_size=768",
    "poinclip": f"model_name=poinclip {SMALL} batch_size=1024",
    "hycoclip_1024": f"model_name=hycoclip {SMALL} batch_size=1024",
    "phyclip": f"model_name=phyclip {SMALL} batch_size=512",
}
ESTIMATE: Final = re.compile(r"memory, estimated: ([\d.]+)")


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


def measure(name: str) -> dict[str, object]:
    """Train a case. Returns the estimate and the measured peak, in GB. Raises RuntimeError if the run fails."""
    output, log = OUT / name, OUT / f"{name}.log"
    shutil.rmtree(output, ignore_errors=True)
    settings = f"{COMMON} {CASES[name]}".split()
    command = [sys.executable, "-m", "trainer.train", *settings, f"shards={OUT / 'shards'}", f"output={output}"]
    start = peak = 0
    with log.open("w") as file, subprocess.Popen(command, stderr=file) as process:
        while process.poll() is None:
            used = memory_of(process.pid)
            peak = max(peak, used)
            start = start or (used if ESTIMATE.search(log.read_text()) else 0)
            time.sleep(0.02)
    found = ESTIMATE.search(log.read_text())
    if process.returncode or not found:
        raise RuntimeError(f"{name} failed: {log.read_text()[-1000:]}")
    estimated, measured = float(found[1]), (peak - start) / 1e9
    ratio = round(estimated / measured, 2)
    return {"case": name, "estimated_gb": estimated, "measured_gb": round(measured, 2), "ratio": ratio}


def main() -> None:
    """Run the command line. The last line that it prints is one JSON object with all results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    rows = []
    write_synthetic_shard(OUT / "shards")
    for name in parser.parse_args().cases:
        rows.append(measure(name))
        print(rows[-1], flush=True)
    print(json.dumps({"name": "memory", "cases": rows}))


if __name__ == "__main__":
    main()
