"""Benchmark of GLIP: throughput and memory by batch size, and idle time of the network.

    python -m benchmarks.glip_throughput

1. Throughput at 800 x 1333 and 480 x 640, with achieved TFLOP/s and peak memory, for GLIP-T and Grounding DINO tiny.
   The weights are random, which does not affect speed.
2. Waiting: the throughput of the grounding stage from JPEGs to boxes, and the share of its wall-clock time in which the
   network is idle.

On a GPU, GLIP-T runs in bfloat16, and its image tower is compiled for the first part. `--tiny` replaces the networks
with very small ones, to test the command. Prints one JSON line per measurement.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import GroundingDinoConfig, GroundingDinoForObjectDetection

from pipeline.ground.config import GroundConfig
from pipeline.ground.glip.config import CONFIGS, MINIATURE, SwinConfig
from pipeline.ground.glip.images import padded_size
from pipeline.ground.glip.model import Glip
from pipeline.ground.glip.predict import GlipGrounder, compile_image_tower, load_glip_grounder
from pipeline.ground.glip.text import Prompter
from pipeline.ground.stage import Ground
from pipeline.images import encode_jpeg
from schemas.rows import PARSED

if TYPE_CHECKING:
    from demo.world.scenes import Scene

WEIGHTS = Path(__file__).parents[1] / "demo" / "weights" / "glip"
N_WORD_PIECES = 12  # "person. traffic light. dog. red remote control"
REPEATS = 5
SIZES = {"800": (800, 1333), "480": (480, 640)}
SMALL_SWIN = SwinConfig(embed_dim=16, depths=(2, 2, 2, 2), heads=(1, 2, 2, 4), window=4, drop_path=0.0)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="torch device")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4, 16, 32], help="batch sizes to measure")
    parser.add_argument("--tiny", action="store_true", help="use very small networks")
    options = parser.parse_args()
    for line in throughput(options):
        print(json.dumps({"name": "glip_throughput", "device": options.device, **line}), flush=True)
    print(json.dumps({"name": "glip_waiting", "device": options.device, **waiting(options)}))


@torch.inference_mode()
def throughput(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Measure each image size, network and batch size, up to the first batch size that does not fit into memory."""
    glip = (
        Glip(replace(MINIATURE, backbone=SMALL_SWIN) if options.tiny else CONFIGS["glip_t"]).eval().to(options.device)
    )
    dino = GroundingDinoForObjectDetection(dino_config(options.tiny)).eval().to(options.device)
    if options.device != "cpu":
        compile_image_tower(glip)
    for side, size in SIZES.items():
        height, width = (64, 96) if options.tiny else padded_size(size)
        for name in ("glip_t", "grounding_dino_tiny"):
            for b in options.batch_sizes:
                images = torch.randn(b, 3, height, width, device=options.device)
                ids = torch.randint(5, 1000, (b, N_WORD_PIECES), device=options.device)
                run = glip_call(glip, images, ids) if name == "glip_t" else dino_call(dino, images, ids)
                try:
                    line = speed(run, b, options.device, is_half=name == "glip_t")
                except torch.OutOfMemoryError:
                    torch.cuda.empty_cache()
                    break
                yield {"network": name, "side": side, "batch_size": b, **line}


def glip_call(model: Glip, images: Tensor, ids: Tensor) -> Callable[[], object]:
    return lambda: model(images, ids, torch.ones_like(ids))


def dino_call(model: GroundingDinoForObjectDetection, images: Tensor, ids: Tensor) -> Callable[[], object]:
    return lambda: model(pixel_values=images, input_ids=ids, attention_mask=torch.ones_like(ids))


def dino_config(tiny: bool) -> GroundingDinoConfig:
    """Return the released configuration of Grounding DINO tiny, or a smaller one for `--tiny`."""
    backbone = {"model_type": "swin", "out_features": ["stage2", "stage3", "stage4"], "window_size": 7}
    small = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "num_queries": 10, "encoder_ffn_dim": 16}
    small |= {"decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    text = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    more: dict[str, Any] = {**small, "text_config": text} if tiny else {}
    backbone |= {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2]} if tiny else {}
    return GroundingDinoConfig(backbone_config=backbone, **more)


def speed(run: Callable[[], object], b: int, device: str, *, is_half: bool) -> dict[str, object]:
    """Measure images per second, peak memory (of the GPU, or of the process on a CPU) and TFLOP/s."""
    is_cuda = torch.device(device).type == "cuda"
    with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=is_cuda and is_half):
        with (
            torch.compiler.set_stance("force_eager"),
            FlopCounterMode(
                display=False, custom_mapping={torch.ops.torchvision.deform_conv2d: deform_flops}
            ) as counter,
        ):
            run()
        run()  # compile
        if is_cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        for _ in range(REPEATS):
            run()
        if is_cuda:
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - start) / REPEATS
    peak = torch.cuda.max_memory_allocated() if is_cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    tflops = counter.get_total_flops() / 1e12
    return {
        "images_per_s": b / seconds, "peak_gb": peak / 1e9, "tflop_per_image": tflops / b, "tflop_per_s": tflops / seconds
    }  # fmt: skip


def deform_flops(x: Any, weight: Any, offset: Any, *_: Any, **__: Any) -> int:
    """Return the FLOPs of a deformable convolution's matrix product from its shapes: 2 b o c kh kw h w."""
    (o, c, kh, kw), (b, _, height, width) = weight, offset
    return 2 * b * o * c * kh * kw * height * width


def waiting(options: argparse.Namespace) -> dict[str, object]:
    """Measure the idle share of the network in the grounding stage.

    The network is GLIP-T at 480 px on a GPU, and the miniature GLIP on a CPU.
    """
    from demo.world.scenes import TEST_SEEDS, make_scene  # the GPU benchmarks run without the packages of the drawings

    use_miniature = options.tiny or options.device == "cpu"
    model = (
        load_glip_grounder(WEIGHTS, torch.device(options.device), 0.1, "caption").model
        if use_miniature
        else glip_t_at_480()
    )
    prompter = Prompter(WEIGHTS / "vocab.txt", model.config.text)
    grounder = GlipGrounder(model, prompter, torch.device(options.device), 0.1, "caption")
    stage = Ground(GroundConfig(batch_size=options.batch_sizes[-1]), grounder)
    table = stage_table([make_scene(TEST_SEEDS.start + i, "fluent") for i in range(8 if options.tiny else 256)])
    stage(table)
    with network_timer(model, options.device) as network_s:
        start = time.perf_counter()
        stage(table)
        total_s = time.perf_counter() - start
    return {"ratio": 1 - network_s() / total_s, "images_per_s": table.num_rows / total_s}


def glip_t_at_480() -> Glip:
    """Return GLIP-T with random weights at 480 px. It accepts the demo's word pieces, as its vocabulary is larger."""
    config = CONFIGS["glip_t"]
    return Glip(replace(config, detect=replace(config.detect, short_side_px=480))).eval()


@contextmanager
def network_timer(model: Glip, device: str) -> Iterator[Callable[[], float]]:
    """Yield a function that returns the seconds spent in the network so far, from GPU events or CPU time stamps."""
    marks: list[Any] = []
    is_cuda = torch.device(device).type == "cuda"

    def mark(*_: object) -> None:
        if is_cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            marks.append(event)
        else:
            marks.append(time.perf_counter())

    def seconds() -> float:
        pairs = zip(marks[::2], marks[1::2], strict=True)
        return sum(a.elapsed_time(b) / 1e3 if is_cuda else b - a for a, b in pairs)

    handles = [part.register_forward_pre_hook(mark) for part in (model.backbone, model.language_backbone)]
    handles += [part.register_forward_hook(mark) for part in (model.backbone, model.rpn)]
    yield seconds
    for handle in handles:
        handle.remove()


def stage_table(scenes: "list[Scene]") -> pa.Table:
    """Return scenes as a table in the schema after the parse stage."""
    rows = []
    for i, scene in enumerate(scenes):
        chunks = [{"start": p.start, "end": p.end, "root": -1, "removed": None} for p in scene.phrases]
        height, width = scene.image.shape[:2]
        row = {"key": f"{i:012d}", "source": "scenes", "source_row": i, "status": "kept", "caption": scene.caption}
        row |= {"noun_chunks": chunks, "width": width, "height": height, "image": encode_jpeg(scene.image)}
        rows.append({name: row.get(name) for name in PARSED.names})
    return pa.Table.from_pylist(rows, PARSED)


if __name__ == "__main__":
    main()
