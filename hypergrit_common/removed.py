"""Settings that earlier versions had: a saved configuration may still name them.

One with its old default is ignored. Any other value asked for something that is gone, and is an error that names the
last commit which had it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

LAST_COMMIT: Final = "5af35950"
"""The last commit that had every setting below."""

IN_FOLDERS: Final = f"has folders of 1,000 shards, which HyperGRIT does not read any more; commit {LAST_COMMIT} does"
REMOVED: Final = f"removed after commit {LAST_COMMIT}"
"""What a message says of such a setting."""

REMOVED_FROM_RUN: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "download.allowed_ports": [],
        "ground.captions": "first",
        "ground.prompt": "caption",
        "parse.abstract_suffixes": ["ness", "ity", "ism", "ship", "hood", "ment", "tude"],
        "recaption.price": 0.0,
        "recaption.timeout_s": 120.0,
        "score.batch_size": 64,
        "write.ref_exps": "all",
    }
)
"""Full key of `run` -> its default as YAML reads it."""

NOT_IN_HASH: Final = frozenset({"ground.captions", "recaption.price", "recaption.timeout_s"})
"""Those of them that no hash of the settings of a shard held: what was marked as `runtime`, and ground.captions."""

REMOVED_FROM_TRAIN: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "compile_mode": "default",
        "data.max_queries": 5,
        "evaluation.batch_size": 256,
        "evaluation.max_bad_share": 0.1,
        "evaluation.max_images": 0,
        "evaluation.seed": 0,
        "log.images": 8,
        "log.trackio_project": None,
        "model.logit_bias_init": -10.0,
        "model.loss_kernel": "auto",
        "ray.max_failures": 3,
    }
)
"""Full key of `train` -> its default as YAML reads it."""
