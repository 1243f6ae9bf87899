"""Compilers that a run has started end with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, wait_until
from tests.trainer.small_run import overrides, write_data

ROOT = Path(__file__).parents[2]


@pytest.mark.rest
@pytest.mark.parametrize(
    ("number", "reaches_all", "launcher"),
    [
        (signal.SIGKILL, False, ()),
        (signal.SIGTERM, True, ()),
        (signal.SIGKILL, False, ("trainer.torchrun", "--standalone", "-m")),
    ],
)
def test_no_compiler_outlives_a_run(
    tmp_path: Path, number: signal.Signals, reaches_all: bool, launcher: tuple[str, ...]
) -> None:
    output, started, compiler = tmp_path / "run", tmp_path / "pid", tmp_path / "slow"
    write_data(output)
    compiler.write_text(f"#!/bin/sh\necho $$ > {started}.new; mv {started}.new {started}; exec sleep 600\n")
    compiler.chmod(0o755)
    command = [sys.executable, "-m", *launcher, "trainer.train", *overrides(output, "compile=true")]
    environment = os.environ | {"CXX": str(compiler), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    with (tmp_path / "log").open("w") as log, subprocess.Popen(
        command, cwd=ROOT, stderr=log, start_new_session=True, env=environment
    ) as process:  # fmt: skip
        try:
            wait_until(lambda: process.poll() is not None or started.exists())
            pid = int(started.read_text())
            (os.killpg if reaches_all else os.kill)(process.pid, number)
            code = process.wait(PATIENCE_S)
            wait_until(lambda: not Path(f"/proc/{pid}").exists())
        finally:
            process.kill()
    text = (tmp_path / "log").read_text()
    assert "compiling the blocks of the towers: the first step takes minutes" in text
    if number == signal.SIGTERM:
        assert code == 128 + 15
        assert "stopped at step 0 while compiling; repeat the command to resume" in text
        assert "Traceback" not in text
