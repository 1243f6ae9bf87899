"""Captions of a megabyte and with 10,000 noun chunks: dropped by name, before they are parsed, and intact afterwards."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands import explore, verify
from pipeline.output.write.tar import TarWriter
from pipeline.stages.captions import CaptionsConfig
from tests.pipeline.commands.derive.rows import rows_of
from tests.pipeline.jobs import run_job
from tests.pipeline.stages.download.server import jpeg

MB = 1 << 20
CHUNKS = "a cat, " * 10_000
"""10,000 noun chunks."""


def write_rows(folder: Path, captions: Sequence[str], **columns: Any) -> Path:
    """Write a tar with a picture for each caption."""
    folder.mkdir()
    with (folder / "00000.tar").open("wb") as file, TarWriter(file) as tar:
        for i, caption in enumerate(captions):
            text = json.dumps({"caption": caption, **columns}).encode()
            tar.add_sample(f"{i:03d}", [("jpg", jpeg(i, 96, 128)), ("json", text)])
    return folder


@pytest.mark.rest
def test_a_job_with_captions_of_a_megabyte_and_10_000_noun_chunks(tmp_path: Path) -> None:
    most = CaptionsConfig.max_characters
    shortest = ("a cat, " * most)[: most - 1]
    captions = ["a cat " * (MB // 6 - 20), "x" * (MB - 100), CHUNKS, shortest, "\n" * (MB - 100), "a cat and a dog"]
    tars = write_rows(tmp_path / "in", captions)
    assert run_job(tars, tmp_path / "out") in (0, 4)
    table = rows_of(tmp_path / "out")
    reasons = [row["reason"] for row in table]
    assert len(reasons) == len(captions)
    assert reasons[0] is not None
    assert reasons[0] == reasons[1] == reasons[2], reasons
    assert reasons[3] not in ("internal_error", reasons[0]), table[3]["detail"]
    assert "internal_error" not in reasons, reasons
    assert verify.main([str(tmp_path / "out"), "processes=1"]) == 0
    assert explore.main([str(tmp_path / "out"), "row=000000000002"]) == 0
