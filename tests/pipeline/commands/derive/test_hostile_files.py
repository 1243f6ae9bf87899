"""Texts of rows and values in the files of an output that a stranger made: each is data, whatever it holds."""

import hashlib
import io
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from hypergrit_common.errors import UserError
from pipeline.commands import explore, export, rewrite, takedown
from pipeline.commands.verify import main as verify
from pipeline.output.ledger import read_batch, read_rows
from pipeline.output.store import Store
from pipeline.output.write.arrow import write_arrow
from pipeline.read.samples import indexed_starts
from schemas.rows import SCORED
from tests.pipeline.commands.derive.outputs import LOCAL, Row, kept, make_output, picture, record_job
from tests.pipeline.commands.derive.rows import manifests_of, rows_of
from trainer.data.indexing import build_index

FORGED = "00:00:00 INFO forged"
TEXT = f"a\n{FORGED}\r\x1b[2J\u202e"
URL = f"https://x.example/a\n{FORGED}"
VALUES = (7, -1, 10**30, [], {}, None, True, TEXT, float("inf"), [[{"a": [1]}]], {"a": {"b": None}})
Key = str | int


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with all its files, and with a hostile text in each text of a row."""
    output = tmp_path_factory.mktemp("made") / "out"
    rows = [kept(picture(n), url=URL, id=TEXT, extra=json.dumps({TEXT: TEXT})) for n in range(4)]
    record_job(make_output(output, {0: rows[:2], 1: rows[2:]}, rows_per_shard=2), 4)
    (output / "_timings").mkdir(exist_ok=True)
    run = {"wall_seconds": 3.0, "shards": 2, "rows": 4, "started": "2026-01-01T00:00:00+00:00", "command": "x"}
    (output / "_timings/run.json").write_text(json.dumps(run))
    assert explore.main([str(output), "report=true"]) == 0
    stats = json.loads((output / "stats.json").read_text())
    part = {"precision": 0.5, "recall": 0.5, "n_right": 3}
    (output / "stats.json").write_text(json.dumps(stats | {"truth": {**part, "small": part}}))
    return output


@pytest.fixture
def output(made: Path, tmp_path: Path) -> Path:
    (tmp_path / "list.txt").write_text("x.example\n")
    return Path(shutil.copytree(made, tmp_path / "out"))


def run(verb: str, output: Path) -> int:
    new = output.parent / "new"
    listed = f"list={output.parent / 'list.txt'}"
    match verb:
        case "rewrite":
            return rewrite.main([f"source={output}", f"output={new}", *LOCAL])
        case "takedown" | "dry_run":
            return takedown.main([str(output), listed, f"dry_run={str(verb == 'dry_run').lower()}", *LOCAL])
        case "verify":
            return int(verify([str(output), "processes=1"]))
        case "static":
            return explore.main([str(output), f"static={new}", f"cache={output.parent / 'cache'}"])
        case "export":
            return export.main([str(output), f"output={new}", "format=odvg"])
        case _:
            return int(explore.main([str(output), verb]))


@pytest.mark.parametrize("verb", ["dry_run", "row=0", "report=true", "verify"])
def test_a_text_of_a_row_stays_in_its_line(output: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert run(verb, output) == 0
    printed = "".join(capsys.readouterr())
    assert not [line for line in printed.splitlines() if line.startswith(FORGED)]
    assert printed.replace("\n", "").isprintable()
    if verb in ("dry_run", "row=0"):
        assert f"x.example/a\\n{FORGED}" in printed


def places(value: Any, at: tuple[Key, ...] = ()) -> Iterator[tuple[Key, ...]]:
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*at, key))


def put(path: Path, at: tuple[Key, ...], value: Any) -> None:
    """Replace a value of a JSON or YAML file."""
    content = yaml.safe_load(path.read_text())
    inner = content
    for key in at[:-1]:
        inner = inner[key]
    if at:
        inner[at[-1]] = value
    changed = content if at else value
    path.write_text(yaml.safe_dump(changed) if path.suffix == ".yaml" else json.dumps(changed))


FOUND: list[tuple[str, str, tuple[Key, ...], Any]] = [
    ("report=true", "stats.json", ("truth",), 7),
    ("report=true", "stats.json", ("truth",), [[TEXT]]),
    ("report=true", "stats.json", ("truth", "precision"), TEXT),
    ("verify", "stats.json", ("rows", "kept"), [[1]]),
    ("report=true", "_timings/run.json", ("shards",), [[1]]),
    ("report=true", "_timings/run.json", ("wall_seconds",), float("inf")),
    ("report=true", "_job.json", ("batches", 0, "files", 0), 10**30),
    ("report=true", "config.yaml", ("write",), 7),
    ("takedown", "_manifests/00001.json", ("counts", "read"), -1),
    ("report=true", "_manifests/00001.json", ("counts",), {"read": 2, "kept": 1, "dropped": {TEXT: {TEXT: 1}}}),
    ("report=true", "_manifests/00001.json", ("counts",), {"read": 2, "kept": 2}),
    ("takedown", "_manifests/00001.json", ("counts",), {}),
    ("export", "_manifests/00001.json", ("provenance", "models"), {TEXT: {"name": TEXT}}),
]


@pytest.mark.parametrize(("verb", "name", "at", "value"), FOUND)
def test_any_value_in_the_files_of_strangers_ends_in_a_message(
    output: Path, capsys: pytest.CaptureFixture[str], verb: str, name: str, at: tuple[Key, ...], value: Any
) -> None:
    put(output / name, at, value)
    assert run(verb, output) in (0, 1, 2, 3)  # an exception that is no message would be raised
    printed = "".join(capsys.readouterr())
    assert not [line for line in printed.splitlines() if line.startswith(FORGED)]
    assert "Traceback" not in printed


@pytest.mark.parametrize("verb", ["report=true", "takedown", "verify", "rewrite", "export"])
@pytest.mark.parametrize(
    "name", ["stats.json", "_job.json", "_manifests/00001.json", "config.yaml", "_timings/run.json"]
)
def test_random_values_in_the_files_of_strangers_end_in_a_message(
    made: Path, output: Path, capsys: pytest.CaptureFixture[str], verb: str, name: str
) -> None:
    content = yaml.safe_load((made / name).read_text())
    rng = random.Random(f"{verb} {name}")
    for at in rng.sample(list(places(content)), 2):
        shutil.copy(made / name, output / name)
        value = rng.choice(VALUES)
        test_any_value_in_the_files_of_strangers_ends_in_a_message(output, capsys, verb, name, at, value)
        shutil.rmtree(output.parent / "new", ignore_errors=True)


def put_bytes(output: Path, name: str, content: bytes) -> None:
    """Replace a file of shard 0, with its facts in the manifest."""
    (output / name).write_bytes(content)
    path = output / "_manifests/00000.json"
    manifest = json.loads(path.read_text())
    manifest["files"][name] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    path.write_text(json.dumps(manifest, sort_keys=True, ensure_ascii=False, indent=1))


def put_row(output: Path, change: Callable[[Row], Any]) -> None:
    """Change the second row of shard 0."""
    rows, content = rows_of(output)[:2], io.BytesIO()
    change(rows[1])
    write_arrow(content, rows, with_images=True, metadata={})
    put_bytes(output, "arrow/00000.arrow", content.getvalue())


NAN, INF = float("nan"), float("inf")
ROWS: dict[str, Callable[[Row], Any]] = {
    "is kept without boxes": lambda row: row.update(boxes=None),
    "is kept without box_scores": lambda row: row.update(box_scores=None),
    "has a sha256 that is none": lambda row: row.update(sha256="no digest"),
    "has a sha256 that is none ": lambda row: row.update(sha256="0" * 64 + "\n"),
    "has not one of box_scores for each of boxes": lambda row: row["box_scores"].append(row["box_scores"][0]),
    "has not one of has_expression for each of boxes": lambda row: row.update(has_expression=[]),
    "has not one of presence for each of noun_chunks": lambda row: row.update(presence=[0.5, None]),
    "has not one of given_chunks for each of given_noun_chunks": lambda row: row.update(given_chunks=[0]),
    "has a number in boxes that is none of noun_chunks": lambda row: row["boxes"][0].update(phrase=1),
    "has a number in boxes that is none of noun_chunks ": lambda row: row["boxes"][0].update(phrase=-1),
    "has a number in boxes that is none of noun_chunks  ": lambda row: row.update(noun_chunks=None),
    "has a number in ref_exps that is none of noun_chunks": lambda row: row.update(
        ref_exps=[{"chunk": 3, "start": 0, "end": 5, "is_maximal": True}]
    ),
    "has a number in noun_chunks that is none of tokens": lambda row: (
        row["noun_chunks"][0].update(root=9),
        row.update(
            tokens=[dict.fromkeys(("start", "end", "head"), 0) | dict.fromkeys(("dep", "pos", "tag", "lemma"), "")]
        ),
    ),
    "has a span in noun_chunks that is not within the caption": lambda row: row["noun_chunks"][0].update(end=6),
    "has a span in noun_chunks that is not within the caption ": lambda row: row.update(caption=None),
    "has a width below 1": lambda row: row.update(width=1 - 2**31),
    "has a original_height below 1": lambda row: row.update(original_height=0),
    "has a null, NaN or infinity in boxes": lambda row: row["boxes"][0].update(score=NAN),
    "has a null, NaN or infinity in boxes ": lambda row: row["boxes"][0].update(x_max=-INF),
    "has a null, NaN or infinity in boxes  ": lambda row: row["boxes"][0].update(y_min=None),
    "has a null, NaN or infinity in box_scores": lambda row: row["box_scores"][0].update(clip_cosine=INF),
    "has a null, NaN or infinity in clip_similarity": lambda row: row.update(clip_similarity=NAN),
    "has a null, NaN or infinity in presence": lambda row: row.update(presence=[NAN]),
    "has a null, NaN or infinity in source": lambda row: row.update(source=None),
}


@pytest.mark.parametrize("text", ROWS)
def test_a_row_that_contradicts_itself_is_damage_for_every_reader(output: Path, text: str) -> None:
    store, columns = Store(str(output)), SCORED.names
    put_row(output, ROWS[text])
    manifest = manifests_of(output)[0]
    for read in (lambda: list(read_rows(store, [manifest], columns)), lambda: read_batch(store, manifest, columns, 0)):
        with pytest.raises(UserError, match=rf"arrow/00000\.arrow is damaged \(row 1 of batch 0 {text.strip()}\)"):
            read()
    assert len(list(read_rows(store, [manifest], ("key", "status", "image")))) == 2


def test_a_picture_without_a_size_is_not_exported(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_row(output, lambda row: row.update(height=None))
    assert run("export", output) == 2
    assert "is kept without a size; make its shard again" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["row=0", "report=true", "static", "export", "rewrite", "verify", "dry_run"])
@pytest.mark.parametrize(
    "text", ["has a number in boxes that is none of noun_chunks", "has a null, NaN or infinity in boxes"]
)
def test_a_row_that_contradicts_itself_ends_in_a_message(
    output: Path, capsys: pytest.CaptureFixture[str], verb: str, text: str
) -> None:
    put_row(output, ROWS[text])
    shutil.rmtree(output / "_summaries")
    assert run(verb, output) == {"verify": 1, "dry_run": 3, "rewrite": 3}.get(verb, 2)
    printed = "".join(capsys.readouterr())
    assert "Traceback" not in printed
    assert text in printed or verb in ("dry_run", "rewrite")  # the latter logs it


@pytest.mark.parametrize("verb", ["report=true", "static", "verify", "takedown"])
@pytest.mark.parametrize("name", ["_index/00000.arrow", "_dropped/00000.arrow"])
def test_an_arrow_file_with_other_columns_is_not_read(
    output: Path, capsys: pytest.CaptureFixture[str], name: str, verb: str
) -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({name: pa.nulls(10**8) for name in ("key", "format")})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    content = sink.getvalue().to_pybytes()
    if name.startswith("_index"):
        put_bytes(output, name, content)
        assert indexed_starts(str(output / "train/00000.tar"), (output / "train/00000.tar").stat().st_size) is None
        assert build_index([str(output / "train/00000.tar")]).n_samples == 2
    else:
        (output / "_dropped").mkdir()
        (output / name).write_bytes(content)
    before = pa.default_memory_pool().max_memory()
    assert run(verb, output) in (0, 1, 3)
    assert "Traceback" not in "".join(capsys.readouterr())
    assert pa.default_memory_pool().max_memory() < before + (1 << 26)


SPARSE = ("stats.json", "_job.json", "_takedowns.json", "_command.json", "config.yaml", "_manifests/00001.json",
          "_failed/00002.json", "_timings/run.json", "_summaries/00000.json.zst")  # fmt: skip


@pytest.mark.parametrize("name", SPARSE)
def test_a_small_file_with_a_hole_of_gigabytes_is_named_and_not_read(
    output: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (output / name).parent.mkdir(exist_ok=True)
    with (output / name).open("wb") as file:
        file.truncate(1 << 35)
    with pytest.raises(UserError, match=rf"{name} has 34,359,738,368 bytes, more than the 268,435,456 "):
        Store(str(output)).read(name)
    for verb in ("report=true", "verify"):
        assert run(verb, output) in (0, 1, 2, 3)
        assert "Traceback" not in "".join(capsys.readouterr())
