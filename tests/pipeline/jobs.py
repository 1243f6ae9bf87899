"""Runs of the main job for tests: the command with cheap settings, and the hashes of its output."""

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

from pipeline import grit
from schemas.files import FILES, INDEX_FOLDER, MANIFEST_FOLDER
from tests.pipeline.here import running_here

N_SCENES = 9
"""Scenes in the input tar; it also holds one broken image."""


WITHOUT_MODELS = ("grounder=none", "parse.model=none", "scorer=none")


def run_job(tars: Path, output: Path | str, *arguments: str) -> int:
    """Run the job with shards of 4 rows, and compute them in this process too; return its exit code."""
    with running_here():
        return run_apart(tars, output, *arguments)


def run_apart(tars: Path, output: Path | str, *arguments: str) -> int:
    """Run the job with shards of 4 rows, and let its runner compute them; return its exit code."""
    return grit.main([f"input={tars}", f"output={output}", "rows_per_shard=4", "ray.runner=local", *arguments])


def hash_output(output: Path) -> dict[str, str]:
    """SHA-256 by name of the files that are the same in every run: shards and manifests."""
    folders = (*FILES, INDEX_FOLDER, MANIFEST_FOLDER)
    files = [path for folder in folders for path in sorted((output / folder).glob("*"))]
    return {str(path.relative_to(output)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def jsons(tar: Path, suffix: str = ".json") -> list[dict[str, Any]]:
    """The JSON of each sample of a tar, in order."""
    with tarfile.open(tar) as file:
        members = [file.extractfile(member) for member in file if member.name.endswith(suffix)]
        return [json.load(member) for member in members if member]
