"""Benchmark: the parse stage compared with spaCy's `nlp.pipe` (all components, batch size 256) on one thread.

    python -m benchmarks.parse [--captions 1000] [--rounds 3]

Both return tokens, tree, labels, lemmas and noun chunks as Python lists. They run alternately, and CPU time is
measured, so that other load affects both equally. The last line is one JSON object. Its `ratio` is the smallest
speed-up among the cases without repeated captions.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from random import Random

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import pyarrow as pa
import spacy

from demo.world.scenes import corpus
from pipeline.parse.config import ParseConfig
from pipeline.parse.spacy_model import spacy_package
from pipeline.parse.stage import Parse
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


def agreement(stage: Parse, nlp: spacy.Language, captions: Sequence[str]) -> float:
    """Return the share of captions with the same tokens, tree, labels, lemmas and noun chunks."""
    ours = [(parse.tokens, [chunk[:3] for chunk in parse.chunks]) for parse in stage.parser.parse(captions)]
    return sum(a == b for a, b in zip(ours, nlp_pipe(nlp, captions), strict=True)) / len(captions)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--captions", type=int, default=1000, help="number of captions")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds; the fastest is reported")
    arguments = parser.parse_args()
    stage, nlp = Parse(ParseConfig()), spacy.load(spacy_package("en_core_web_sm"))
    world, web = list(corpus(arguments.captions)), web_captions(arguments.captions)
    same = {"world": agreement(stage, nlp, world), "web-like": agreement(stage, nlp, web)}  # also warms up both sides
    results = []
    print("captions   repeated  nlp.pipe/s   ours/s   ratio")
    for name, captions in (("world", world), ("web-like", web)):
        for share in (0.0, 0.2, 0.5):
            texts = with_repeats(captions, share)
            table = as_table(texts)
            theirs, ours = float("inf"), float("inf")
            for _ in range(arguments.rounds):
                theirs = min(theirs, cpu_seconds(lambda texts=texts: nlp_pipe(nlp, texts)))  # type: ignore[misc]
                ours = min(ours, cpu_seconds(lambda table=table: stage(table)))  # type: ignore[misc]
            results.append({"captions": name, "repeated": share, "ratio": round(theirs / ours, 2)})
            speeds = f"{len(texts) / theirs:10.0f} {len(texts) / ours:8.0f} {theirs / ours:7.2f}"
            print(f"{name:9} {share:9.0%}  {speeds}", flush=True)
    ratio = min(row["ratio"] for row in results if row["repeated"] == 0)  # type: ignore[type-var]
    print(json.dumps({"name": "parse", "ratio": ratio, "equal": same, "cases": results}))


if __name__ == "__main__":
    main()
