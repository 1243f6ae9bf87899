"""Benchmark: the parse stage compared with spaCy's `nlp.pipe` (batch size 256) on one thread.

    python -m benchmarks.parse [--captions 1000] [--rounds 3]

Two baselines: `nlp.pipe` with all components, and without `ner` and `senter`, which no column needs. All return tokens,
tree, labels, lemmas and noun chunks as Python lists; the stage also decides which phrases are grounded, and expands
them. They run alternately, and CPU time is measured, so that other load affects all equally. The captions are those of
the demo's world, a longer form with typical additions of the web, and the labelled ones of `benchmarks.phrases`, each
with another number at its end. `equal` is the share of captions on which GRIT's form of the stage equals `nlp.pipe`.
The last line is one JSON object. Its `ratio` is the smallest speed-up over the second baseline among the cases without
repeated captions.
"""

import argparse
import gc
import json
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import pyarrow as pa
import spacy

from benchmarks.phrases import CAPTIONS, RULES, without
from demo.world.scenes import corpus
from pipeline.stages.parse.config import ParseConfig, spacy_package
from pipeline.stages.parse.parser import CaptionParser
from pipeline.stages.parse.stage import Parse
from schemas.rows import CAPTIONED

BATCH = 256
SHOTS = (
    "{} - stock photo",
    "Photo of {}, taken last summer in Portland, Oregon",
    "{} | Free Shipping on Orders over $50",
)
REMARKS = (
    "It's the owner's favourite, and she wouldn't have sold it for anything in the world.",
    "Buy 2, get 1 free! Available in sizes XS-3XL; handmade by local artists since 1987.",
    "The young woman who painted it was standing beside an old wooden table in the kitchen of her parents' house.",
)


def web_captions(n: int) -> list[str]:
    """Return longer captions, similar to those of the web: captions of the demo's world with typical additions."""
    rng = Random(0)
    return [
        f"{rng.choice(SHOTS).format(text)} {rng.choice(REMARKS)} {i}"
        for i, text in enumerate(corpus(n, seed_start=10**6))
    ]


def labelled_captions(n: int) -> list[str]:
    """Return captions, alt texts, titles, product names and credits; a number makes those after the first round new."""
    texts = [json.loads(line)["caption"] for line in CAPTIONS.read_text(encoding="utf-8").splitlines()]
    return [texts[i % len(texts)] + (f" {i}" if i >= len(texts) else "") for i in range(n)]


def with_repeats(captions: Sequence[str], share: float) -> list[str]:
    """Replace a share of the captions with repeats of the others, and shuffle all of them."""
    rng, distinct = Random(1), list(captions[: round(len(captions) * (1 - share))])
    texts = distinct + [rng.choice(distinct) for _ in range(len(captions) - len(distinct))]
    rng.shuffle(texts)
    return texts


def as_table(captions: Sequence[str]) -> pa.Table:
    """Return captions as a table in the schema after the captions stage."""
    row = {"key": "0", "source": "benchmark", "source_row": 0, "status": "kept"}
    return pa.Table.from_pylist([{**row, "caption": caption} for caption in captions], CAPTIONED)


def nlp_pipe(nlp: spacy.Language, captions: Sequence[str]) -> list[object]:
    """Compute the same columns with `nlp.pipe`."""
    return [
        (
            [(t.idx, t.idx + len(t), t.head.i, t.dep_, t.pos_, t.tag_, t.lemma_) for t in doc],
            [(chunk.start_char, chunk.end_char, chunk.root.i) for chunk in doc.noun_chunks],
        )
        for doc in nlp.pipe(captions, batch_size=BATCH)
    ]


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def agreement(nlp: spacy.Language, captions: Sequence[str]) -> float:
    """Return the share of captions with the same tokens, tree, labels, lemmas and noun chunks in GRIT's form."""
    parser = CaptionParser(ParseConfig(model="en_core_web_sm"), without(*RULES))
    ours = [(parse.tokens, [chunk[:3] for chunk in parse.chunks]) for parse in parser.parse(captions)]
    return sum(a == b for a, b in zip(ours, nlp_pipe(nlp, captions), strict=True)) / len(captions)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--captions", type=int, default=1000, help="number of captions")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds; the fastest is reported")
    arguments = parser.parse_args()
    package = spacy_package("en_core_web_sm")
    stage, full, lean = Parse(ParseConfig()), spacy.load(package), spacy.load(package, exclude=["ner", "senter"])
    cases = {
        "world": list(corpus(arguments.captions)),
        "web-like": web_captions(arguments.captions),
        "labelled": labelled_captions(arguments.captions),
    }
    same = {name: agreement(full, captions) for name, captions in cases.items()}  # also warms up
    gc.freeze()  # as in a worker
    results = []
    print("captions   repeated  nlp.pipe/s  lean/s   ours/s   ratio  ratio to lean")
    for name, captions in cases.items():
        for share in (0.0, 0.2, 0.5):
            texts = with_repeats(captions, share)
            table = as_table(texts)
            work: dict[str, Callable[[], object]] = {
                "full": partial(nlp_pipe, full, texts),
                "lean": partial(nlp_pipe, lean, texts),
                "ours": partial(stage, table),
            }
            times = dict.fromkeys(work, float("inf"))
            for _ in range(arguments.rounds):
                times = {side: min(times[side], cpu_seconds(run)) for side, run in work.items()}
            ratios = {side: round(times[side] / times["ours"], 2) for side in ("full", "lean")}
            results.append({"captions": name, "repeated": share, **ratios})
            speeds = "".join(f"{len(texts) / times[side]:9.0f}" for side in work)
            print(f"{name:9} {share:9.0%}  {speeds} {ratios['full']:7.2f} {ratios['lean']:14.2f}", flush=True)
    ratio = min(row["lean"] for row in results if row["repeated"] == 0)  # type: ignore[type-var]
    print(json.dumps({"name": "parse", "ratio": ratio, "equal": same, "cases": results}))


if __name__ == "__main__":
    main()
