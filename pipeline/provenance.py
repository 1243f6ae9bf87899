"""The provenance of a shard: versions, models, thresholds and the hash of the configuration."""

from pathlib import Path
from typing import Final

from common.version import hypergrit_version, package_version
from pipeline.config import PipelineConfig, content_hash
from pipeline.ground.load import grounder_path
from pipeline.model_files import folder_hash
from pipeline.parse.package import spacy_package
from pipeline.score.paths import scorer_path
from pipeline.score.thresholds import resolve_thresholds
from schemas.manifest import ModelIdentity, Provenance, ThresholdValues
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


def model_identity(name: str, path: str) -> ModelIdentity:
    """The name of a model, and the hash of its files if they are local."""
    return {"name": name, "sha256": folder_hash(path)} if Path(path).exists() else {"name": name}


def make_provenance(config: PipelineConfig) -> Provenance:
    """Collect everything that decides the content of a shard: a finished shard is reused only if all of it is equal.

    Raises UserError if a model or its calibrated threshold cannot be read.

    >>> from pipeline import load_config, make_provenance
    >>> provenance = make_provenance(load_config(["input=pairs.csv", "output=out"]))
    >>> provenance["models"]["grounder"]["name"], sorted(provenance["packages"])[:2]
    ('miniature', ['ftfy', 'opencv-python-headless'])
    """
    grounder, scorer = config.ground.grounder, config.score.scorer
    thresholds = resolve_thresholds(config.score, grounder)
    return {
        "hypergrit": hypergrit_version(),
        "schema": VERSION,
        "config_hash": content_hash(config),
        "packages": {
            name: package_version(name) for name in PACKAGES + (("py3langid",) if config.parse.languages else ())
        },
        "models": {
            "parser": {"name": config.parse.model, "version": package_version(spacy_package(config.parse.model))},
            "grounder": model_identity(grounder, grounder_path(grounder)),
            "scorer": model_identity(scorer, scorer_path(scorer)),
        },
        "thresholds": ThresholdValues(
            min_side_px=thresholds.min_side_px,
            size_rule=thresholds.size_rule,
            min_score=thresholds.min_score,
            min_clip_score=thresholds.min_clip_score,
        ),
    }
