"""The same output with another layout."""

import json
import shutil
from pathlib import Path

from pipeline.output.store import Store
from pipeline.summary.totals import decompressed
from schemas.files import LAYOUT_FILE, MANIFEST_FOLDER, SUMMARY_FOLDER
from schemas.layout import FLAT, FOLDERS, Layout


def in_folders(source: Path, target: Path) -> Path:
    """Copy a flat output with the names of an output in folders, also in its manifests."""
    Store(str(target)).record_layout(FOLDERS)
    for path in source.rglob("*"):
        if path.is_file():
            new = target / renamed(str(path.relative_to(source)), FLAT, FOLDERS)
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, new)
    for path in (target / MANIFEST_FOLDER).rglob("*.json"):
        manifest = json.loads(path.read_text())
        manifest["files"] = {renamed(name, FLAT, FOLDERS): facts for name, facts in manifest["files"].items()}
        path.write_text(json.dumps(manifest, sort_keys=True, ensure_ascii=False, indent=1))
    return target


def renamed(path: str, old: Layout, new: Layout) -> str:
    """Return a path of the layout `old` in the layout `new`; those of other files are the same."""
    found = old.shard(path)
    return new.path(*found) if found else path


def contents(output: Path) -> dict[str, bytes]:
    """Return the files of the shards of an output, with the names of a flat one, also in the manifests."""
    layout, found = Store(str(output)).layout, dict[str, bytes]()
    for path in output.rglob("*"):
        shard = layout.shard(str(path.relative_to(output)))
        if path.is_file() and shard and not shard[0].folder.startswith("_timings"):
            data = path.read_bytes()
            if shard[0].folder == MANIFEST_FOLDER:
                manifest = json.loads(data)
                manifest["files"] = {renamed(name, layout, FLAT): facts for name, facts in manifest["files"].items()}
                data = json.dumps(manifest, sort_keys=True).encode()
            elif shard[0].folder == SUMMARY_FOLDER:  # it holds the hash of the manifest, which names the files
                data = json.dumps(json.loads(decompressed(data)) | {"manifests": {}, "sha256": ""}).encode()
            found[FLAT.path(*shard)] = data
    return found


def has_folders(output: Path) -> bool:
    """Return True for an output in folders, without any file of a shard elsewhere."""
    files = [path for path in output.rglob("*") if path.is_file()]
    flat = [path for path in files if FLAT.shard(str(path.relative_to(output)))]
    return (output / LAYOUT_FILE).exists() and not flat
