"""Fetch data sets of image classification that are missing, from the addresses of torchvision."""

import logging
import shutil
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from torchvision.datasets.utils import check_integrity, extract_archive
from tqdm import tqdm

from hypergrit_common.disk import locked
from hypergrit_common.errors import UserError
from hypergrit_common.text import one_line
from trainer.evaluation.catalog import SetInfo, set_infos
from trainer.evaluation.sets.probe import FOLDER
from trainer.evaluation.sets.registry import READERS, read_split

logger = logging.getLogger(__name__)


def fetch_sets(root: Path, tasks: Iterable[str]) -> dict[str, str]:
    """Log size and license of each set that these tasks lack, fetch them, and return the reason for each that failed."""
    readers = {"classification", "linear_probe"}.intersection(tasks)
    wanted = [info for key, info in set_infos().items() if readers and is_missing(root, key, readers)]
    for info in wanted:
        size = f"{info.gb:.2f} GB to {root / info.key}; license: {info.license}"
        logger.info(
            "fetch: %s: %s", info.key, size if info.archives else "torchvision has no download that is read here"
        )
    failed = {}
    for info in (info for info in wanted if info.archives):
        try:
            fetch_set(root / info.key, info)
        except Exception as error:  # of the network, the disk, an archive or its content
            urls, place = " and ".join(info.archives), root / info.key / info.into
            failed[info.key] = f"fetch: {info.key}: {one_line(error)}; fetch {urls} by hand, and unpack in {place}"
            logger.error("%s", failed[info.key])
    return failed


def is_missing(root: Path, key: str, readers: set[str]) -> bool:
    """True if `root` has no layout of a set. Malformed files are not missing: the tasks report them."""
    with suppress(UserError):
        is_there = read_split(root / key, key, "test") is not None
        return not is_there and ("classification" in readers or not (root / FOLDER / key).is_dir())
    return False


def fetch_set(folder: Path, info: SetInfo) -> None:
    """Fetch a set into a hidden folder beside its place, which it takes when it is whole. Raises OSError and others."""
    place, draft = folder / info.folder, folder / ".fetch"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(str(folder / ".fetch.lock")):
        if read_split(folder, info.key, "test") is not None:  # another process fetched it
            return
        if place.exists():
            raise FileExistsError(f"{place} is there, but not whole; move it away")
        shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
        free_gb, need_gb = shutil.disk_usage(folder).free / 1e9, 2.3 * info.gb  # the archives and their content
        if free_gb < need_gb:
            raise OSError(f"{folder} has {free_gb:.1f} GB of free space, not {need_gb:.1f} GB")
        try:
            (draft / info.into).mkdir(parents=True)
            for url, md5 in info.archives.items():
                fetch_file(url, md5, draft / info.into / url.rpartition("/")[2])
            if READERS[info.key](draft, "test") is None:
                raise OSError(f"the archives hold no {info.files}")
            (draft / info.folder).rename(place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def fetch_file(url: str, md5: str, path: Path) -> None:
    """Download a file and unpack it if it is an archive. Raises OSError, also for another MD5."""
    with open_url(url) as source, path.open("wb") as file, tqdm(unit="B", unit_scale=True, desc=path.name) as bar:
        for block in iter(partial(source.read, 2**20), b""):
            bar.update(file.write(block))
    if not check_integrity(path, md5):
        raise OSError(f"the MD5 of {path.name} is not {md5}")
    if path.name.endswith((".tgz", ".tar.gz", ".zip")):
        extract_archive(path, remove_finished=True)


def open_url(url: str) -> Any:
    """Open an address. Raises OSError, also if the host redirects to an address without encryption."""
    response = urlopen(Request(url, headers={"User-Agent": "hypergrit"}), timeout=60.0)
    if not response.url.startswith("https://"):
        raise OSError(f"{response.url} is not https")
    return response
