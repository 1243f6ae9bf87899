"""The Poincaré disk of the small HyCoCLIP of demo/weights: held-out scenes, with the boxes that the pipeline found."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import numpy as np

from demo.train_demo_data import make_shards, write_pairs
from demo.world.scenes import HELD_OUT_SEEDS
from docs.figures.paths import ROOT
from hypergrit_common.plots import axes

N_SCENES: Final = 60
SIDE: Final = 4.6
KINDS: Final = {  # kind of a point -> its name and color, the outermost first
    "image": ("whole images", "#c2410c"),
    "box_image": ("boxes", "#1f6fb8"),
    "text": ("captions", "#237032"),
    "box_text": ("phrases", "#e08a00"),
}


def draw(target: Path) -> None:
    """Run the pipeline on scenes that no model saw, and draw their points with their distances from the origin."""
    with tempfile.TemporaryDirectory() as folder:
        write_pairs(Path(folder, "held_out.tar"), N_SCENES, HELD_OUT_SEEDS, ("openmoji",))
        make_shards(Path(folder, "held_out.tar"), Path(folder, "out"), "ray.runner=local")
        given = [f"shards={folder}/out/train", f"output={folder}/disk.json", "projection=norms"]
        command = [sys.executable, "-m", "trainer.analyses.disk", "demo/weights/hycoclip", *given]
        subprocess.run(command, cwd=ROOT, check=True)
        points = json.loads(Path(folder, "disk.json").read_text(encoding="utf-8"))["points"]
    scale = max((x * x + y * y) ** 0.5 for *_, x, y in points) * 1.05
    with axes(target, SIDE * 1.4, SIDE) as found:
        angles = np.linspace(0, 2 * np.pi, 200)
        found.plot(np.cos(angles), np.sin(angles), color="#adb5bd", linewidth=1)
        found.plot([0], [0], "+", color="#495057")
        for kind, (name, color) in KINDS.items():
            places = [(x / scale, y / scale) for _, which, _, x, y in points if which == kind]
            found.scatter(*zip(*places, strict=True), s=18, color=color, alpha=0.75, linewidths=0, label=name)
        found.set_aspect("equal")
        found.set_axis_off()
        found.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, reverse=True)
