"""The data that models need besides an image and a caption, and the models that some shards can train."""

from collections.abc import Collection, Iterable
from types import MappingProxyType
from typing import Final, Literal

Need = Literal["boxes", "levels", "parse"]
"""Boxes with phrases, labels of a taxonomy, or the parse of the caption."""
Layout = Literal["train", "hycoclip", "grit", "pairs"]
"""How the members of a sample are named: train/ of the pipeline, HyCoCLIP's shards, raw GRIT, or pairs."""
MODEL_NEEDS: Final = MappingProxyType(
    {
        **dict.fromkeys(("clip", "meru", "poinclip", "atmg", "euclip"), None),
        "syntax_meru": "parse",
        **dict.fromkeys(("hycoclip", "phyclip", "uncha", "argent", "hyper3"), "boxes"),
        "taxonomy": "levels",
    }
)
"""Model of the trainer -> what it needs with its default settings."""


def needs_of(formats: Iterable[str], parser: str, levels: str | None, n_kept: int, n_pairs: int) -> set[Need]:
    """Return what the samples of an output have; train/ has the parse and labels, and a few samples may lack boxes.

    `n_pairs` of the `n_kept` samples have no box; `parser` is the name of the parser, or "none", and `levels` the setting.
    """
    has: dict[Need, bool] = {"boxes": n_pairs < n_kept, "parse": parser != "none", "levels": bool(levels)}
    return {need for need, value in has.items() if value and (need == "boxes" or "train" in formats)}


def training_line(found: Collection[str], n_pairs: int = 0, unknown: Collection[str] = ()) -> str:
    """Tell in one line which models samples can train that have what `found` names; `n_pairs` lack boxes.

    Nothing is said of models whose need is `unknown`.

    >>> training_line({"parse"})
    'can train: clip, meru, poinclip, atmg, euclip, syntax_meru; not: hycoclip, phyclip, uncha, argent, hyper3 (no boxes), \
taxonomy (no levels)'
    """
    able = [name for name, need in MODEL_NEEDS.items() if need is None or need in found]
    unable: dict[str, list[str]] = {}
    for name, need in MODEL_NEEDS.items():
        if name not in able and need and need not in unknown:
            unable.setdefault(need, []).append(name)
    line = f"can train: {', '.join(able)}"
    if unable:
        line += "; not: " + ", ".join(f"{', '.join(names)} (no {need})" for need, names in unable.items())
    if n_pairs and "boxes" in found:
        with_boxes = ", ".join(name for name, need in MODEL_NEEDS.items() if need == "boxes")
        line += f"; for {with_boxes}, hypergrit rewrite ... ground.keep_pairs=false first takes out {n_pairs:,} pairs"
    return line
