"""Benchmark of GLIP on a CPU: `python -m benchmarks.glip`.

1. CPU seconds of GLIP-T with random weights (which do not affect speed) on one image of 213 x 311 with two threads,
   compared with a plain implementation, which pads the prompt to 256 word pieces and uses torchvision's deformable
   convolution. The authors' code took 9 to 14 CPU seconds on another machine.
2. The share of CPU time outside the network (word pieces, positive maps, boxes, NMS), for the miniature GLIP. Its
   network is the smallest, so this share is an upper bound for other models.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torchvision.ops import deform_conv2d

from benchmarks.turns import take_turns
from demo.world.scenes import TEST_SEEDS, make_scene
from pipeline.stages.ground.glip import fuse as dyconv
from pipeline.stages.ground.glip.config import CONFIGS
from pipeline.stages.ground.glip.model import Glip
from pipeline.stages.ground.glip.predict import load_glip_grounder
from pipeline.stages.ground.stage import select

WEIGHTS = Path(__file__).parents[1] / "demo" / "weights" / "glip"
N_WORD_PIECES = 12  # "person. traffic light. dog. red remote control"
REPEATS = 5


def main() -> None:
    """Print one JSON line per measurement."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(2)
    print(json.dumps({"name": "glip_t_cpu_forward", **forward()}), flush=True)
    print(json.dumps({"name": "glip_outside_the_network", **outside_the_network()}))


@torch.inference_mode()
def forward() -> dict[str, float]:
    """Measure one forward pass of our implementation and of the plain one."""
    model = Glip(CONFIGS["glip_t"]).eval()
    images = torch.randn(1, 3, 224, 320)  # 213 x 311, padded
    ids = torch.randint(1000, 2000, (1, 256))
    mask = (torch.arange(256) < N_WORD_PIECES).long()[None]

    def plain_deform_conv(x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
        return deform_conv2d(x, offset, weight, bias, stride=stride, padding=1, mask=mask)

    def plain() -> None:
        with patch.object(dyconv, "modulated_deform_conv", plain_deform_conv):
            model(images, ids, mask)

    calls = {"plain": plain, "ours": lambda: model(images, ids[:, :N_WORD_PIECES], mask[:, :N_WORD_PIECES])}
    plain_s, ours_s = (seconds.cpu for seconds in take_turns(calls, REPEATS).values())
    return {"ratio": plain_s / ours_s, "cpu_s": ours_s, "plain_cpu_s": plain_s}


def outside_the_network() -> dict[str, float]:
    """Measure the share of CPU time outside the network. Decoding and resizing of images are excluded."""
    torch.set_num_threads(1)
    grounder = load_glip_grounder(WEIGHTS, torch.device("cpu"), 0.1, "caption")
    scenes = [make_scene(TEST_SEEDS.start + i, "fluent") for i in range(64)]
    network_s = 0.0

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            nonlocal network_s
            start = time.process_time()
            result = call(*arguments)
            network_s += time.process_time() - start
            return result

        return wrapped

    backbone, ground = grounder.model.backbone.forward, grounder.model.ground
    shares, speeds = [], []
    with (
        patch.object(grounder.model.backbone, "forward", timed(backbone)),
        patch.object(grounder.model, "ground", timed(ground)),
    ):
        for _ in range(REPEATS + 1):
            network_s, start = 0.0, time.process_time()
            for first in range(0, len(scenes), 8):
                part = scenes[first : first + 8]
                spans = [[(phrase.start, phrase.end) for phrase in scene.phrases] for scene in part]
                prepared = grounder.prepare([s.image for s in part], [s.caption for s in part], spans)
                for grounded in grounder.collect(grounder.forward(prepared)):
                    select(grounded.boxes, 0.1, 0.6)
            total_s = time.process_time() - start
            shares.append(1 - network_s / total_s)
            speeds.append(len(scenes) / total_s)
    return {"ratio": median(shares[1:]), "images_per_cpu_s": median(speeds[1:])}


if __name__ == "__main__":
    main()
