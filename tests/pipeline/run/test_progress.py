"""The lines on the progress of a job where there is no terminal, and the log as JSON."""

import dataclasses
import json
import logging
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import LogConfig, load_config
from pipeline.output.manifest import failed_shard
from pipeline.run.progress import Follower, progress, tell
from pipeline.run.steps import Done, Failed, Result
from tests.patience import wait_until
from tests.pipeline.output.write.shards import plan
from tests.pipeline.settings import with_constants

ROWS = 4


def done(index: int, kept: int = 3) -> Done:
    counts = {"read": ROWS, "kept": kept, "dropped": {"download": {"timeout": ROWS - kept}}}
    manifest: Any = {"shard": index, "counts": counts}
    return Done(manifest, ())


def results(pause: Callable[[], None] = lambda: None) -> Iterator[Result]:
    """A job with three shards, the last of which fails."""
    for index in range(3):
        for step in ("prepare", "infer", "write"):
            tell(Follower.begun, index, step, ROWS)
            pause()
            tell(Follower.ended, index, step)
        yield Failed(failed_shard(plan(index, ROWS), "write", "x", "", 1)) if index == 2 else done(index)


def lines(
    caplog: pytest.LogCaptureFixture, *arguments: str, interval_s: float = LogConfig.interval_s, waits: bool = False
) -> list[logging.LogRecord]:
    """The progress lines of a job, each of whose steps takes until the next line if it `waits`."""

    def pause() -> None:
        n_lines = len(caplog.records)
        wait_until(lambda: not waits or len(caplog.records) > n_lines + 1)

    config = load_config(["input=in", "output=out", "ray.runner=local", *arguments])
    config = dataclasses.replace(config, log=with_constants(LogConfig, interval_s=interval_s))
    with caplog.at_level(logging.INFO):
        assert len(list(progress(results(pause), 3 * ROWS, config))) == 3
    return [record for record in caplog.records if hasattr(record, "progress")]


def test_lines_show_progress_before_the_first_shard_is_finished_and_the_end(caplog: pytest.LogCaptureFixture) -> None:
    found = lines(caplog, interval_s=0.02, waits=True)
    values: list[dict[str, Any]] = [vars(record)["progress"] for record in found]
    early = [value for value in values if value["finished"] == 0 and value["prepared"]]
    assert early
    assert 0 < early[0]["share"] < 0.4
    assert early[0]["left_s"] is None
    assert "4 prepared" in found[values.index(early[0])].getMessage()
    middle = next(value for value in values if value["finished"] == ROWS)
    assert middle["left_s"] > 0.02  # six more steps
    last = found[-1].getMessage()
    assert last.startswith("12 of 12 rows, 100% of the work, 6 kept, 2 dropped, 4 unfinished, ")
    assert last.endswith(" rows/s")
    assert "\r" not in "".join(record.getMessage() for record in found)


def read_all(reader: int, chunks: list[bytes]) -> None:
    """Read a terminal, which holds a few kB, until it is closed."""
    with suppress(OSError):
        while data := os.read(reader, 1 << 16):
            chunks.append(data)
    os.close(reader)


def printed(chunks: list[bytes]) -> str:
    """Return what a terminal has received, without the escape sequences."""
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", b"".join(chunks).decode("utf-8", "ignore"))


@pytest.mark.parametrize("columns", ["80", "120"])
def test_a_terminal_shows_a_line_for_each_stage_and_log_lines_above_them(
    monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "xterm")
    reader, writer = pty.openpty()
    chunks = list[bytes]()
    thread = threading.Thread(target=read_all, args=(reader, chunks))
    thread.start()
    with os.fdopen(writer, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        handler = logging.StreamHandler()  # to the terminal, as that of a command
        logging.getLogger().addHandler(handler)
        try:
            config = load_config(["input=in", "output=out", "ray.runner=local", "scorer=OWNER/CLIP"])
            shown = progress(results(), 3 * ROWS, config)
            next(shown)
            tell(Follower.loading, ("prepare", "infer", "write"))
            wait_until(lambda: "loading en_hypergrit_web" in printed(chunks))
            logging.getLogger("hypergrit").warning("a line of the log")
            tell(Follower.loading, ())
            assert len(list(shown)) == 2
        finally:
            logging.getLogger().removeHandler(handler)
    thread.join()
    drawn = printed(chunks)
    stages = ("read", "download", "captions", "parse", "ground", "score", "write")
    table = drawn[drawn.rindex("stage") :]
    last = [line.split() for line in table.splitlines()[1:]]
    assert [words[0] for words in last[: len(stages)]] == list(stages)
    assert last[0][:4] == ["read", "12", "8", "0"]  # passed; kept and dropped of finished shards
    assert last[1][:4] == ["download", "12", "6", "2"]
    assert "12 of 12 rows, 100% of the work, 6 kept, 2 dropped, 4 unfinished" in " ".join(table.split())
    assert "loading OWNER/CLIP" in drawn
    assert "loading en_hypergrit_web" in drawn
    assert [line for line in drawn.splitlines() if line.strip() == "a line of the log"]


def test_lines_without_a_terminal_name_the_models_that_are_loaded(caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(["input=in", "output=out", "ray.runner=local"])
    with caplog.at_level(logging.INFO):
        shown = progress(results(), 3 * ROWS, config)
        next(shown)
        tell(Follower.loading, ("infer",))
        list(shown)
    assert "of the work, loading miniature, " in caplog.records[-1].getMessage()


def test_a_short_job_gets_one_line_and_a_quiet_one_none(caplog: pytest.LogCaptureFixture) -> None:
    assert len(lines(caplog)) == 1
    caplog.clear()
    assert lines(caplog, "quiet=true", interval_s=0.001) == []


def test_the_lines_of_a_log_in_json_are_objects_also_the_last_one_of_a_failed_job(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("caption\na dog\n")
    arguments = [f"input={tmp_path / 'in.csv'}", f"output={tmp_path / 'out'}", "log.format=json", "ray.runner=local"]
    code = "import sys; from pipeline.grit import main; sys.exit(main(sys.argv[1:]))"
    run = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    records = [json.loads(line) for line in run.stderr.splitlines()]
    assert records[-1].keys() == {"time", "level", "message"}
    assert records[-1]["level"] == "ERROR"
    assert "column" in records[-1]["message"]
    assert run.stdout == ""
