"""Models by hub name, `owner/name@commit` or `owner/name@commit/file`: which files a repository holds, and a local copy.

A commit pins what is loaded: a branch's name is refused. What was fetched once is found without a network.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from common.errors import UserError

HUB_NAME: Final = re.compile(r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>\w*)(/(?P<file>[\w./-]+))?)?")
COMMIT: Final = re.compile(r"[0-9a-f]{40}")
WEIGHT_SUFFIXES: Final = (".safetensors", ".pth", ".pt", ".bin")


@dataclass(frozen=True)
class HubName:
    """A repository at a commit, and the file of it that is meant, if one is."""

    repository: str
    commit: str
    file: str | None = None

    def __str__(self) -> str:
        return f"{self.repository}@{self.commit}" + (f"/{self.file}" if self.file else "")


def parse_hub_name(name: str) -> HubName | None:
    """The parts of a hub name; None for what is a local path.

    Raises UserError for a repository without its commit.
    """
    match = HUB_NAME.fullmatch(name)
    if Path(name).exists() or match is None:
        return None
    if not COMMIT.fullmatch(match["revision"] or ""):
        raise UserError(
            f"{name} is not there; a hub repository needs its commit: {match['repository']}@<40 hex digits>"
        )
    if match["file"] and ".." in Path(match["file"]).parts:
        raise UserError(f"{name}: the file must lie inside the repository")
    return HubName(match["repository"], match["revision"], match["file"])


def fetch(name: HubName, patterns: list[str]) -> Path:
    """The local folder with those files of the repository that match; only what is missing is fetched.

    Raises UserError if the repository or the commit cannot be reached and was never fetched.
    """
    try:
        return Path(snapshot_download(name.repository, revision=name.commit, allow_patterns=patterns))
    except (OSError, HfHubHTTPError) as error:
        raise UserError(f"{name} cannot be fetched from the hub: {str(error).strip().splitlines()[0]}") from error


def list_files(name: HubName) -> list[str]:
    """Paths of the repository's files; without a network those that were fetched before."""
    try:
        return sorted(HfApi().list_repo_files(name.repository, revision=name.commit))
    except Exception:  # the errors of the HTTP library, which differ between versions of huggingface_hub
        folder = fetch(name, [])
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def weight_file(name: HubName, files: list[str]) -> str:
    """The one weight file of a repository.

    Raises UserError if there is none, or if the name must say which.
    """
    weights = [file for file in files if file.endswith(WEIGHT_SUFFIXES)]
    if len(weights) == 1:
        return weights[0]
    if not weights:
        raise UserError(f"{name} holds no weight file ({', '.join(WEIGHT_SUFFIXES)})")
    raise UserError(f"{name} holds {len(weights)} weight files; say which: {', '.join(f'{name}/{w}' for w in weights)}")
