"""The data of a study: scenes, shards of the pipeline with predicted and with true boxes, features, evaluation sets.

    scenes/NAME/{pairs,true}/   tars of the training and of the held-out scenes
    shards/NAME-BOXES/          the output of the pipeline
    features/TOWER-BOXES/       what `hypergrit features` wrote of the training shards
    sets/, tuning/              the evaluation sets (`demo.paper.sets`), scores on the validation split

Each part resumes, and is kept once it is finished.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from demo.paper.plan import Size, Tower, Variant
from demo.paper.processes import report
from demo.paper.scenes import UNSEEN_SHARE, write_scenes
from demo.paper.sets import write_sets
from demo.train_demo import run_verb
from demo.train_demo_data import JOB, ROOT, is_current, make_shards, record_settings, settings_path
from demo.world.scenes import HELD_OUT_SEEDS, SHARD_SEEDS
from hypergrit_common.errors import UserError
from pipeline.config import content_hash, load_config
from trainer.checkpoints.towers import weights_sha256

TOWERS: Final[dict[Tower, Path]] = {"crops": ROOT / "demo/weights/clip", "scenes": ROOT / "demo/weights/clip_scenes"}
PREDICTED: Final = ("formats=[train,arrow]", "score.keep_all=true")
GIVEN: Final = ("formats=[train]", "grounder=none", "scorer=none")
TASKS: Final[dict[str, tuple[str, ...]]] = {  # of each folder of evaluation sets
    "test": ("classification", "hierarchical", "retrieval", "sugarcrepe", "vlchecklist", "order", "chains"),
    "unseen": ("sugarcrepe",),
    "seen": ("sugarcrepe",),
    "validation": ("classification", "retrieval"),
}
ROWS_PER_FILE: Final = 4096
SAME_DATA: Final = {"bf2fb667": "38032c5c"}
"""Hash of a job -> that of the job with which the stored results were made: version 0.7.0, which had another parser."""


@cache
def data_settings(size: Size) -> dict[str, Any]:
    """All that the data depend on; of the pipeline, the settings that decide the content of shards."""
    job = content_hash(load_config([str(ROOT / JOB), "input=pairs", "output=shards"]))[:8]
    names = ("train_rows", "held_out_rows", "pictures", "captioned", "pairs")
    return {"job": SAME_DATA.get(job, job), "unseen": UNSEEN_SHARE, **{name: getattr(size, name) for name in names}}


def features_of(folder: Path, variant: Variant) -> Path:
    """The features on which a row is trained."""
    return folder / "features" / f"{variant.tower}-{variant.boxes}"


def make_data(folder: Path, size: Size, rows: Sequence[Variant], n_jobs: int) -> None:
    """Write what is missing for the rows. Raises RuntimeError if the pipeline fails, and UserError for other data."""
    settings = data_settings(size)
    if settings_path(folder).exists() and not is_current(folder, settings):
        hint = "delete it, or give another --work"
        raise UserError(f"{folder} has data of other settings, see {settings_path(folder)}; {hint}")
    folder.mkdir(parents=True, exist_ok=True)
    record_settings(folder, settings)
    for name, n, seeds in (("train", size.train_rows, SHARD_SEEDS), ("held_out", size.held_out_rows, HELD_OUT_SEEDS)):
        write_scenes(folder / "scenes" / name, n, seeds, n_jobs)
    write_shards(folder, "held_out", "true", size)
    if not (sets := folder / "sets").exists():
        draft = folder / "sets.tmp"
        write_sets(draft, size, folder / "shards" / "held_out-true")
        draft.rename(sets)
    report(f"evaluation sets in {sets}")
    for boxes in dict.fromkeys(row.boxes for row in rows):
        write_shards(folder, "train", boxes, size)
        report(f"shards with {boxes} boxes")
    for row in {features_of(folder, row): row for row in rows}.values():
        write_features(folder, row)
        report(f"features of the tower {row.tower}, {row.boxes} boxes")


def write_shards(folder: Path, name: str, boxes: str, size: Size) -> None:
    """Run the pipeline, which keeps finished shards."""
    output = folder / "shards" / f"{name}-{boxes}"
    if not is_current(output, {"done": True}):
        kind, settings = ("pairs", PREDICTED) if boxes == "predicted" else ("true", GIVEN)
        make_shards(folder / "scenes" / name / kind, output, *settings, f"ray.runner={size.runner}")
        record_settings(output, {"done": True})


def write_features(folder: Path, row: Variant) -> None:
    """Embed the training shards."""
    output, shards = features_of(folder, row), folder / "shards" / f"train-{row.boxes}"
    if not is_current(output, settings := {"tower": weights_sha256(TOWERS[row.tower])}):
        paths = [f"shards={shards}", f"model={TOWERS[row.tower]}", f"output={output}"]
        run_verb("features", [*paths, f"tokens={row.boxes == 'predicted'}", f"rows_per_shard={ROWS_PER_FILE}"])
        record_settings(output, settings)
