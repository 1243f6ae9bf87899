"""Models on the Hugging Face hub, named `owner/name@commit` or `owner/name@commit/file`.

A name must contain a commit, because the files of a branch can change. Downloaded files are cached, once for all processes
of a machine, and later loaded without a network.
"""

import re
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Final

from common.errors import UserError
from common.files import file_hash

HUB_NAME: Final = re.compile(r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>\w*)(/(?P<file>[\w./-]+))?)?")
COMMIT: Final = re.compile(r"[0-9a-f]{40}")
SHA256: Final = re.compile(r"[0-9a-f]{64}")
WEIGHT_SUFFIXES: Final = (".safetensors", ".pth", ".pt", ".bin")


@dataclass(frozen=True)
class HubName:
    """A repository at a commit, and optionally one of its files."""

    repository: str
    commit: str
    file: str | None = None

    def __str__(self) -> str:
        return f"{self.repository}@{self.commit}" + (f"/{self.file}" if self.file else "")


def parse_hub_name(name: str) -> HubName | None:
    """Parse a hub name; return None for a local path.

    Raises UserError if the commit is missing, or if the file lies outside the repository.
    """
    match = HUB_NAME.fullmatch(name)
    if Path(name).exists() or match is None:
        return None
    if not COMMIT.fullmatch(match["revision"] or ""):
        raise UserError(
            f"{name} does not exist on this machine; for a hub repository, give its commit: "
            f"{match['repository']}@<40 hex digits>"
        )
    if match["file"] and ".." in Path(match["file"]).parts:
        raise UserError(f"{name}: the file must be inside the repository; remove '..'")
    return HubName(match["repository"], match["revision"], match["file"])


def fetch(name: HubName, patterns: list[str]) -> Path:
    """Download the files of a repository that match `patterns`, unless they are cached, and return their local folder.

    Raises UserError if they are neither cached nor available from the hub, and if a weight file is damaged.
    """
    from huggingface_hub import snapshot_download  # takes longer than all else that plans a job without such models
    from huggingface_hub.errors import HfHubHTTPError

    try:
        folder = Path(snapshot_download(name.repository, revision=name.commit, allow_patterns=patterns))
    except (OSError, HfHubHTTPError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{name} cannot be fetched from the hub: {reason}; check the name and the network") from error
    for path in folder.rglob("*"):
        if any(fnmatch(path.relative_to(folder).as_posix(), pattern) for pattern in patterns) and path.is_symlink():
            blob = path.resolve()
            if SHA256.fullmatch(blob.name) and blob_hash(str(blob)) != blob.name:
                raise UserError(f"{name}: {blob} is damaged: its SHA-256 is not its name; delete it to fetch it again")
    return folder


blob_hash = cache(file_hash)
"""SHA-256 of a file of the hub's cache, which gives large files, such as weights, theirs as name."""


def list_files(name: HubName) -> list[str]:
    """Return the paths of the files of a repository, or of the cached ones if the hub cannot be reached."""
    from huggingface_hub import HfApi

    try:
        return sorted(HfApi().list_repo_files(name.repository, revision=name.commit))
    except Exception:  # the type of network errors depends on the version of huggingface_hub
        folder = fetch(name, [])
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def weight_file(name: HubName, files: list[str]) -> str:
    """Return the only weight file among the repository's `files`.

    Raises UserError unless there is exactly one.
    """
    weights = [file for file in files if file.endswith(WEIGHT_SUFFIXES)]
    if len(weights) == 1:
        return weights[0]
    if not weights:
        raise UserError(f"{name} contains no weight file ({', '.join(WEIGHT_SUFFIXES)}); choose another repository")
    choices = ", ".join(f"{name}/{weight}" for weight in weights)
    raise UserError(f"{name} contains {len(weights)} weight files; choose one: {choices}")
