"""Write the demo's input to out/demo_input/: `python -m demo.make_input`.

    pairs.parquet    url, caption, id: the input of the job: mostly scenes, and some rows with problems that occur on the web
    pairs.csv        the same rows
    truth.json       {id: ground truth}: phrases and boxes of the rows that have a scene
    expected.json    {stage: {reason: n}}: rows that each early stage must drop, by reason

Seeds and order are fixed, so the same port gives the same bytes.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from demo.serve import HOST, PORT
from demo.world.layout import WorldConfig
from demo.world.scenes import DEMO_SEEDS, make_scene
from demo.world.sprites import HELD_OUT_STYLE, TRAIN_STYLES, Style
from demo.world.truth import TruePhrase, Truth, truth_of
from hypergrit_common.cli import EXIT_CODES, command

INPUT = Path("out/demo_input")
N_ROWS = 240
CANVASES = ((448, 336), (384, 288), (336, 448), (384, 384))
PLAIN_VARIANTS = ("plain.jpg", "plain.jpg", "plain.png", "plain.webp")
UNUSUAL_VARIANTS = ("palette.gif", "cmyk.jpg", "deep.png", "alpha.png", "turned.jpg")
HELD_OUT_EVERY = 4  # every fourth scene uses the held-out style
EARLY_STAGES = ("read", "download", "captions", "parse")
"""Stages whose drops are known in advance; those of later stages depend on the models."""


class ExpectedDrop(NamedTuple):
    """The stage that must drop a row, and the reason."""

    stage: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class InputRow:
    """An input row with either the ground truth of its scene or the drop that it must cause."""

    id: str
    url: str | None
    caption: str
    truth: Truth | None = None
    expected_drop: ExpectedDrop | None = None


def scene_row(index: int, base: str, prefix: str = "", variant: str | None = None) -> InputRow:
    """Return the row of the index-th scene.

    `base` is the server's URL and `prefix` a path before the scene's, such as "/flaky". `variant` is the encoding of the
    image (default: a random plain one).
    """
    held_out = index % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    style: Style = HELD_OUT_STYLE if held_out else TRAIN_STYLES[index % len(TRAIN_STYLES)]
    rng = Random(f"row {index}")
    width, height = rng.choice(CANVASES)
    variant = variant or rng.choice(PLAIN_VARIANTS)
    seed = DEMO_SEEDS[index]
    truth = truth_of(make_scene(seed, style, WorldConfig(width=width, height=height)))
    url = f"{base}{prefix}/scene/{style}/{seed}/{width}x{height}/{variant}"
    return InputRow(id=f"scene-{index:04d}", url=url, caption=truth.caption, truth=truth)


class Affix(NamedTuple):
    """Text added to a caption: as written in the input, and as cleaned by the captions stage."""

    raw: str = ""
    cleaned: str = ""


NO_AFFIX = Affix()


def with_affixes(row: InputRow, id_: str, before: Affix = NO_AFFIX, after: Affix = NO_AFFIX) -> InputRow:
    """Return `row` with text around its caption; the spans of the ground truth refer to the cleaned caption."""
    assert row.truth is not None
    shift = len(before.cleaned)
    phrases = tuple(
        replace(
            p, start=p.start + shift, end=p.end + shift, noun_start=p.noun_start + shift, noun_end=p.noun_end + shift
        )
        for p in row.truth.phrases
    )
    truth = replace(row.truth, caption=before.cleaned + row.caption + after.cleaned, phrases=phrases)
    return replace(row, id=id_, caption=before.raw + row.caption + after.raw, truth=truth)


def with_other_caption(row: InputRow, id_: str) -> InputRow:
    """Return a row with the same image and a caption that mentions only the first grounded phrase."""
    assert row.truth is not None
    phrase = next(p for p in row.truth.phrases if p.boxes)
    before = "Here you can see "
    caption = before + row.caption[phrase.start : phrase.end] + "."
    shift = len(before) - phrase.start
    kept = TruePhrase(
        start=len(before),
        end=phrase.end + shift,
        noun_start=phrase.noun_start + shift,
        noun_end=phrase.noun_end + shift,
        kind=phrase.kind,
        boxes=phrase.boxes,
    )
    return replace(row, id=id_, caption=caption, truth=replace(row.truth, caption=caption, phrases=(kept,)))


def repeated_rows(first: InputRow) -> Iterator[InputRow]:
    """Yield rows with the image of `first`. They must follow it in the same shard, since duplicates are found per shard."""
    duplicate = ExpectedDrop("download", "duplicate")
    yield replace(first, id="repeat-exact-1", truth=None, expected_drop=duplicate)
    yield replace(first, id="repeat-exact-2", truth=None, expected_drop=duplicate)
    yield with_other_caption(first, "repeat-other-caption")


def unusual_rows(scenes: Iterator[int], base: str) -> Iterator[InputRow]:
    """Yield unusual rows that must be kept. `scenes` yields unused scene indices."""
    for variant in UNUSUAL_VARIANTS:
        yield replace(scene_row(next(scenes), base, variant=variant), id=f"odd-{variant}")
    yield replace(scene_row(next(scenes), base, prefix="/flaky"), id="odd-second-try")
    yield replace(scene_row(next(scenes), base, prefix="/redirect/3"), id="odd-three-redirects")
    mojibake = Affix(" â€“ from our cafÃ©", " – from our café")
    yield with_affixes(scene_row(next(scenes), base), "odd-mojibake", after=mojibake)
    yield with_affixes(
        scene_row(next(scenes), base),
        "odd-html",
        before=Affix("&quot;Hi!&quot; ", '"Hi!" '),
        after=Affix(" &lt;script&gt;alert(1)&lt;/script&gt; &lt;3", " <3"),
    )
    family, balloon = Affix("🎉👩‍👧 ", "🎉👩‍👧 "), Affix(" 🎈", " 🎈")
    yield with_affixes(scene_row(next(scenes), base), "odd-emoji", before=family, after=balloon)
    yield with_affixes(scene_row(next(scenes), base), "odd-spaces", before=Affix(raw=" \t "), after=Affix(raw="\n\n"))


def dropped_rows(scenes: Iterator[int], base: str) -> Iterator[InputRow]:
    """Yield rows that must be dropped, each with the expected stage and reason."""
    yield from rows_without_image(base)
    for directive in ("noai", "noimageai"):
        row = scene_row(next(scenes), base, prefix=f"/robots/{directive}")
        yield replace(row, id=f"bad-{directive}", truth=None, expected_drop=ExpectedDrop("download", "opted_out"))
    captions = [
        ("caption-empty", "", ExpectedDrop("captions", "empty_caption")),
        ("caption-blank", " \n&nbsp; ", ExpectedDrop("captions", "empty_caption")),
        ("caption-no-noun", "Wow, so very beautiful!", ExpectedDrop("parse", "no_phrase")),
        ("caption-pronoun", "We like it.", ExpectedDrop("parse", "no_phrase")),
        ("caption-abstract", "love and freedom", ExpectedDrop("parse", "no_phrase")),
    ]
    for name, text, drop in captions:
        yield replace(scene_row(next(scenes), base), id=f"bad-{name}", caption=text, truth=None, expected_drop=drop)


def rows_without_image(base: str) -> Iterator[InputRow]:
    """Yield rows whose URL does not give a usable image."""
    cases: list[tuple[str, str | None, str]] = [
        ("not-a-url", "htp:/broken link", "invalid_url"),
        ("private-network", "http://192.168.0.1/cat.jpg", "private_address"),
        ("cloud-metadata", "http://169.254.169.254/latest/meta-data/", "private_address"),
        ("redirect-inside", f"{base}/moved/inside.jpg", "private_address"),
        ("redirect-metadata", f"{base}/moved/metadata.jpg", "private_address"),
        ("redirect-file", f"{base}/moved/file.jpg", "invalid_url"),
        ("redirect-loop", f"{base}/moved/loop.jpg", "too_many_redirects"),
        ("unknown-host", "http://no-such-host.invalid/cat.jpg", "dns_error"),
        ("dead-port", f"http://{HOST}:2/cat.jpg", "connection_error"),
        ("no-tls", f"{base.replace('http:', 'https:')}/file/page.jpg", "tls_error"),
        ("not-found", f"{base}/status/404", "http_error"),
        ("forbidden", f"{base}/status/403", "http_error"),
        ("unavailable", f"{base}/status/503", "http_error"),
        ("silent", f"{base}/slow/silent.jpg", "timeout"),
        ("endless", f"{base}/slow/endless.jpg", "timeout"),
        ("huge", f"{base}/slow/huge.jpg", "too_many_bytes"),
        ("packed", f"{base}/file/packed.jpg", "too_many_bytes"),
        ("page", f"{base}/file/page.jpg", "not_an_image"),
        ("svg", f"{base}/file/drawing.svg", "not_an_image"),
        ("empty", f"{base}/file/empty.jpg", "not_an_image"),
        ("truncated", f"{base}/file/truncated.jpg", "undecodable"),
        ("bomb", f"{base}/file/bomb.png", "too_many_pixels"),
        ("tiny", f"{base}/file/tiny.png", "too_small"),
        ("strip", f"{base}/file/strip.png", "extreme_aspect_ratio"),
    ]
    caption = "a red balloon near a cat"
    yield InputRow(id="bad-no-url", url=None, caption=caption, expected_drop=ExpectedDrop("read", "missing_url"))
    for name, url, reason in cases:
        yield InputRow(id=f"bad-{name}", url=url, caption=caption, expected_drop=ExpectedDrop("download", reason))


def make_rows(n_rows: int, port: int, only_good: bool = False) -> list[InputRow]:
    """Return all input rows.

    Special rows are spread evenly; all of them are included even if `n_rows` is smaller. With `only_good`, the rows are
    `n_rows` ordinary scenes.
    """
    base = f"http://{HOST}:{port}"
    scenes = iter(range(len(DEMO_SEEDS)))
    if only_good:
        return [scene_row(next(scenes), base) for _ in range(n_rows)]
    first = scene_row(next(scenes), base)
    head = [first, *repeated_rows(first)]
    special = [*unusual_rows(scenes, base), *dropped_rows(scenes, base)]
    plain = [scene_row(next(scenes), base) for _ in range(max(n_rows - len(head) - len(special), 0))]
    return head + interleave(special, plain)


def interleave(first: list[InputRow], second: list[InputRow]) -> list[InputRow]:
    """Merge two lists, each in its order and evenly spaced."""
    keyed = [
        ((index + 0.5) / max(len(rows), 1), index, row) for rows in (first, second) for index, row in enumerate(rows)
    ]
    return [row for _, _, row in sorted(keyed, key=lambda item: item[:2])]


def expected_drops(rows: Iterable[InputRow]) -> dict[str, dict[str, int]]:
    """Count the expected drops as {stage: {reason: n}}."""
    counts: dict[str, dict[str, int]] = {stage: {} for stage in EARLY_STAGES}
    for (stage, reason), n in sorted(Counter(row.expected_drop for row in rows if row.expected_drop).items()):
        counts[stage][reason] = n
    return counts


def write_input(out: Path, n_rows: int, port: int, only_good: bool = False) -> list[InputRow]:
    """Write the files to `out`. Returns the rows."""
    rows = make_rows(n_rows, port, only_good)
    out.mkdir(parents=True, exist_ok=True)
    columns = {name: pa.array([getattr(row, name) for row in rows], pa.string()) for name in ("url", "caption", "id")}
    pq.write_table(pa.table(columns), out / "pairs.parquet")
    pyarrow.csv.write_csv(pa.table(columns), out / "pairs.csv")
    truth = {row.id: row.truth.to_json() for row in rows if row.truth}
    for name, value in (("truth.json", truth), ("expected.json", expected_drops(rows))):
        (out / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return rows


@command()
def main() -> int:
    """Run the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], epilog=EXIT_CODES)
    parser.add_argument("--out", type=Path, default=INPUT, help="output folder")
    parser.add_argument(
        "--rows",
        type=int,
        default=N_ROWS,
        help="number of rows; the 47 special rows are always included, unless --only-good is given",
    )
    parser.add_argument("--only-good", action="store_true", help="write only ordinary scenes, no special rows")
    parser.add_argument("--port", type=int, default=PORT, help="port of demo.serve")
    options = parser.parse_args()
    rows = write_input(options.out, options.rows, options.port, options.only_good)
    print(f"{len(rows)} rows in {options.out}; serve their images with: python -m demo.serve --port {options.port}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
