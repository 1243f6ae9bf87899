"""Train the miniature CLIP with the trainer: `python -m demo.train_clip --keep FOLDER`, about half an hour on two cores.

The pipeline's scorer is a CLIP, so this one is trained on drawn boxes: scenes of both worlds are written as shards in
the layout of raw GRIT, and the trainer contrasts pictures with captions and boxes with their phrases. An interrupted
run resumes.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tarfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from demo.train_demo import JOBS, format_table, keep, print_status, run_verb
from demo.train_demo_data import (
    JPEG_QUALITY,
    ROOT,
    DataConfig,
    add_member,
    is_current,
    record_settings,
    settings_path,
    write_pictures,
)
from demo.world.scenes import HELD_OUT_SEEDS, TRAIN_SEEDS, Curriculum, Scene
from demo.world.sprites import TRAIN_STYLES
from demo.world.truth import object_boxes
from demo.world.wide.scenes import mixed_stream
from hypergrit_common.cli import BUG, EXIT_CODES, command
from hypergrit_common.config_help import print_text
from hypergrit_common.text import message_lines
from pipeline.images import encode_jpeg
from trainer.data.layouts import MIN_BOX_AREA_PX

OUTPUT: Final = ROOT / "out" / "train_clip"
SCENES_PER_SHARD: Final = 500
WIDE_SHARE: Final = 0.5
"""Share of the scenes that are of the wide world."""
PLAIN: Final = Curriculum(dense_first=0.0, dense_last=0.0, list_prompt_share=0.0)
"""No grids and no prompts: each scene has a caption."""

# The miniature GLIP has the same image tower and is initialised from it.
SETTINGS: Final = (
    *("model.embed_dim=128", "model.image.size_px=64", "model.image.kwargs.channels=[48,96,160,192]"),
    *("batch_size=128", "optim.steps=2000", "optim.lr=2e-3", "optim.warmup_steps=100", "optim.ema=0.995"),
    *("data.crop_scale=[0.7,1.0]", "data.augment.jitter=0.8", "data.augment.hue=0.03", "evaluation.every=500"),
)
WHOLE: Final = ("model.boxes_as_pairs=false", "data.crop_scale=[1.0,1.0]")
"""A tower that sees neither boxes nor parts of scenes."""


@command("run the same command again to resume")
def main() -> int:
    """Run the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], epilog=EXIT_CODES)
    parser.add_argument("--out", type=Path, default=OUTPUT, help="folder of the outputs scenes/, concepts/ and clip/")
    parser.add_argument("--scenes", type=int, default=30_000, help="number of training scenes")
    parser.add_argument("--shards", type=Path, metavar="FOLDER", help="tars of scenes in place of those that are drawn")
    parser.add_argument(
        "--whole", action="store_true", help="train on whole scenes and captions, without crops of boxes"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="also save the model in half precision here")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings of the trainer")
    options = parser.parse_args()
    folder = options.out.resolve()
    run = folder / "clip"
    arguments = [*SETTINGS, *(WHOLE if options.whole else ("model.boxes_as_pairs=true",)), f"output={run}"]
    try:
        if options.shards is None:
            make_data(folder, options.scenes)
            print_status(f"data in {folder}")
            arguments += [f"evaluation.image_folders=[{folder / 'concepts'}]"]
            arguments += [f"evaluation.shards={folder / 'scenes' / 'held_out'}"]
        else:
            arguments += ["evaluation.image_folders=[]", 'evaluation.shards=""']
        arguments.append(f"data.shards={options.shards or folder / 'scenes' / 'train'}")
        run_verb("train", [f"{JOBS}/base.yaml", "model_name=clip", *arguments, *options.overrides])
        if options.keep:
            words = ["python -m demo.train_clip", "--whole" * options.whole, "--keep", options.keep, *options.overrides]
            words[2:2] = ["--shards", options.shards] if options.shards else []
            keep(run, options.keep, " ".join(filter(None, map(str, words))), OUTPUT)
    except (RuntimeError, OSError) as error:  # its message may end with lines of a log
        print(message_lines(f"error: {error}"), file=sys.stderr)
        return BUG
    if (path := run / "evaluation.json").is_file():
        print_text(format_table("clip", json.loads(path.read_text("utf-8"))))
    return 0


def make_data(folder: Path, n_scenes: int) -> None:
    """Write what is missing: training and held-out shards, and pictures of single objects; replace what is not current."""
    for name, n, seeds in (
        ("train", n_scenes, TRAIN_SEEDS),
        ("held_out", min(n_scenes, SCENES_PER_SHARD), HELD_OUT_SEEDS),
    ):
        target, settings = folder / "scenes" / name, {"scenes": n, "seed": seeds[0], "wide": WIDE_SHARE}
        if not is_current(target, settings):
            write_scenes(target, n, seeds)
            record_settings(target, settings)
    pictures, settings = folder / "concepts", {"seed": HELD_OUT_SEEDS[len(HELD_OUT_SEEDS) // 2]}
    if not is_current(pictures, settings):
        shutil.rmtree(pictures, ignore_errors=True)
        write_pictures(pictures, int(settings["seed"]), DataConfig(styles=TRAIN_STYLES))
        record_settings(pictures, settings)


def write_scenes(folder: Path, n_scenes: int, seeds: Sequence[int]) -> None:
    """Write tars of scenes with their true boxes, drawn by one process for each core."""
    shutil.rmtree(folder, ignore_errors=True)
    settings_path(folder).unlink(missing_ok=True)
    folder.mkdir(parents=True)
    counts = [min(SCENES_PER_SHARD, n_scenes - first) for first in range(0, n_scenes, SCENES_PER_SHARD)]
    in_processes(partial(write_shard, folder, seeds), range(len(counts)), counts)


def in_processes(write: Callable[[int, int], None], numbers: Sequence[int], counts: Sequence[int]) -> None:
    """Call `write` with each number and count, in one process for each core."""
    # Not forked: a child would inherit locks that threads of torch and OpenCV hold, and wait for them without end.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(len(counts), os.cpu_count() or 1), mp_context=spawn) as pool:
        list(pool.map(write, numbers, counts))


def write_shard(folder: Path, seeds: Sequence[int], index: int, n_scenes: int) -> None:
    """Write a tar of scenes. The seeds of the shards are apart, because scenes without boxes are left out."""
    first = seeds[2 * SCENES_PER_SHARD * index]
    stream = filter(has_box, mixed_stream(first, TRAIN_STYLES, step=1, curriculum=PLAIN, wide_share=WIDE_SHARE))
    with tarfile.open(folder / f"{index:05d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, scene in enumerate(islice(stream, n_scenes)):
            key = f"{SCENES_PER_SHARD * index + number:09d}"
            add_member(tar, f"{key}.jpg", encode_jpeg(scene.image, JPEG_QUALITY))
            add_member(tar, f"{key}.json", json.dumps(grit_fields(scene)).encode())


def has_box(scene: Scene) -> bool:
    """True if a phrase has a box that the trainer uses."""
    boxes = [scene.objects[i].box for phrase in scene.phrases for i in phrase.objects]
    return any((x1 - x0) * (y1 - y0) > MIN_BOX_AREA_PX for x0, y0, x1, y1 in boxes)


def grit_fields(scene: Scene) -> dict[str, object]:
    """The JSON of a scene as in GRIT: [start, end, x_min, y_min, x_max, y_max, score] for each object of a phrase."""
    boxes = object_boxes(scene)
    chunks = [[phrase.start, phrase.end, *boxes[i], 1.0] for phrase in scene.phrases for i in phrase.objects]
    return {"caption": scene.caption, "noun_chunks": chunks, "ref_exps": []}


if __name__ == "__main__":
    sys.exit(main())
