"""How fast is GLIP, and how much of the grounding stage is not the network? `python -m benchmarks.glip`

First: GLIP-T (made-up weights: speed does not depend on them), one image of 213 x 311, two threads; our form against the
plain one (prompt padded to 256 word pieces, torchvision's deformable convolution). The authors' code took 9 to 14 CPU
seconds for the same on another machine. Second: the miniature on scenes, its images per second and the share of time
outside the network. On a GPU also GLIP-T's images per second at 800 x 1333 for several batch sizes, with peak memory.
"""

import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from torch import Tensor
from torchvision.ops import deform_conv2d

from demo.world.scenes import TEST_SEEDS, make_scene
from pipeline.ground.glip import dyconv
from pipeline.ground.glip.config import CONFIGS
from pipeline.ground.glip.model import Glip
from pipeline.ground.glip.predict import GlipGrounder, load_glip_grounder

WEIGHTS = Path(__file__).parents[1] / "demo" / "weights" / "glip"
N_WORD_PIECES = 12  # "person. traffic light. dog. red remote control"
SIZE = (224, 320)  # 213 x 311, padded
REPEATS = 5


def main() -> None:
    """One JSON line a question."""
    torch.set_num_threads(2)
    print(json.dumps(cpu_forward()))
    print(json.dumps(outside_the_network()))
    if torch.cuda.is_available():
        for batch_size in (1, 4, 16):
            print(json.dumps(gpu_forward(batch_size, (800, 1344))))


def cpu_seconds(run: Callable[[], object]) -> float:
    """Median CPU time of a call, threads included, after a first one that does not count."""
    run()
    spent = []
    for _ in range(REPEATS):
        before = resource.getrusage(resource.RUSAGE_SELF)
        run()
        after = resource.getrusage(resource.RUSAGE_SELF)
        spent.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return median(spent)


@torch.inference_mode()
def cpu_forward() -> dict[str, object]:
    """CPU seconds of one forward pass of GLIP-T, both forms in turn."""
    model = Glip(CONFIGS["glip_t"]).eval()
    images = torch.randn(1, 3, *SIZE)
    ids = torch.randint(1000, 2000, (1, 256))
    mask = (torch.arange(256) < N_WORD_PIECES).long()[None]
    short = (images, ids[:, :N_WORD_PIECES], mask[:, :N_WORD_PIECES])
    ours = cpu_seconds(lambda: model(*short))
    with patch.object(dyconv, "modulated_deform_conv", plain_deform_conv):
        plain = cpu_seconds(lambda: model(images, ids, mask))
    return {"name": "glip_t_cpu_forward", "ratio": plain / ours, "cpu_s": ours, "plain_cpu_s": plain}


def plain_deform_conv(x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    return deform_conv2d(x, offset, weight, bias, stride=stride, padding=1, mask=mask)


def outside_the_network() -> dict[str, object]:
    """Share of the miniature grounder's time that is not its network, and images per second."""
    grounder = load_glip_grounder(WEIGHTS, "cpu", 0.1, "caption")
    scenes = [make_scene(TEST_SEEDS.start + i, "fluent") for i in range(32)]
    spans = [[(phrase.start, phrase.end) for phrase in scene.phrases] for scene in scenes]
    network = Stopwatch(grounder)

    def run() -> None:
        for start in range(0, len(scenes), 8):
            part = slice(start, start + 8)
            grounder([s.image for s in scenes[part]], [s.caption for s in scenes[part]], spans[part])

    run()
    network.seconds, began = 0.0, time.perf_counter()
    run()
    whole = time.perf_counter() - began
    share = 1 - network.seconds / whole
    return {"name": "glip_outside_the_network", "ratio": share, "images_per_s": len(scenes) / whole}


class Stopwatch:
    """Adds up the time of a grounder's network."""

    def __init__(self, grounder: GlipGrounder) -> None:
        self.seconds = 0.0
        self.began = 0.0
        grounder.model.register_forward_pre_hook(self.start)
        grounder.model.register_forward_hook(self.stop)

    def start(self, *_: object) -> None:
        self.began = time.perf_counter()

    def stop(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self.began


@torch.inference_mode()
def gpu_forward(batch_size: int, size: tuple[int, int]) -> dict[str, object]:
    """Images per second and peak memory of GLIP-T in bfloat16."""
    model = Glip(CONFIGS["glip_t"]).eval().cuda()
    images = torch.randn(batch_size, 3, *size, device="cuda")
    ids = torch.randint(1000, 2000, (batch_size, 32), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    for repeat in range(REPEATS + 2):
        if repeat == 2:
            torch.cuda.synchronize()
            began = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            model(images, ids, torch.ones_like(ids))
    torch.cuda.synchronize()
    speed = REPEATS * batch_size / (time.perf_counter() - began)
    peak_gb = torch.cuda.max_memory_allocated() / 1e9
    return {"name": "glip_t_gpu_forward", "batch_size": batch_size, "images_per_s": speed, "peak_gb": peak_gb}


if __name__ == "__main__":
    main()
