"""GLIP-T on a GPU at 800 px: images/s, FLOP/s and memory by batch size, with and without a compiled image tower.

    python -m benchmarks.gpu.glip [--batches 1 4 8 16 32 64] [--compile both|yes|no]

In bfloat16 on a GPU, with random weights, which does not change the speed, images of 800 x 1333 and captions of 24
word pieces. `mfu` and `share_of_products` as in `trainer_step`. `parts` are the shares of the image tower, of the text
tower, and of the rest: the fusion head. `profile`, of one batch size: kernels by kind, gaps and waits;
OUT/glip_BATCH.json.gz is its trace.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu.session import Session, parser_of, run
from benchmarks.gpu.timing import ceilings, peak_gib, reset_peak, time_calls, utilisation
from benchmarks.gpu.tracing import trace
from pipeline.stages.ground.glip.config import CONFIGS, MINIATURE, SwinConfig
from pipeline.stages.ground.glip.model import Glip
from pipeline.stages.ground.glip.predict import padded_size

MAX_COMPILED_SIZES = 128  # more than the number of padded sizes of images from 800 x 800 to 800 x 1333
SIZE, TINY_SIZE = (800, 1333), (64, 96)
N_PIECES = 24
SMALL_SWIN = SwinConfig(embed_dim=16, depths=(2, 2, 2, 2), heads=(1, 2, 2, 4), window=4)
PROFILED = 8  # images of the profiled batch


def main() -> None:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--batches", type=int, nargs="+", help="batch sizes; default: 8 16 1 4 32 64")
    parser.add_argument("--compile", choices=["both", "yes", "no"], default="both", help="compile the image tower")
    run("glip", parser.parse_args(), measure)


def measure(session: Session) -> None:
    """Measure each batch size, uncompiled and compiled, up to the first that does not fit into the memory."""
    options = session.options
    with session.measure(part="ceilings") as row:
        row |= ceilings(session.device, tiny=options.tiny)
    product = session.rows[0]["bf16_product_tflop_s"]
    for compiled in wanted(options, session.device):
        torch.compiler.reset()
        model = glip_t(tiny=options.tiny).to(session.device)
        if compiled:
            compile_image_tower(model)
        too_large = 1 << 30
        for batch in options.batches or ([1, 2] if options.tiny else [8, 16, 1, 4, 32, 64]):
            if batch < too_large:
                with session.measure(batch=batch, compiled=compiled) as row:
                    measure_batch(session, model, row, product)
                if "memory" in session.rows[-1].get("error", ""):
                    too_large = batch


def compile_image_tower(model: Glip) -> None:
    """Compile the backbone with torch.compile, once for each padded size and batch size.

    The head is not compiled: its shapes also depend on the prompt's length, and tracing it with symbolic shapes takes
    minutes.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MAX_COMPILED_SIZES)
    model.backbone.compile(dynamic=False)  # in place: a wrapper would change the state-dict keys and lose the hooks


def wanted(options: argparse.Namespace, device: torch.device) -> list[bool]:
    """Return whether the image tower is compiled, for each measurement. On a CPU, `both` leaves it uncompiled."""
    if options.compile == "both":
        return [False, True] if device.type == "cuda" else [False]
    return [options.compile == "yes"]


def glip_t(*, tiny: bool) -> Glip:
    """Return GLIP-T with random weights, or a very small network."""
    torch.manual_seed(0)
    small = replace(MINIATURE, backbone=SMALL_SWIN, head=replace(MINIATURE.head, rounds=1))
    return Glip(small if tiny else CONFIGS["glip_t"]).eval()


@torch.inference_mode()
def measure_batch(session: Session, model: Glip, row: dict[str, Any], product_tflop_s: float) -> None:
    """Measure one batch size."""
    device, is_tiny, b = session.device, session.options.tiny, row["batch"]
    height, width = TINY_SIZE if is_tiny else padded_size(SIZE)
    images = torch.randn(b, 3, height, width, device=device)
    ids = torch.randint(5, 1000, (b, N_PIECES), device=device)
    mask = torch.ones_like(ids)
    calls: dict[str, Callable[[], object]] = {
        "image_tower": lambda: model.backbone(images),
        "text_tower": lambda: model.language_backbone(ids, mask),
        "all": lambda: model(images, ids, mask),
    }
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        flops = count_flops(calls["all"])
        reset_peak(device)
        seconds = {name: time_calls(call, device, seconds=0 if is_tiny else 2) for name, call in calls.items()}
        step = seconds["all"].median
        row |= {"images_per_s": b / step, "ms": 1e3 * step, "peak_gib": peak_gib(device)}
        row |= {"tflop_per_image": flops / b / 1e12, **utilisation(flops, step, device, product_tflop_s)}
        towers = {name: time.median / step for name, time in seconds.items() if name != "all"}
        row["parts"] = {**towers, "head": 1 - sum(towers.values())}
        if b == PROFILED or is_tiny:
            path = session.path(f"{b}.json.gz")
            row["profile"] = trace(calls["all"], 1 if is_tiny else 3, device, path, keep=not row["compiled"])


def count_flops(call: Callable[[], object]) -> float:
    """Return the FLOPs of a call, with those of deformable convolutions."""
    mapping: Any = {torch.ops.torchvision.deform_conv2d: deform_flops}
    with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        call()
    return float(counter.get_total_flops())


def deform_flops(x: Any, weight: Any, offset: Any, *_: Any, **__: Any) -> int:
    """Return the FLOPs of a deformable convolution's matrix product from its shapes: 2 b o c kh kw h w."""
    (o, c, kh, kw), (b, _, height, width) = weight, offset
    return 2 * b * o * c * kh * kw * height * width


if __name__ == "__main__":
    main()
