"""Pack what the scripts need on a machine without the internet: wheels, and training shards.

    python -m benchmarks.gpu.pack [--samples 256] [--out out/gpu_pack]

The wheels are those of `PACKED` in the versions of requirements.lock, for Python 3.12 on Linux and x86-64; pip checks
their hashes. The shards are drawn. Together with the files of the repository, the pack has at most 60 MiB. `install.sh`
in it installs the wheels to a folder:

    source out/gpu_pack/install.sh
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.data import training_shards

ROOT = Path(__file__).parents[2]
OUT = ROOT / "out" / "gpu_pack"
PYDANTIC = ("annotated-types", "pydantic", "pydantic-core", "typing-extensions", "typing-inspection")
PACKED = ("ftfy", "open-clip-torch", "wcwidth", *PYDANTIC)
"""Packages that trainer, GLIP and the scripts import, and that an expected machine lacks (installed.txt)."""
LIMIT = 60 << 20
INSTALL = """# Source this file: it installs the packed wheels to a folder, and adds it to PYTHONPATH.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${TARGET:-/tmp/hypergrit_packages}
python3 -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$target" "$here"/wheels/*.whl &&
export PYTHONPATH="$target${PYTHONPATH:+:$PYTHONPATH}"
"""


def main() -> int:
    """Run the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=256, help="samples of drawn shards; 0: none")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the pack, which is replaced")
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    download(locked(PACKED, (ROOT / "requirements.lock").read_text(encoding="utf-8")), options.out / "wheels")
    (options.out / "install.sh").write_text(INSTALL, encoding="utf-8")
    if options.samples:
        training_shards(options.out / "shards", options.samples, n_shards=4)
    total = size_of_repository() + size(options.out)
    files = [path.relative_to(options.out).as_posix() for path in sorted(options.out.rglob("*")) if path.is_file()]
    print(json.dumps({"name": "gpu_pack", "mib": round(size(options.out) / 2**20, 1), "files": files}))
    if total > LIMIT:
        print(f"pack and repository have {total >> 20} MiB, more than {LIMIT >> 20}; lower --samples", file=sys.stderr)
        return 1
    return 0


def locked(names: Sequence[str], lock: str) -> str:
    """Return the entries of packages in a lock file, with their hashes. Raises KeyError if one is missing."""
    entries = {re.split(r"[=\[ ;]", entry, maxsplit=1)[0]: entry for entry in re.split(r"\n(?=[A-Za-z0-9])", lock)}
    return "\n".join(entries[name] for name in names)


def download(requirements: str, folder: Path) -> None:
    """Download wheels for the machine with the GPU."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(requirements)
        file.flush()
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        command += ["--only-binary=:all:", "--python-version", "3.12", "--platform", "manylinux2014_x86_64"]
        subprocess.run([*command, "--dest", str(folder), "-r", file.name], check=True)


def size(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def size_of_repository() -> int:
    """Return the bytes of the files that git tracks."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sum((ROOT / name).stat().st_size for name in names.split("\0") if name and (ROOT / name).is_file())


if __name__ == "__main__":
    sys.exit(main())
