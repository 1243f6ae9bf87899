"""Benchmark: download from a web with slow, broken and dead hosts, compared with img2dataset.

    python -m benchmarks.bad_hosts [--quick] [--rows 1000] [--rounds 3] [--timeout 10] [CASE ...]

Eight cases of 1,000 rows on about 430 hosts whose images take 0.2 s (median). Both downloaders run in processes of
their own, have 64 connections, in all and per host, and the same time-out, and resize and write what they get. All
names are answered by the benchmark's name server (web.py), and everything is on loopback. The rounds alternate;
each begins without connections, names or memory of hosts. A row on a bad host may fail; a loss of any other row by our
downloader ends the benchmark with exit code 1.

The table shows medians of rows a second, of all rows. The last line is one JSON object: `ratio` is the smallest ratio
of the cases.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

CONNECTIONS = 64
N_HOSTS = 430

CASES: dict[str, dict[str, Any]] = {
    "good, DNS 20 ms": {},
    "good, DNS 100 ms": {"dns_ms": 100},
    "1 % of hosts SERVFAIL after 3 s": {"bad": "fail", "share": 0.01},
    "1 % of hosts without DNS answer": {"bad": "mute", "share": 0.01},
    "5 % of hosts without DNS answer": {"bad": "mute", "share": 0.05},
    "5 % of hosts are black holes": {"bad": "hole", "share": 0.05},
    "one dead host has 5 % of rows": {"bad": "hole", "share": 0.05, "n_bad_hosts": 1},
    "one host of 1 s has all rows": {"single": True},
}
QUICK = ("good, DNS 20 ms", "1 % of hosts SERVFAIL after 3 s", "one dead host has 5 % of rows")


def make_urls(
    n: int,
    port: int,
    seed: int = 0,
    dns_ms: int = 20,
    bad: str = "",
    share: float = 0.0,
    n_bad_hosts: int | None = None,
    single: bool = False,
) -> list[str]:
    """The URLs of a case in a random order. `share` of the hosts, with that share of the rows, are of the kind `bad`."""
    rng = random.Random(seed)
    if single:
        return [f"http://ok-0.d{dns_ms}.test:{port}/1000/{i}" for i in range(n)]
    n_bad = round(share * n)
    bad_hosts = n_bad_hosts or max(1, round(share * N_HOSTS))
    n_hosts = min(N_HOSTS, n)
    hosts = list(range(n_hosts)) + rng.choices(range(n_hosts), [1 / (k + 1) for k in range(n_hosts)], k=n - n_hosts)
    rng.shuffle(hosts)
    names = [f"{bad}-{i % bad_hosts}" if i < n_bad else f"ok-{host}" for i, host in enumerate(hosts)]
    delays_ms = [min(2000, round(200 * rng.lognormvariate(0, 1))) for _ in names]
    urls = [
        f"http://{name}.d{dns_ms}.test:{port}/{ms}/{i}"
        for i, (name, ms) in enumerate(zip(names, delays_ms, strict=True))
    ]
    rng.shuffle(urls)
    return urls


def run_ours(urls: list[str], timeout_s: float, folder: Path) -> list[bool]:
    """Download with our stage and write a tar; return which rows are kept."""
    from benchmarks.downloaders import our_shard
    from pipeline.stages.download.config import DownloadConfig

    config = DownloadConfig(concurrency=CONNECTIONS, timeout_s=timeout_s)
    return our_shard(urls, folder, config)()


def run_img2dataset(urls: list[str], timeout_s: float, folder: Path) -> list[bool]:
    """Download with the shard loop of img2dataset and its defaults; return which rows succeeded."""
    from benchmarks.downloaders import img2dataset_shard

    img2dataset_shard(urls, folder, CONNECTIONS, timeout_s)()
    written = pq.read_table(folder / "00000.parquet", columns=["url", "status"])
    kept = set(written.filter(pa.compute.equal(written["status"], "success"))["url"].to_pylist())
    return [url in kept for url in urls]


SIDES: dict[str, Callable[[list[str], float, Path], list[bool]]] = {"ours": run_ours, "img2dataset": run_img2dataset}


def serve_side(side: str, dns_port: int, web_port: int, timeout_s: float) -> None:
    """Child process: for each line with a JSON list of URLs, download them and print the seconds and the kept rows."""
    from benchmarks.web import patch_names

    results, sys.stdout = sys.stdout, sys.stderr  # the libraries may print
    patch_names(dns_port)
    with tempfile.TemporaryDirectory() as folder:
        SIDES[side](make_urls(10, web_port), timeout_s, Path(folder))  # imports the libraries
        print("ready", file=results, flush=True)
        for line in sys.stdin:
            start = time.perf_counter()
            kept = SIDES[side](json.loads(line), timeout_s, Path(folder))
            print(json.dumps([time.perf_counter() - start, kept]), file=results, flush=True)


class Side:
    """A child process that downloads with one of SIDES."""

    def __init__(self, stack: ExitStack, name: str, dns_port: int, web_port: int, timeout_s: float) -> None:
        arguments = ["--side", name, "--dns", str(dns_port), "--web", str(web_port), "--timeout", str(timeout_s)]
        self.child = start(stack, "benchmarks.bad_hosts", *arguments)
        assert self.child.stdout is not None
        assert self.child.stdin is not None
        self.name, self.answers, self.orders = name, self.child.stdout, self.child.stdin

    def wait(self) -> None:
        if self.answers.readline().strip() != "ready":
            raise RuntimeError(f"{self.name} does not start")

    def run(self, urls: list[str]) -> tuple[float, list[bool]]:
        """Return the seconds, and which rows are kept."""
        self.orders.write(json.dumps(urls) + "\n")
        self.orders.flush()
        seconds, kept = json.loads(self.answers.readline())
        return seconds, kept


def start(stack: ExitStack, module: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a module as a child process that ends with the stack."""
    environment = {**os.environ, "NO_ALBUMENTATIONS_UPDATE": "1"}
    command = [sys.executable, "-m", module, *arguments]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    stack.callback(child.wait)
    stack.callback(child.kill)
    return child


def measure(cases: list[str], n: int, rounds: int, timeout_s: float) -> tuple[dict[str, float], int]:
    """Run the cases, print a line for each; return their ratios, and the innocent rows that ours lost in all."""
    ratios, lost_by_ours = {}, 0
    with ExitStack() as stack:
        world = start(stack, "benchmarks.web")
        assert world.stdout is not None
        dns_port, web_port = map(int, world.stdout.readline().split())
        sides = [Side(stack, name, dns_port, web_port, timeout_s) for name in SIDES]
        for side in sides:
            side.wait()
        print(f"{'case':<34}{'rows/s: ours':>14}{'img2dataset':>13}{'ratio':>7}{'lost: ours':>12}{'img2dataset':>13}")
        for case in cases:
            seconds: dict[str, list[float]] = {name: [] for name in SIDES}
            lost = dict.fromkeys(SIDES, 0)
            for seed in range(rounds):
                urls = make_urls(n, web_port, seed, **CASES[case])
                for side in sides:
                    spent_s, kept = side.run(urls)
                    seconds[side.name].append(spent_s)
                    innocent = [is_kept for url, is_kept in zip(urls, kept, strict=True) if "//ok-" in url]
                    lost[side.name] = max(lost[side.name], innocent.count(False))
            ours, theirs = (n / statistics.median(seconds[name]) for name in SIDES)
            ratios[case] = round(ours / theirs, 2)
            lost_by_ours += lost["ours"]
            print(
                f"{case:<34}{ours:>14.1f}{theirs:>13.1f}{ratios[case]:>7.2f}{lost['ours']:>12}{lost['img2dataset']:>13}",
                flush=True,
            )
    return ratios, lost_by_ours


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="download from bad hosts, compared with img2dataset")
    listed = "; ".join(CASES).replace("%", "%%")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"cases, by default all: {listed}")
    parser.add_argument("--quick", action="store_true", help="three cases, one round, 300 rows")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=10.0, help="time-out of both downloaders, in seconds")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--dns", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--web", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        serve_side(options.side, options.dns, options.web, options.timeout)
        return
    unknown = set(options.cases) - CASES.keys()
    if unknown:
        parser.error(f"unknown cases: {', '.join(sorted(unknown))}")
    cases = options.cases or list(QUICK if options.quick else CASES)
    rows, rounds = (300, 1) if options.quick else (options.rows, options.rounds)
    ratios, lost = measure(cases, rows, rounds, options.timeout)
    print(json.dumps({"name": "bad_hosts", "ratio": min(ratios.values()), "ratios": ratios, "lost_innocent": lost}))
    if lost:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
