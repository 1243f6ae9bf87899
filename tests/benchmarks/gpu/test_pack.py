"""The pack for a machine with a GPU has all that the scripts import and such a machine lacks."""

import argparse
import re
from importlib.metadata import requires
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import pack, trainer_step
from benchmarks.gpu.data import training_shards
from benchmarks.gpu.session import Session
from tests.trainer.test_few_packages import INSTALLED

LOCK = (pack.ROOT / "requirements.lock").read_text(encoding="utf-8")


def test_every_packed_package_is_locked_with_its_hashes() -> None:
    entries = pack.locked(pack.PACKED, LOCK)
    assert re.findall(r"^([\w-]+)==", entries, re.MULTILINE) == list(pack.PACKED)
    assert entries.count("--hash=sha256:") >= len(pack.PACKED)


@pytest.mark.parametrize("name", pack.PACKED)
def test_a_packed_package_needs_only_what_is_packed_or_installed(name: str) -> None:
    needed = {re.split(r"[^\w.-]", item)[0].lower() for item in requires(name) or [] if "extra ==" not in item}
    assert {item.replace("_", "-") for item in needed} <= {*pack.PACKED, *INSTALLED}


def test_drawn_shards_depend_on_their_numbers_alone(tmp_path: Path) -> None:
    folders = [Path(training_shards(tmp_path / name, 6, n_shards=2, side_px=16)) for name in ("a", "b")]
    contents = [[path.read_bytes() for path in sorted(folder.iterdir())] for folder in folders]
    assert contents[0] == contents[1]
    assert contents[0][0] != contents[0][1]


def test_the_largest_batch_is_predicted_from_the_memory_of_two_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session("x", argparse.Namespace(device="cpu", out=tmp_path, minutes=1, tiny=False))
    session.rows = [
        {"part": "ceilings"},
        *({"model": "hycoclip", "side": "ours", "batch": b, "peak_gib": 4 + b / 64} for b in (768, 256)),
    ]
    assert trainer_step.largest_batch(session, "hycoclip") == 1536  # a CPU has no limit to predict
    session.device = torch.device("cuda")
    memory = argparse.Namespace(total_memory=100 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    assert trainer_step.largest_batch(session, "hycoclip") == (94 - 4) * 64 // 128 * 128
    assert trainer_step.largest_batch(session, "phyclip") == 2 * 768
