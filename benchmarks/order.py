"""Benchmark: the order of samples on shards of one subreddit each, as in the official RedCaps tars.

    python -m benchmarks.order [--batch 2048]

12 million pairs of 350 subreddits with the skewed sizes of RedCaps; a shard holds one year of a subreddit. Counts the
distinct subreddits of batches in the trainer's order.
The last line is one JSON object. `ratio`: distinct subreddits in a batch, over those of as many independent draws.
"""

import argparse
import json
import statistics

import numpy as np

from trainer.data.order import BlockOrder, block_width

PAIRS, SUBREDDITS, YEARS = 12_000_000, 350, 12
POSITIONS = 100
SPREAD = 0.8  # standard deviation of the logarithm of a subreddit's size


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=2048, help="pairs of a global batch")
    batch = parser.parse_args().batch
    generator = np.random.default_rng(0)
    sizes = PAIRS * (shares := generator.lognormal(0, SPREAD, SUBREDDITS)) / shares.sum()
    counts = np.maximum(1, np.outer(sizes, generator.dirichlet(np.full(YEARS, 2.0)))).astype(int).ravel()
    source = np.repeat(np.arange(len(counts)) // YEARS, counts)
    order = BlockOrder(len(source), 0, block_width(batch))
    draws = [order.take(int(at), batch).samples for at in generator.integers(0, len(source), POSITIONS)]
    blocks = statistics.mean(len(set(source[samples])) for samples in draws)
    independent = statistics.mean(len(set(generator.choice(source, batch))) for _ in draws)
    print(f"distinct subreddits of {SUBREDDITS} in a batch of {batch}, mean of {POSITIONS} batches")
    print(f"  independent draws {independent:6.1f}\n  blocks {blocks:17.1f}")
    print(json.dumps({"name": "order", "ratio": round(blocks / independent, 3), "batch": batch, "distinct": blocks}))


if __name__ == "__main__":
    main()
