"""Texts of rows and values in the files of an output that a stranger made: each is data, whatever it holds."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.commands import explore, export, rewrite, takedown
from pipeline.commands.verify import main as verify
from tests.pipeline.commands.derive.outputs import LOCAL, kept, make_output, picture, record_job

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
