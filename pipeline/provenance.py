"""What made a shard: versions, models by the hash of their weights, thresholds, and the configuration."""

import dataclasses
import hashlib
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from pipeline.config import PipelineConfig, content_hash, repository_root
from pipeline.ground.load import grounder_path
from pipeline.parse.stage import spacy_package
from pipeline.score.scorers import scorer_path
from pipeline.score.stage import resolve_thresholds
from schemas.rows import VERSION

PACKAGES: Final = (
    "torch",
    "torchvision",
    "transformers",
    "timm",
    "spacy",
    "pyarrow",
    "pillow",
    "opencv-python-headless",
    "ftfy",
)


def hypergrit_version() -> str:
    """The version that pyproject.toml declares: HyperGRIT runs from its checkout and is no installed package."""
    text = (repository_root() / "pyproject.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(text)["project"]["version"])


def package_version(name: str) -> str:
    """Installed version of a distribution, or 'absent'."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


@cache
def folder_hash(path: str) -> str:
    """SHA-256 over the names and contents of the files below `path`, or of the file itself."""
    root, digest = Path(path), hashlib.sha256()
    for file in sorted(root.rglob("*")) if root.is_dir() else [root]:
        if file.is_file():
            digest.update(f"{file.relative_to(root)}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


def model_identity(name: str, path: str) -> dict[str, str]:
    """Name of a model and, where its weights are local, their hash; a hub name stands for itself."""
    return {"name": name, "sha256": folder_hash(path)} if Path(path).exists() else {"name": name}


def make_provenance(config: PipelineConfig) -> dict[str, Any]:
    """The part of a manifest that must agree before a finished shard may be kept: see write.is_finished."""
    grounder, scorer = config.ground.grounder, config.score.scorer
    return {
        "hypergrit": hypergrit_version(),
        "schema": VERSION,
        "config_hash": content_hash(config),
        "packages": {name: package_version(name) for name in PACKAGES},
        "models": {
            "parser": {"name": config.parse.model, "version": package_version(spacy_package(config.parse.model))},
            "grounder": model_identity(grounder, grounder_path(grounder)),
            "scorer": model_identity(scorer, scorer_path(scorer)),
        },
        "thresholds": dataclasses.asdict(resolve_thresholds(config.score, grounder)),
    }
