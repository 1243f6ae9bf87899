"""Rows of the tables: each is the training of a head with the loss of a model on cached features.

A row that bears the name of a paper has the defaults of its model: the loss and constants of the paper or of its released
code (docs/paper.md has the differences). A row of a table of ablations changes what the table names.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from trainer.models.registry import MODELS

Tower = Literal["crops", "scenes"]
MAIN: Final = "main"
SEEDS: Final = 10
FEW_SEEDS: Final = 5
"""Seeds of the main rows and of the controls, and of the others."""
LONG: Final = ("clip", "clip-boxes", "meru", "hycoclip", "hycoclip-no-entailment", "phyclip")
"""Main rows that are also trained with twice the steps."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A row: a model with settings of the trainer, on the features of a tower and the boxes of a detector or the true ones."""

    row: str
    model: str
    title: str
    overrides: tuple[str, ...] = ()
    table: str = MAIN
    tower: Tower = "crops"
    boxes: str = "predicted"
    """predicted, true, or the name of a folder of scenes with other given boxes."""
    seeds: int = SEEDS
    tuned_as: str = ""
    """The row of the same tower whose rate and step it has; empty: its own."""
    longer: int = 1
    """Factor on the number of steps."""

    @property
    def key(self) -> str:
        """The name of the row, with its tower or boxes if they are not those of most rows."""
        if self.tower == "scenes":
            return f"{self.row}@scenes"
        return f"{self.row}@true" if self.boxes == "true" else self.row

    @property
    def choice(self) -> str:
        """The name of the choice of rate and step that the row uses: TOWER/ROW."""
        return f"{self.tower}/{self.tuned_as or self.row}"

    @property
    def has_boxes(self) -> bool:
        """True if boxes are used, as general concepts or as further pairs."""
        config = MODELS[self.model].config
        return hasattr(config, "use_boxes") or "model.boxes_as_pairs=true" in self.overrides

    @property
    def keeps_items(self) -> bool:
        """True if results hold the single held-out items, for intervals that cover them."""
        return self.table == MAIN


def main_rows() -> Iterator[Variant]:
    """Yield the rows of the main table, with the papers' losses and constants."""
    for model in ("clip", "meru"):
        title = MODELS[model].title
        yield Variant(row=model, model=model, title=title)
        yield Variant(
            row=f"{model}-boxes", model=model, title=f"{title} with boxes", overrides=("model.boxes_as_pairs=true",)
        )
    for model in ("hycoclip", "phyclip", "poinclip", "syntax_meru", "euclip", "uncha", "argent", "atmg"):
        yield Variant(row=model, model=model, title=MODELS[model].title, overrides=PAPERS.get(model, ()))
    for model in ("meru", "hycoclip"):
        title = f"{MODELS[model].title} without entailment"
        yield Variant(row=f"{model}-no-entailment", model=model, title=title, overrides=("model.entail_weight=0",))
    yield Variant(row="phyclip-printed", model="phyclip", title="PHyCLIP as printed", overrides=PRINTED)


PAPERS: Final = {"phyclip": ("model.factor_dim=8",), "uncha": ("data.boxes=all", "data.max_boxes=5")}
"""Settings of a row beside the defaults of its model: at width 64, 8 factors; and the boxes of UNCHA's released code."""
PRINTED: Final = (*PAPERS["phyclip"], "model.alpha_init=paper", "model.box_candidates=paper", "model.entail_weight=0.4")


def ablations() -> Iterator[Variant]:
    """Yield the rows of the tables of ablations, and two controls of what decides in HyCoCLIP."""

    def rows(table: str, model: str, cases: Mapping[str, tuple[str, ...]], seeds: int = FEW_SEEDS) -> Iterator[Variant]:
        for name, overrides in cases.items():
            title = f"{MODELS[model].title}, {name.replace('-', ' ').replace('_', ' ')}"
            yield Variant(
                row=f"{model}-{name}",
                model=model,
                title=title,
                overrides=(*PAPERS.get(model, ()), *overrides),
                table=table,
                seeds=seeds,
                tuned_as=model,
            )

    for model in ("clip", "meru"):
        yield from rows("meru-3", model, {f"w{width}": (f"model.embed_dim={width}",) for width in (512, 256, 128, 96)})
    yield from rows("meru-4", "meru", {"fixed-c": ("model.curv_learnable=false",), "inner": ("model.logits=inner",)})
    terms = [("contrast", side) for side in ("image", "text", "box_image", "box_text")]
    terms += [("entail", name) for name in ("text_image", "box_text_image", "cross_image", "cross_text")]
    yield from rows("hycoclip-4", "hycoclip", {f"no-{k}-{name}": (f"model.{k}_terms.{name}=0",) for k, name in terms})
    batches = (128, 160, 192, 224, 384)
    yield from rows("hycoclip-6", "meru", {f"b{size}": (f"batch_size={size}",) for size in batches})
    fixed = "model.curv_learnable=false"
    curvatures = (1.0, 0.8, 0.6, 0.3, 0.1)
    yield from rows("hycoclip-7", "hycoclip", {f"c{c}": (fixed, f"model.curv_init={c}") for c in curvatures})
    etas = (1.0, 0.9, 0.8, 0.6, 0.5)
    yield from rows("hycoclip-8", "hycoclip", {f"eta{eta}": (f"model.eta_inter={eta}",) for eta in etas})
    factors: dict[str, tuple[str, ...]] = {
        f"k{k}": ("model.embed_dim=256", f"model.factor_dim={256 // k}") for k in (1, 8, 16, 32, 64, 128)
    }
    factors["l2"] = (*factors["k64"], "model.metric=l2")
    for row in rows("phyclip-4", "phyclip", factors):  # a run with 128 factors takes at least 4 minutes
        yield row if row.row == "phyclip-k128" else replace(row, tuned_as="")
    yield from rows(
        "poinclip-3", "poinclip", {order: (f"model.order={order}",) for order in ("text", "norm", "random")}
    )
    weights = (0.01, 0.1, 0.5, 1)
    grid = {"l0": ("model.entail_weight=0",)} | {
        f"l{a}-r{b}": (f"model.entail_weight={a}", f"model.entail_reward={b}")
        for b in (0, *weights)
        for a in weights
        if (a, b) != (0.1, 0.1)
    }
    yield from rows("poinclip-4", "poinclip", grid)
    tokens = (
        "data.texts=tokens",
        "model.text.vocab_size=1364",
        "model.text.width=96",
        "model.text.layers=2",
        "model.text.heads=4",
    )
    for model in ("clip", "meru", "syntax_meru", "hycoclip"):
        yield from rows("tokens", model, {"tokens": tokens}, seeds=3)  # a run takes 4 to 7 minutes
    for row in main_rows():
        if row.row in LONG:
            title = f"{row.title}, twice the steps"
            name = f"{row.row}-long"
            yield replace(row, row=name, title=title, table="long", seeds=FEW_SEEDS, tuned_as=row.row, longer=2)
    controls = {"eq4": ("model.box_candidates=paper",), "k03": ("model.min_radius=0.3",)}
    yield from rows("control", "hycoclip", controls, SEEDS)


def variants() -> Iterator[Variant]:
    """Yield all rows in the order in which they are trained."""
    main = list(main_rows())
    yield from main
    yield from (replace(row, tower="scenes") for row in main)
    yield from ablations()
    yield from (replace(row, boxes="true", seeds=FEW_SEEDS, tuned_as=row.row) for row in main if row.has_boxes)


VARIANTS: Final[dict[str, Variant]] = {variant.key: variant for variant in variants()}
