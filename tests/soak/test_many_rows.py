"""A job of 200,000 rows in 1,000 shards, and the verbs on its output, each within a limit of memory."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.stages.download.server import jpeg

ROOT = Path(__file__).parents[2]
N_SHARDS, ROWS_PER_SHARD, EVERY = 1000, 200, 50
"""Every 50th row has an image; the others have neither an image nor a URL."""
LIMIT = 1_500_000_000
"""Bytes that the largest process may have in memory. It may reserve twice as many: stacks of threads count in full."""
LOCAL = ("ray.runner=local", "ray.cpu_workers=1", "quiet=true")
WITHOUT_MODELS = ("grounder=none", "parse.model=none", "scorer=none")
CODE = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, ({2 * LIMIT}, {2 * LIMIT}))
from hypergrit.__main__ import main
code = main(sys.argv[1:])
peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print("peak", max(peaks) * 1024, file=sys.stderr)
sys.exit(code)
"""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]


def run(*arguments: str) -> str:
    """Run a verb within the limit; return what it prints."""
    command = [sys.executable, "-W", "ignore", "-c", CODE, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert int(done.stderr.rpartition("peak ")[2].split()[0]) < LIMIT
    return done.stdout


def write_input(path: Path, n_shards: int) -> None:
    """Write the rows as parquet with images."""
    n_rows = n_shards * ROWS_PER_SHARD
    images = [jpeg(i % 97, 96, 128) if i % EVERY == 0 else None for i in range(n_rows)]
    captions = [f"a cat and dog {i}" for i in range(n_rows)]
    columns = {"image": pa.array(images, pa.binary()), "caption": captions}
    pq.write_table(pa.table(columns), path, row_group_size=10_000)


def check_verbs(folder: Path, n_shards: int) -> None:
    """Run the job and all verbs on its output."""
    write_input(folder / "pairs.parquet", n_shards)
    n_rows, output = n_shards * ROWS_PER_SHARD, str(folder / "out")
    job = ["run", f"input={folder / 'pairs.parquet'}", f"output={output}", f"rows_per_shard={ROWS_PER_SHARD}"]
    run(*job, *WITHOUT_MODELS, *LOCAL)
    stats = json.loads((folder / "out" / "stats.json").read_text())
    assert (stats["rows"]["read"], stats["rows"]["kept"]) == (n_rows, n_rows // EVERY)
    assert len(list((folder / "out" / "_manifests").glob("*.json"))) == n_shards
    assert "everything is intact" in run("verify", output, "processes=1")
    run("rewrite", f"source={output}", f"output={folder / 'new'}", "samples_per_shard=1000", "dedupe=[bytes]", *LOCAL)
    assert "everything is intact" in run("verify", str(folder / "new"), "processes=1")
    arrow = pa.ipc.open_file(folder / "out" / "arrow" / "00000.arrow").read_all()
    digest = next(value for value in arrow["sha256"].to_pylist() if value)
    (folder / "list.txt").write_text(f"{digest}\n")
    assert "taken down" in run("takedown", output, f"list={folder / 'list.txt'}", *LOCAL)
    run("explore", output, "report=true")
    assert json.loads((folder / "out" / "stats.json").read_text())["rows"]["kept"] < n_rows // EVERY
    run(*job, *WITHOUT_MODELS, *LOCAL)


def test_200_000_rows_in_1_000_shards(tmp_path: Path) -> None:
    check_verbs(tmp_path, N_SHARDS)
