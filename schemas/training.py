"""What the models of the trainer need besides an image and a caption, and which of them some shards can train."""

from collections.abc import Collection
from types import MappingProxyType
from typing import Final, Literal

Need = Literal["boxes", "levels", "parse"]
"""Boxes with phrases, labels of a taxonomy, or the parse of the caption."""
MODEL_NEEDS: Final = MappingProxyType(
    {
        **dict.fromkeys(("clip", "meru", "poinclip", "atmg", "euclip"), None),
        "syntax_meru": "parse",
        **dict.fromkeys(("hycoclip", "phyclip", "uncha", "argent", "hyper3"), "boxes"),
        "taxonomy": "levels",
    }
)
"""Model of the trainer -> what it needs with its default settings."""


def needs_of(formats: Collection[str], parser: str, levels: bool, n_kept: int, n_pairs: int) -> set[Need]:
    """Return what the samples of an output have; train/ has parse and levels, and a few samples may lack boxes.

    `n_pairs` of the `n_kept` samples have no box; `parser` is the name of the parser, or "none"; `levels`: read.levels is
    set.
    """
    found: set[Need] = {"boxes"} if n_pairs < n_kept else set()
    in_train: dict[Need, bool] = {"parse": parser != "none", "levels": levels}
    return found | {need for need, has in in_train.items() if has and "train" in formats}


def training_line(found: Collection[str], n_pairs: int = 0) -> str:
    """Tell in one line which models samples can train that have what `found` names; `n_pairs` lack boxes.

    >>> training_line({"parse"})
    'can train: clip, meru, poinclip, atmg, euclip, syntax_meru; not: hycoclip, phyclip, uncha, argent, hyper3 (no boxes), \
taxonomy (no levels)'
    """
    able = [name for name, need in MODEL_NEEDS.items() if need is None or need in found]
    unable: dict[str, list[str]] = {}
    for name, need in MODEL_NEEDS.items():
        if name not in able and need:
            unable.setdefault(need, []).append(name)
    line = f"can train: {', '.join(able)}"
    if unable:
        line += "; not: " + ", ".join(f"{', '.join(names)} (no {need})" for need, names in unable.items())
    if n_pairs and "boxes" in found:
        with_boxes = ", ".join(name for name, need in MODEL_NEEDS.items() if need == "boxes")
        line += f"; for {with_boxes}, hypergrit rewrite ... ground.keep_pairs=false first takes out {n_pairs:,} pairs"
    return line
