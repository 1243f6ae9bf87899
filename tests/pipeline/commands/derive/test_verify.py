"""Outputs of commands: lost shards, repeated keys, and the command that makes a broken shard again."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.commands import rewrite
from pipeline.output.contents import CHUNK, AllKeys, ShardKeys
from tests.pipeline.commands.derive.outputs import LOCAL, make_output, random_shards
from tests.pipeline.commands.verify.damage import flip
from tests.pipeline.commands.verify.test_command import Printed, verify


@pytest.fixture(scope="module")
def resharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A resharded output with four shards, beside another one with another seed."""
    folder = tmp_path_factory.mktemp("derived")
    make_output(folder / "source", random_shards(2, 3))
    for seed in (1, 2):
        arguments = [f"source={folder / 'source'}", f"output={folder / str(seed)}", "samples_per_shard=4", *LOCAL]
        assert rewrite.main([*arguments, f"seed={seed}"]) == 0
    return folder / "1"


@pytest.fixture
def output(resharded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(resharded, tmp_path / "out"))


def test_a_lost_shard_is_missed_by_verify_and_by_other_commands(output: Path, tmp_path: Path, capsys: Printed) -> None:
    n_shards = len(list(output.glob("_manifests/*.json")))
    assert verify(output) == 0
    (output / "_manifests/00001.json").unlink()
    capsys.readouterr()
    assert verify(output) == 1
    text = capsys.readouterr().out
    assert f"_command.json: 1 of {n_shards} shards missing, such as shard 1; run hypergrit rewrite again" in text
    assert f"{n_shards - 1} finished shards, 1 more not finished" in text
    assert "the shards are intact" in text
    arguments = [f"source={output}", f"output={tmp_path / 'new'}", "dedupe=[url]", *LOCAL]
    assert rewrite.main(arguments) == 2
    error = capsys.readouterr().err
    assert f"lacks 1 of its {n_shards} shards, such as shard 1; run hypergrit rewrite again" in error
    (output / "_command.json").write_text("[]")
    assert verify(output) == 1
    assert "_command.json is damaged" in capsys.readouterr().out
    (output / "_command.json").unlink()
    assert rewrite.main(arguments) == 0


def test_a_broken_shard_is_named_with_the_command_that_makes_it_again(
    resharded: Path, output: Path, capsys: Printed
) -> None:
    flip(output / "arrow/00001.arrow")
    assert verify(output) == 1
    assert "run hypergrit rewrite again with the same arguments" in capsys.readouterr().out
    (output / "_manifests/00001.json").write_text("{}")
    assert verify(output, "requeue=true") == 1
    assert "in the queue: run hypergrit rewrite again with the same arguments" in capsys.readouterr().out
    arguments = [f"source={resharded.parent / 'source'}", f"output={output}", "samples_per_shard=4", "seed=1", *LOCAL]
    assert rewrite.main(arguments) == 0
    assert verify(output) == 0


def test_keys_of_two_shards_are_found(resharded: Path, output: Path, capsys: Printed) -> None:
    manifest = json.loads((resharded.parent / "2/_manifests/00001.json").read_bytes())
    for name in (*manifest["files"], "_manifests/00001.json"):
        shutil.copyfile(resharded.parent / "2" / name, output / name)
    (output / "stats.json").unlink()
    assert verify(output) == 1
    text = capsys.readouterr().out
    assert "is in another shard too" in text
    assert "the shards are intact" in text


def test_repeated_keys_are_those_of_sets() -> None:
    rng, seen, keys = np.random.default_rng(0), set[str](), AllKeys()
    for shard in range(20):
        numbers = rng.integers(0, 3 * CHUNK, 2000) if shard % 2 else rng.integers(10**17, 10**17 + 10**9, 50)
        texts = [f"{number:012d}" for number in numbers.tolist()] + ["a", "7", "0" * 5000][: shard % 4]
        found = ShardKeys()
        for text in texts:
            found.add(text)
        assert set(keys.add(found)) == set(texts) & seen
        seen |= set(texts)
