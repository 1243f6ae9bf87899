"""Arguments that the commands on finished outputs refuse, in one line, before anything is written."""

from pathlib import Path

import pytest

from pipeline.commands import rewrite, takedown
from pipeline.commands.frame import is_option
from pipeline.grit import main as run
from pipeline.output.store import Store
from pipeline.run.provenance import place_of
from tests.pipeline.commands.derive.outputs import LOCAL, make_output, random_shards
from tests.pipeline.jobs import hash_output

SHARD = "samples_per_shard=5"
REFUSED = [
    ("output=NEW", "source is not set"),
    ("source= output=NEW", "source is not set"),
    ("source=A", "output is not set"),
    ("source=A source=A/ output=NEW", "given twice"),
    ("source=A source=file://A output=NEW", "given twice"),
    ("source=A source=LINK output=NEW", "LINK is given twice"),
    ("source=A output=NEW output=NEW2", "output is given 2 times"),
    ("source=A/nothing output=NEW", "does not exist"),
    ("source=s3://me:secret@bucket/a output=NEW", "a user name or a password"),
    ("source=A output=NEW\nx", "give another one"),
    ("source=A output=NEW::x", "give another one"),
    ("source=A output=NEW jobs/demo.yaml", "'jobs/demo.yaml' is not key=value"),
    ("source=A output=NEW mixed=perhaps", "mixed"),
    ("source=A output=NEW formats=[coco]", "formats"),
    ("source=A output=NEW score.min_score=high", "score.min_score"),
    *((f"source=A output=NEW {item}", f"rewrite cannot change {item.partition('=')[0]}, a setting of the job") for item in (
        "dry_run=true", "input=/etc/passwd", "ground.device=cuda", "ground.floor=0.3", "limit=3", "rows_per_shard=5",
    )),
    ("source=A output=NEW foo.bar=1", "rewrite has no key foo.bar; it takes against, "),
    ("source=A output=NEW smaples_per_shard=3", "did you mean samples_per_shard?"),
    ("source=A output=NEW againts=list.txt", "did you mean against?"),
    ("source=A output=NEW score.min_scoer=0.9", "did you mean score.min_score?"),
    ("source=A output=NEW dedupe=[url,pixels]", "give one or more of ['url', 'bytes', 'picture']"),
    ("source=A output=NEW dedupe=url", "dedupe must be a list"),
    ("source=A output=NEW dedupe=[picture]", "dedupe_radius=BITS belong together"),
    ("source=A output=NEW dedupe=[url] dedupe_radius=3", "dedupe_radius=BITS belong together"),
    ("source=A output=NEW dedupe=[picture] dedupe_radius=9", "dedupe_radius"),
    ("source=A output=NEW dedupe=[picture] dedupe_radius=-1", "dedupe_radius"),
    ("source=A output=NEW dedupe=[url] memory_gb=0", "memory_gb"),
    ("source=A output=NEW dedupe=[url] memory_gb=nan", "memory_gb"),
    *((f"source=A output=NEW {item}", f"{item.partition('=')[0]} has no effect without {needed}=") for item, needed in (
        ("memory_gb=2", "dedupe"), ("dedupe_radius=2", "dedupe"), ("against_radius=2", "against"),
        ("shuffle=false", "samples_per_shard"), ("seed=2", "samples_per_shard"),
    )),
    *((f"source=A output=NEW samples_per_shard={value}", "samples_per_shard") for value in (0, -5, "many", 1.5)),
    (f"source=A output=NEW {SHARD} seed=-1", "seed"),
    (f"source=A output=NEW {SHARD} seed=99999999999999999999", "seed"),
    ("source=A output=NEW against=", "against is not set"),
    ("source=A output=NEW against=A/arrow", "no images"),
    ("source=A output=NEW against=A/none", "cannot be read"),
    ("source=A output=NEW against=A/arrow/00000.arrow", "neither a folder nor UTF-8 text"),
    ("source=A output=NEW against=HOSTS", "is a host"),
    ("source=A output=NEW against=EMPTY", "has no entries"),
    *((f"source=A output=NEW against=URLS against_radius={value}", "against_radius") for value in (-1, 17, 2.5)),
]  # fmt: skip
"""Arguments of rewrite -> what the message says; names in capitals are paths."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output `A`, `LINK` to it, and lists."""
    folder = tmp_path_factory.mktemp("refused")
    make_output(folder / "A", random_shards(2, 1))
    (folder / "LINK").symlink_to("A")
    for name, text in {"HOSTS": "example.org\n", "EMPTY": "# nothing\n", "URLS": "http://x/1.jpg\n"}.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_rewrite_refuses_in_one_line(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    before = hash_output(world / "A")
    for name in ("A", "LINK", "HOSTS", "EMPTY", "URLS"):
        for sign in ("=", "//"):
            arguments = arguments.replace(f"{sign}{name}", f"{sign}{world / name}")
    assert rewrite.main([*arguments.replace("=NEW", f"={tmp_path}/new").split(" "), *LOCAL]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert "secret" not in error
    assert not list(tmp_path.iterdir())
    assert hash_output(world / "A") == before


def test_rewrite_refuses_an_output_with_files_of_others(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "train" / "00000.tar"
    theirs.parent.mkdir()
    theirs.write_bytes(b"mine")
    assert rewrite.main([f"source={world}/A", f"output={tmp_path}", "overwrite=true", *LOCAL]) == 2
    assert "that no run of HyperGRIT wrote where a run writes its own, in train/; give" in capsys.readouterr().err
    assert [*tmp_path.rglob("*")] == [theirs.parent, theirs]


@pytest.mark.parametrize(
    ("source", "output"), [("A", "A"), ("A", "LINK"), ("LINK", "A"), ("A", "LINK/new"), ("A", "A/train"), ("LINK", "")]
)
def test_an_output_that_is_its_source_or_nested_is_refused(
    world: Path, capsys: pytest.CaptureFixture[str], source: str, output: str
) -> None:
    before = {path: path.stat().st_mtime_ns for path in world.rglob("*")}
    arguments = [f"source={world / source}", f"output={world / output}", "overwrite=true", "score.min_score=0.95"]
    assert rewrite.main([*arguments, *LOCAL]) == 2
    assert "give another output=, since sources are left alone" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in world.rglob("*")} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("A", "list is not set"),
        ("list=URLS", "0 outputs are given"),
        ("A A list=URLS", "2 outputs are given"),
        ("A list=URLS dry_run=perhaps", "dry_run=perhaps: "),
        ("A list=URLS score.min_score=0.9", "takedown cannot change score.min_score"),
        ("A list=URLS output=B", "takedown cannot change output, a setting of the job"),
        ("A list=URLS dryrun=true", "takedown has no key dryrun (did you mean dry_run?)"),
        ("A list=A", "folder"),
        ("A list=EMPTY", "has no entries"),
        ("B list=URLS", "config.yaml does not exist"),
    ],
)
def test_takedown_refuses_in_one_line(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    monkeypatch.chdir(world)
    before = hash_output(world / "A")
    assert takedown.main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert hash_output(world / "A") == before
    assert not (world / "B").exists()


@pytest.mark.parametrize(
    ("argument", "option"),
    [
        ("out/dt=2024-01-01/demo", False),
        ("./dt=2024-01-01", False),
        ("s3://bucket/dt=2024-01-01/demo", False),
        ("list=s3://bucket/dt=2024-01-01/list.txt", True),
        ("download.timeout_s=60", True),
        (f"reasons=[{'timeout,' * 1000}]", True),
    ],
)
def test_a_path_with_an_equals_sign_is_no_option(argument: str, option: bool) -> None:
    assert is_option(argument) == option


def test_commands_take_an_output_whose_path_has_an_equals_sign(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list=1.txt").write_text("http://x/2000\n")
    assert rewrite.main([f"source={world / 'A'}", "output=dt=2024/a", "against=list=1.txt", *LOCAL]) == 0
    assert rewrite.main(["source=dt=2024/a", "output=dt=2024/ab", *LOCAL]) == 0  # begins as its source
    assert takedown.main(["dt=2024/ab", "list=list=1.txt", *LOCAL]) == 0
    assert run(["retry=true", "output=dt=2024/ab"]) == 2


def test_places_in_object_stores_are_their_addresses() -> None:
    assert place_of(Store("memory://bucket/a")) == "memory:///bucket/a/"
