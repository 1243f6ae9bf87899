"""Models at a URL: each machine downloads them once into its cache, and checks the hash that the URL names.

    s3://bucket/models/glip_l                            a folder
    https://example.org/glip_tiny.pth#sha256=0f1e...     a file, with its SHA-256

A URL is downloaded under a lock of the kernel into a folder of its own, which is renamed when it is complete.
"""

import hashlib
import math
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np

from hypergrit_common.disk import locked
from hypergrit_common.errors import UserError
from hypergrit_common.files import file_hash
from hypergrit_common.json_file import read_object
from hypergrit_common.paths import LOCAL
from hypergrit_common.remote import one_line, open_store, store_errors
from hypergrit_common.urls import without_user

CACHE: Final = "HYPERGRIT_CACHE"
"""Environment variable: folder on a disk of each machine for models of URLs; ~/.cache/hypergrit if it is not set."""
OFFLINE: Final = "HF_HUB_OFFLINE"
"""Environment variable of huggingface_hub, which holds for URLs too: with 1, only models that are on the machine."""
REMOTE: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
PINNED: Final = re.compile(r"sha256=([0-9a-f]{64})")
ANSWER_S: Final = 3.0
"""Time limit for the hub to answer whether it has a model."""
TRIAL: Final = np.full((48, 64, 3), 127, np.uint8)
"""An image with which a loaded model is tried."""
UNLIMITED: Final = 1_000_000
"""Lengths from here on say that no length is known: transformers gives a tokenizer without one 10^30 tokens."""


def token_limit(tokenizer: Any, *others: int | None) -> int:
    """Return how many tokens a text of a model may have: the smallest of what its tokenizer and its configuration say.

    `others` are the limits of the configuration; None: it has none.

    Raises UserError if neither says it.
    """
    least = min(limit for limit in (tokenizer.model_max_length, *others) if limit is not None)
    if least >= UNLIMITED:
        raise UserError(
            f"neither the {type(tokenizer).__name__} nor the configuration of the model says how long a text may be; set "
            "model_max_length in its tokenizer_config.json"
        )
    return int(least)


def local_model(name: str, *, miniature: Path | None = None) -> str:
    """Return the path of a model on this machine: of a URL, that of its copy; names of other kinds unchanged.

    With a folder `miniature`, that is the model named `miniature`.

    Raises UserError if the URL cannot be read, or has a user name, a query or another hash than its fragment, and in
    the offline mode if this machine has no copy.
    """
    if miniature and name == "miniature":
        return str(miniature)
    if not REMOTE.match(name) or name.startswith(LOCAL):
        return name
    url, _, fragment = name.partition("#")
    check_url(url, fragment)
    folder = cache_folder() / hashlib.sha256(name.encode()).hexdigest()[:32]
    path = folder / (PurePosixPath(url.rstrip("/")).name or "model")
    if not path.exists():
        if is_offline():
            raise UserError(
                f"{url} is not in {folder.parent}, and {OFFLINE} is set; run `hypergrit models fetch` first"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(f"{folder}/.lock"):  # processes of this machine wait for each other
                if not path.exists():  # another process may have fetched it meanwhile
                    _download(url, fragment.removeprefix("sha256="), path)
        except OSError as error:
            raise UserError(f"{folder} cannot be written: {one_line(error)}; set {CACHE} to another folder") from error
    return str(path)


def check_url(url: str, fragment: str) -> None:
    """Raise UserError for a URL that must not be recorded, and for a fragment that is not a SHA-256."""
    if without_user(url) != url or "?" in url:
        raise UserError(
            f"the URL {without_user(url).partition('?')[0]} of a model has a user name or a query, which every "
            "manifest would repeat; give the credentials in the environment or in the configuration of fsspec "
            "(docs/cluster.md)"
        )
    if fragment and not PINNED.fullmatch(fragment):
        raise UserError(f"{url}#{fragment}: a fragment is #sha256= and the 64 hex digits that `sha256sum` prints")


def cache_folder() -> Path:
    """Return the folder for the models of this machine."""
    return Path(os.environ.get(CACHE) or Path.home() / ".cache" / "hypergrit") / "models"


def _download(url: str, expected: str, path: Path) -> None:
    """Download a file or a folder to `path`, which appears when it is complete. The caller holds the lock."""
    fs, root = open_store(url)
    for abandoned in path.parent.glob("draft-*"):  # of killed processes, since this one holds the lock
        shutil.rmtree(abandoned, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix="draft-", dir=path.parent))
    try:
        is_file = url.lower().startswith("http") or fs.isfile(root)
        files = [root] if is_file else sorted(fs.find(root))
        if not files:
            raise UserError(f"{url} does not exist, or is an empty folder; check the URL")
        if expected and not is_file:
            raise UserError(f"{url} is a folder, but #sha256= is the hash of a file; remove it, or name a file")
        for file in files:
            relative = PurePosixPath("." if is_file else file[len(root) :].lstrip("/"))
            if ".." in relative.parts:
                raise UserError(f"{url}: the name {file!r} leaves the folder; rename the object")
            target = draft / path.name / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            fs.get_file(file, str(target))
        if expected and (found := file_hash(draft / path.name)) != expected:
            raise UserError(f"{url} has the SHA-256 {found} instead of {expected}; it has changed, or was cut off")
        os.replace(draft / path.name, path)
    except store_errors(ValueError) as error:
        raise UserError(f"{url} cannot be fetched: {one_line(error)}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


# Models on the Hugging Face hub, named `owner/name@commit` or `owner/name@commit/file`.
#
# A name must contain a commit, because the files of a branch can change. Downloaded files are cached, once for all
# processes of a machine, and later loaded without a network.

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
    except (OSError, ValueError, HfHubHTTPError) as error:  # ValueError: names that lead out of the cache
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


def check_available(key: str, name: str) -> None:
    """Raise UserError if a model of a job is neither on this machine nor in a repository that the hub gives.

    `key=name` is the setting. One request is made for a repository without weights in the cache; none for URLs, which
    `local_model` fetches.
    """
    if REMOTE.match(name) or Path(name).exists():
        check_folder(key, Path(name))
        return
    match = HUB_NAME.fullmatch(name)
    help_text = "docs/models.md lists models, and shows how to convert a released GLIP"
    if match is None:
        raise UserError(f"{key}={name}: there is no such file or folder on this machine; {help_text}")
    from huggingface_hub import HfApi, constants, utils

    cached = Path(constants.HF_HUB_CACHE, f"models--{match['repository'].replace('/', '--')}", "snapshots")
    if any(path.suffix in WEIGHT_SUFFIXES for path in cached.glob("*/**/*")):
        return
    fetch_text = f"`hypergrit models fetch {key}={name}` fetches it where the hub can be reached"
    if is_offline():
        raise UserError(
            f"{key}={name} is not on this machine, or not complete, and {OFFLINE} is set; {fetch_text}; {help_text}"
        )
    try:
        HfApi().model_info(match["repository"], revision=match["revision"], timeout=ANSWER_S)
    except Exception as error:  # the type of network errors depends on the version of huggingface_hub
        is_missing = isinstance(error, utils.RepositoryNotFoundError | utils.RevisionNotFoundError)
        reason = "has no such repository" if is_missing else f"does not answer ({one_line(error)[:120]})"
        found = "the hub's cache contains no weight file of it" if cached.is_dir() else "there is no such folder"
        raise UserError(
            f"{key}={name}: {found} on this machine, and the hub {reason}; {help_text}; {fetch_text}"
        ) from error


PREPROCESSORS: Final = ("preprocessor_config.json", "processor_config.json", "image_processor_config.json")


def check_folder(key: str, folder: Path) -> None:
    """Raise UserError if a folder has no config.json.

    The same for a folder of transformers without its preprocessor, or with more words in its tokenizer than its model.
    """
    if folder.is_dir() and not (folder / "config.json").exists():
        raise UserError(f"{key}={folder} has no config.json, so it is no model; docs/models.md lists the models")
    config = read_model_config(folder)
    if "model_type" not in config:
        return
    if not any((folder / name).exists() for name in PREPROCESSORS):
        raise UserError(f"{key}={folder} has no {PREPROCESSORS[0]}; copy it from the model that this one was made from")
    try:
        words = read_object(folder / "tokenizer.json")
        ids = [*words["model"]["vocab"].values(), *(token["id"] for token in words["added_tokens"])]
        n, size = max(ids) + 1, config.get("text_config", config).get("vocab_size", math.inf)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return  # of another form, which loading it judges
    if n > size:
        raise UserError(
            f"{key}={folder}: its tokenizer has {n:,} words, more than its embedding ({size:,}); copy both from "
            "one model"
        )


def is_offline() -> bool:
    """Return True if models must be on this machine already."""
    return os.environ.get(OFFLINE, "").upper() in ("1", "ON", "YES", "TRUE")


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


# The hash of a model's files, with which each machine checks that it loads the model of the job.


@cache
def folder_hash(path: str) -> str:
    """SHA-256 over the relative paths, sizes and contents of the files in a folder, or of one file.

    Cached, since weights take seconds to read. Raises OSError if a file cannot be read.
    """
    root, digest = Path(path), hashlib.sha256()
    for file in sorted(root.rglob("*")) if root.is_dir() else [root]:
        if file.is_file():
            digest.update(f"{file.relative_to(root)}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


def check_model(key: str, path: str, expected: str | None) -> None:
    """Raise UserError if the model at `path`, the value of `key`, has another `folder_hash` than `expected`.

    Without `expected`, as for a model of the hub, and if nothing is at `path`, nothing is checked.
    """
    if expected is not None and Path(path).exists() and folder_hash(path) != expected:
        raise UserError(
            f"{key}: {path} on {socket.gethostname()} has other files than where the job was started; copy the same "
            "files to all machines, or give a URL with #sha256= or a hub name with a commit"
        )


# The config.json of a model folder, and the calibrated threshold in it.


def read_model_config(folder: Path) -> dict[str, Any]:
    """Read the config.json of a model folder, {} if it has none. Raises UserError if the file is damaged."""
    try:
        return read_object(folder / "config.json")
    except (FileNotFoundError, NotADirectoryError):  # NotADirectoryError: `folder` is a weight file
        return {}
    except ValueError as error:
        raise UserError(str(error)) from error


def calibrated_threshold(
    config: dict[str, Any], keys: Sequence[tuple[str, str]], *, otherwise: float, most: float, model: str
) -> float:
    """The calibrated threshold in the config.json of a model, or `otherwise` if it has none.

    The first of `keys` (group, key) that is set counts. Raises UserError, naming the `model`, if its value is not a
    number from 0 to `most`.
    """
    groups = [(config.get(group), key) for group, key in keys]
    found = [group[key] for group, key in groups if isinstance(group, dict) and group.get(key) is not None]
    value = found[0] if found else otherwise
    if not isinstance(value, int | float) or not 0 <= value <= most:
        raise UserError(
            f"the config.json of {model} has the score threshold {value!r}; change it to a number from 0 to {most:g}"
        )
    return float(value)
