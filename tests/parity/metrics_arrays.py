"""Shapes and values of the arrays of metrics.npz, checked before they are compared."""

from collections import Counter
from typing import Any

import numpy as np

from tests.parity.report import Report

LAYOUT = {
    "zs/prompt_feats": "classes prompts width",
    "zs/labels": "images",
    "zs/image_tangent": "images width",
    "zs/curvs": "factors",
    "zs/alphas": "factors",
    **{f"zs/{name}/classifier": "classes width" for name in ("clip", "meru", "phyclip")},
    **{f"zs/{name}/image_feats": "images width" for name in ("clip", "meru", "phyclip")},
    **{f"zs/{name}/scores": "images classes" for name in ("clip", "meru", "phyclip")},
    "zs/phyclip/l1_distance": "images classes",
    "retr/image_tangent": "pictures width",
    "retr/text_tangent": "captions width",
    "retr/owner": "captions",
    **{f"retr/{name}/t2i_scores": "captions pictures" for name in ("clip", "meru", "phyclip")},
    **{f"retr/{name}/i2t_scores": "pictures captions" for name in ("clip", "meru", "phyclip")},
    "hier/pred": "samples",
    "hier/true": "samples",
    "hier/pairwise": "leaves leaves metrics",
    **{f"trav/{name}": "width" for name in ("meru/image", "hyco/target", "clip/image", "clip/root", "phyclip/image")},
    "trav/meru/pool": "pool width",
    "trav/meru/nn": "steps",
    "trav/meru/masked": "steps masked",
    **{f"trav/{name}/interp": "steps width" for name in ("meru", "clip", "phyclip")},
    "trav/hyco/nn": "steps",
    "trav/hyco/interp_as_coded": "steps width",
    "trav/hyco/interp_paper": "steps width",
}
"""Names of the axes of each array. An axis has the same size in all arrays."""


def check_arrays(report: Report, table: Any) -> None:
    """Add a failed group for each array with numbers that are not finite, or with another shape than most others."""
    arrays = {name: table[name] for name in LAYOUT if name in table}
    votes: dict[str, Counter[int]] = {}
    for name, values in arrays.items():
        axes = LAYOUT[name].split()
        if values.ndim == len(axes):
            for axis, size in zip(axes, values.shape, strict=True):
                votes.setdefault(axis, Counter())[size] += 1
    for name, values in arrays.items():
        axes = LAYOUT[name].split()
        expected = tuple(votes[axis].most_common(1)[0][0] if axis in votes else 0 for axis in axes)
        if values.shape != expected:
            report.check(name, False, f"shape {values.shape} instead of {expected}: {', '.join(axes)}")
        elif values.dtype.kind == "f" and not np.isfinite(values).all():
            report.check(name, False, "not finite")
