"""The ground and score stages on a GPU, from stored JPEGs to filtered boxes: images/s and how busy the GPU is.

    python -m benchmarks.gpu.stages [--grounders glip_t llmdet_t] [--rows 512] [--stored-px 512] [--batch 8 16 32]
                                    [--compile]

GLIP-T or LLMDet-T at 800 px, and a CLIP with a ViT-B/16, all with random weights: the grounder's lowest score is chosen
so that an image has about 8 boxes. Images have aspect ratios as on the web. `ground` and `score` are the stages alone,
and `both` one after the other, as a worker runs them on a shard.

`busy` is the share of the wall-clock time in which a kernel or a copy runs on the GPU, from a trace of some of the rows.
Aim: 0.9. `profile` has the gaps. `profile_with_host`, of the first batch size, says what the host did meanwhile, but is
slower; OUT/stages_STAGE_GROUNDER.json.gz is its trace.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from transformers import (
    BertTokenizer,
    GroundingDinoImageProcessor,
    GroundingDinoProcessor,
    MMGroundingDinoConfig,
    MMGroundingDinoForObjectDetection,
)

from benchmarks.gpu.data import stored_table
from benchmarks.gpu.glip import compile_image_tower
from benchmarks.gpu.session import Session, parser_of, run
from benchmarks.gpu.timing import peak_gib, reset_peak, synchronize
from benchmarks.gpu.tracing import trace
from pipeline.images import StoredImages
from pipeline.stages.ground.glip.config import CONFIGS
from pipeline.stages.ground.glip.model import Glip
from pipeline.stages.ground.glip.predict import GlipGrounder, load_glip_grounder
from pipeline.stages.ground.glip.text import Prompter
from pipeline.stages.ground.grounder import Grounder
from pipeline.stages.ground.hf_grounders import load_hf_grounder
from pipeline.stages.ground.load import GroundConfig
from pipeline.stages.ground.stage import Ground, kept_rows, spans_of
from pipeline.stages.score.filters import MINIATURE, ScoreConfig
from pipeline.stages.score.scorers import load_scorer
from pipeline.stages.score.stage import Score
from trainer.checkpoints.model import save_model
from trainer.data.preprocess import PreprocessConfig
from trainer.encoders.config import ImageConfig
from trainer.models.config import ModelConfig
from trainer.models.registry import build_model
from trainer.text.tokenizer import openai_tokenizer

WEIGHTS = Path(__file__).parents[2] / "demo" / "weights" / "glip"
EDGES, TINY_EDGES = (800, 1333), (64, 96)
BOXES_PER_IMAGE = 8
SAMPLE = 8  # images from which the lowest score is chosen
TRACED = 64  # rows of a trace
WITH_HOST = ("ground", "score")  # stages that are traced again with the operations of the host
KEEP_ALL = ScoreConfig(min_side_px=0, size_rule="area", min_score=0.0, min_clip_score=0.0)


def main() -> None:
    """Run the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, help="images of a pass; default: 512")
    parser.add_argument("--stored-px", type=int, default=512, help="shorter side of the stored images")
    parser.add_argument("--batch", type=int, nargs="+", help="ground.batch_size; default: 8 16 32")
    parser.add_argument("--grounders", nargs="+", choices=list(GROUNDERS), default=list(GROUNDERS))
    parser.add_argument("--compile", action="store_true", help="compile GLIP's image tower; takes minutes")
    run("stages", parser.parse_args(), measure)


def measure(session: Session) -> None:
    """Measure the stages with each batch size."""
    options = session.options
    n_rows = options.rows or (6 if options.tiny else 512)
    table = stored_table(0, n_rows, 48 if options.tiny else options.stored_px)
    with tempfile.TemporaryDirectory() as folder:
        scorer = load_scorer(
            scorer_folder(session, Path(folder, "clip")), str(session.device), 4 if options.tiny else 64
        )
        images = StoredImages()
        score = Score(ScoreConfig(), KEEP_ALL, scorer, decode=images)
        for name in options.grounders:
            grounder: Any = GROUNDERS[name](session, Path(folder, name))  # has a floor, which the protocol lacks
            grounder.floor = floor_for(grounder, table)
            for batch in options.batch or ([2] if options.tiny else [8, 16, 32]):
                ground = Ground(GroundConfig(batch_size=batch, floor=grounder.floor), grounder, decode=images)
                measure_stages(session, name, ground, score, table)


def glip_t(session: Session, folder: Path) -> Grounder:
    """Return GLIP-T with random weights, or the demo's miniature."""
    if session.options.tiny:
        return load_glip_grounder(WEIGHTS, session.device, 0.1)
    config = CONFIGS["glip_t"]
    torch.manual_seed(0)
    model = Glip(replace(config, detect=replace(config.detect, min_class_prob=0.0)))
    if session.options.compile:
        compile_image_tower(model)
    return GlipGrounder(model, Prompter(WEIGHTS / "vocab.txt", config.text), session.device, 0.1)


def llmdet_t(session: Session, folder: Path) -> Grounder:
    """Save an LLMDet-T with random weights, or a very small one, and load it as a job does.

    LLMDet-T is MM Grounding DINO with a Swin-T: the sizes that transformers has by default.
    """
    size: dict[str, Any] = {}
    if session.options.tiny:
        swin = {"model_type": "swin", "embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2]}
        size = {
            "backbone_config": {**swin, "out_features": ["stage2", "stage3", "stage4"]},
            "text_config": {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        }
        size |= {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "num_queries": 30, "encoder_ffn_dim": 16}
    torch.manual_seed(0)
    MMGroundingDinoForObjectDetection(MMGroundingDinoConfig(**size)).save_pretrained(folder)
    edges = TINY_EDGES if session.options.tiny else EDGES
    images = GroundingDinoImageProcessor(size={"shortest_edge": edges[0], "longest_edge": edges[1]})
    GroundingDinoProcessor(images, BertTokenizer(str(WEIGHTS / "vocab.txt"))).save_pretrained(folder)
    return load_hf_grounder(str(folder), session.device, 0.1)


def scorer_folder(session: Session, folder: Path) -> str:
    """Return the folder of a CLIP with a ViT-B/16 and random weights, or of the demo's miniature."""
    if session.options.tiny:
        return str(MINIATURE)
    model = build_model("clip", ModelConfig(image=ImageConfig(name="vit_base")))
    save_model(folder, model, tokenizer=openai_tokenizer(), preprocess=PreprocessConfig(), record={})
    return str(folder)


GROUNDERS: dict[str, Callable[[Session, Path], Grounder]] = {"glip_t": glip_t, "llmdet_t": llmdet_t}
"""Name of a grounder -> a function that makes it, given an empty folder."""


def floor_for(grounder: Any, table: pa.Table) -> float:
    """Return the lowest score with which some images have `BOXES_PER_IMAGE` boxes on average, by bisection."""
    rows = list(kept_rows(table).values())[:SAMPLE]
    decode = StoredImages()
    images = [decode(table["image"][i].as_py()) for i in range(len(rows))]
    output = grounder.forward(grounder.prepare(images, [row["caption"] for row in rows], [spans_of(r) for r in rows]))
    low, high = 0.0, 1.0
    for _ in range(12):
        grounder.floor = (low + high) / 2
        n_boxes = sum(len(found.boxes) for found in grounder.collect(output)) / len(rows)
        low, high = (grounder.floor, high) if n_boxes > BOXES_PER_IMAGE else (low, grounder.floor)
    return low


def measure_stages(session: Session, grounder: str, ground: Ground, score: Score, whole: pa.Table) -> None:
    """Measure the stages alone and together."""
    labels = {"grounder": grounder, "batch": ground.config.batch_size, "compiled": session.options.compile}
    part = whole.slice(0, TRACED)
    grounded, grounded_part = ground(whole), ground(part)  # also the warm-up
    passes: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "ground": (lambda: ground(whole), lambda: ground(part)),
        "score": (lambda: score(grounded), lambda: score(grounded_part)),
        "both": (lambda: score(ground(whole)), lambda: score(ground(part))),
    }
    for name, (call, traced) in passes.items():
        with session.measure(stage=name, **labels) as row:
            traced()
            ground.decode.clear()
            reset_peak(session.device)
            synchronize(session.device)
            start = time.perf_counter()
            call()
            synchronize(session.device)
            seconds = time.perf_counter() - start
            row |= {"images_per_s": whole.num_rows / seconds, "seconds": seconds, "peak_gib": peak_gib(session.device)}
            row["boxes_per_image"] = sum(map(len, filter(None, grounded["boxes"].to_pylist()))) / grounded.num_rows
            ground.decode.clear()
            path = session.path(f"{name}_{grounder}.json.gz")
            row["profile"] = trace(traced, 1, session.device, path, keep=False, host=False)
            row["busy"] = row["profile"]["busy_of_all"]
            is_first = not any((done["stage"], done["grounder"]) == (name, grounder) for done in session.rows)
            if name in WITH_HOST and is_first and session.device.type == "cuda":  # on a CPU, `profile` has the host too
                row["profile_with_host"] = trace(traced, 1, session.device, path)


if __name__ == "__main__":
    main()
