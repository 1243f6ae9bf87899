"""The demo's input: `python -m demo.make_input` writes out/demo_input/.

    pairs.parquet    url, caption, id: what the job reads; most rows are scenes, the others what the web holds besides
    truth.json       id -> the phrases and boxes of the scenes, for the rows that have an image
    expected.json    {stage: {reason: n}}: how many rows each early stage must drop, and why

Seeds and order are fixed, so the same port gives the same bytes.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from demo.serve import HOST, PORT
from demo.world.layout import WorldConfig
from demo.world.scenes import DEMO_SEEDS, make_scene
from demo.world.sprites import HELD_OUT_STYLE, TRAIN_STYLES, Style
from demo.world.truth import TruePhrase, Truth, truth_of

INPUT = Path("out/demo_input")
N_ROWS = 240
CANVASES = ((448, 336), (384, 288), (336, 448), (384, 384))
PLAIN_FORMS = ("plain.jpg", "plain.jpg", "plain.png", "plain.webp")
ODD_FORMS = ("palette.gif", "cmyk.jpg", "deep.png", "alpha.png", "turned.jpg")
HELD_OUT_EVERY = 4  # every fourth scene is in the style that no model was trained on
EARLY_STAGES = ("read", "download", "captions", "parse")
"""Stages whose drops are known beforehand; what the models drop is theirs to say."""

Fate = tuple[str, str]  # (stage, reason) of a row that must be dropped


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the input; `truth` where it has a true picture, `fate` where it must be dropped."""

    id: str
    url: str | None
    caption: str
    truth: Truth | None = None
    fate: Fate | None = None


def scene_row(index: int, base: str, via: str = "", form: str | None = None) -> Row:
    """The index-th scene, served as a plain file unless `form` names another; `via` is a detour in its address."""
    held_out = index % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    style: Style = HELD_OUT_STYLE if held_out else TRAIN_STYLES[index % len(TRAIN_STYLES)]
    rng = Random(f"row {index}")
    width, height = rng.choice(CANVASES)
    form = form or rng.choice(PLAIN_FORMS)
    seed = DEMO_SEEDS[index]
    truth = truth_of(make_scene(seed, style, WorldConfig(width=width, height=height)))
    url = f"{base}{via}/scene/{style}/{seed}/{width}x{height}/{form}"
    return Row(id=f"scene-{index:04d}", url=url, caption=truth.caption, truth=truth)


def decorate(row: Row, id_: str, before: tuple[str, str] = ("", ""), after: tuple[str, str] = ("", "")) -> Row:
    """`row` with text around its caption, each as (raw, cleaned); the truth speaks of the cleaned caption."""
    assert row.truth is not None
    shift = len(before[1])
    phrases = tuple(
        replace(
            p, start=p.start + shift, end=p.end + shift, noun_start=p.noun_start + shift, noun_end=p.noun_end + shift
        )
        for p in row.truth.phrases
    )
    truth = replace(row.truth, caption=before[1] + row.caption + after[1], phrases=phrases)
    return replace(row, id=id_, caption=before[0] + row.caption + after[0], truth=truth)


def retell(row: Row, id_: str) -> Row:
    """The same picture with another caption, about the first thing that the old one names."""
    assert row.truth is not None
    phrase = next(p for p in row.truth.phrases if p.boxes)
    before = "Here you can see "
    caption = before + row.caption[phrase.start : phrase.end] + "."
    shift = len(before) - phrase.start
    told = TruePhrase(
        start=len(before),
        end=phrase.end + shift,
        noun_start=phrase.noun_start + shift,
        noun_end=phrase.noun_end + shift,
        kind=phrase.kind,
        boxes=phrase.boxes,
    )
    return replace(row, id=id_, caption=caption, truth=replace(row.truth, caption=caption, phrases=(told,)))


def repeats(first: Row) -> Iterator[Row]:
    """Rows that share the picture of `first`; they must follow it in the same shard."""
    yield replace(first, id="repeat-exact-1", truth=None, fate=("download", "duplicate"))
    yield replace(first, id="repeat-exact-2", truth=None, fate=("download", "duplicate"))
    yield retell(first, "repeat-other-caption")


def odd_rows(scenes: Iterator[int], base: str) -> Iterator[Row]:
    """Rows with something unusual about them that must nevertheless come through."""
    for form in ODD_FORMS:
        yield replace(scene_row(next(scenes), base, form=form), id=f"odd-{form}")
    yield replace(scene_row(next(scenes), base, via="/flaky"), id="odd-second-try")
    yield replace(scene_row(next(scenes), base, via="/redirect/3"), id="odd-three-redirects")
    yield decorate(scene_row(next(scenes), base), "odd-mojibake", after=(" â€“ from our cafÃ©", " – from our café"))
    yield decorate(
        scene_row(next(scenes), base),
        "odd-html",
        before=("&quot;Hi!&quot; ", '"Hi!" '),
        after=(" &lt;script&gt;alert(1)&lt;/script&gt;", " <script>alert(1)</script>"),
    )
    yield decorate(scene_row(next(scenes), base), "odd-emoji", before=("🎉👩‍👧 ", "🎉👩‍👧 "), after=(" 🎈", " 🎈"))
    yield decorate(scene_row(next(scenes), base), "odd-spaces", before=(" \t ", ""), after=("\n\n", ""))


def bad_rows(scenes: Iterator[int], base: str) -> Iterator[Row]:
    """Rows that must be dropped, each with the stage and the reason."""
    caption = "a red balloon near a cat"
    no_image: list[tuple[str, str | None, Fate]] = [
        ("no-url", None, ("read", "missing_url")),
        ("not-a-url", "htp:/broken link", ("download", "invalid_url")),
        ("private-network", "http://192.168.0.1/cat.jpg", ("download", "private_address")),
        ("cloud-metadata", "http://169.254.169.254/latest/meta-data/", ("download", "private_address")),
        ("redirect-inside", f"{base}/moved/inside.jpg", ("download", "private_address")),
        ("redirect-metadata", f"{base}/moved/metadata.jpg", ("download", "private_address")),
        ("redirect-file", f"{base}/moved/file.jpg", ("download", "invalid_url")),
        ("redirect-loop", f"{base}/moved/loop.jpg", ("download", "too_many_redirects")),
        ("unknown-host", "http://no-such-host.invalid/cat.jpg", ("download", "dns_error")),
        ("dead-port", f"http://{HOST}:1/cat.jpg", ("download", "connection_error")),
        ("no-tls", f"{base.replace('http:', 'https:')}/file/page.jpg", ("download", "tls_error")),
        ("not-found", f"{base}/status/404", ("download", "http_error")),
        ("forbidden", f"{base}/status/403", ("download", "http_error")),
        ("unavailable", f"{base}/status/503", ("download", "http_error")),
        ("silent", f"{base}/slow/silent.jpg", ("download", "timeout")),
        ("endless", f"{base}/slow/endless.jpg", ("download", "timeout")),
        ("huge", f"{base}/slow/huge.jpg", ("download", "too_many_bytes")),
        ("packed", f"{base}/file/packed.jpg", ("download", "too_many_bytes")),
        ("page", f"{base}/file/page.jpg", ("download", "not_an_image")),
        ("svg", f"{base}/file/drawing.svg", ("download", "not_an_image")),
        ("empty", f"{base}/file/empty.jpg", ("download", "not_an_image")),
        ("truncated", f"{base}/file/truncated.jpg", ("download", "undecodable")),
        ("bomb", f"{base}/file/bomb.png", ("download", "too_many_pixels")),
        ("tiny", f"{base}/file/tiny.png", ("download", "too_small")),
        ("strip", f"{base}/file/strip.png", ("download", "extreme_aspect_ratio")),
    ]
    for name, url, fate in no_image:
        yield Row(id=f"bad-{name}", url=url, caption=caption, fate=fate)
    for directive in ("noai", "noimageai"):
        row = scene_row(next(scenes), base, via=f"/robots/{directive}")
        yield replace(row, id=f"bad-{directive}", truth=None, fate=("download", "opted_out"))
    captions: list[tuple[str, str, Fate]] = [
        ("caption-empty", "", ("captions", "empty_caption")),
        ("caption-blank", " \n&nbsp; ", ("captions", "empty_caption")),
        ("caption-no-noun", "Wow, so very beautiful!", ("parse", "no_phrase")),
        ("caption-pronoun", "We like it.", ("parse", "no_phrase")),
        ("caption-abstract", "love and freedom", ("parse", "no_phrase")),
    ]
    for name, text, fate in captions:
        yield replace(scene_row(next(scenes), base), id=f"bad-{name}", caption=text, truth=None, fate=fate)


def make_rows(n_rows: int, port: int) -> list[Row]:
    """The whole input. Special rows are spread evenly; a small `n_rows` still holds all of them."""
    base = f"http://{HOST}:{port}"
    scenes = iter(range(len(DEMO_SEEDS)))
    first = scene_row(next(scenes), base)
    head = [first, *repeats(first)]
    special = [*odd_rows(scenes, base), *bad_rows(scenes, base)]
    plain = [scene_row(next(scenes), base) for _ in range(max(n_rows - len(head) - len(special), 0))]
    return head + spread(special, plain)


def spread(few: list[Row], many: list[Row]) -> list[Row]:
    """Both lists merged, each in its order, `few` at even distances."""
    places = [((index + 0.5) / max(len(rows), 1), index, row) for rows in (few, many) for index, row in enumerate(rows)]
    return [row for _, _, row in sorted(places, key=lambda place: place[:2])]


def expected_drops(rows: Iterable[Row]) -> dict[str, dict[str, int]]:
    """{stage: {reason: n}} over the rows that must be dropped."""
    counts: dict[str, dict[str, int]] = {stage: {} for stage in EARLY_STAGES}
    for (stage, reason), n in sorted(Counter(row.fate for row in rows if row.fate).items()):
        counts[stage][reason] = n
    return counts


def write_input(out: Path, n_rows: int, port: int) -> list[Row]:
    """Write the three files into `out` and return the rows."""
    rows = make_rows(n_rows, port)
    out.mkdir(parents=True, exist_ok=True)
    columns = {name: pa.array([getattr(row, name) for row in rows], pa.string()) for name in ("url", "caption", "id")}
    pq.write_table(pa.table(columns), out / "pairs.parquet")
    truth = {row.id: row.truth.to_json() for row in rows if row.truth}
    for name, value in (("truth.json", truth), ("expected.json", expected_drops(rows))):
        (out / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=INPUT)
    parser.add_argument("--rows", type=int, default=N_ROWS)
    parser.add_argument("--port", type=int, default=PORT, help="port that demo.serve will listen on")
    options = parser.parse_args()
    rows = write_input(options.out, options.rows, options.port)
    print(f"{len(rows)} rows in {options.out}; serve them with: python -m demo.serve --port {options.port}")


if __name__ == "__main__":
    main()
