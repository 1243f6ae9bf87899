"""The tutorial: its commands run as written, on ten URLs of the demo's web server, with the miniature models."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hypergrit_common.processes import free_ports

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "quickstart.md"


def blocks(language: str) -> str:
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL))


@pytest.mark.rest
@pytest.mark.timeout(1200)
@pytest.mark.slow
def test_the_commands_lead_from_ten_urls_to_heads_that_are_evaluated_and_shown(tmp_path: Path) -> None:
    script = blocks("bash").replace("8800", str(free_ports(1)[0])) + f"\npython - <<'END'\n{blocks('python')}\nEND\n"
    script = f'hypergrit() {{ python -m hypergrit "$@"; }}\n{script}'  # of this checkout, whichever is installed
    for written, here in (
        ("out/quickstart", str(tmp_path)),
        ("out/heads", str(tmp_path / "heads")),
        ("1200", "300"),  # on fewer pairs and steps
        ("steps=150", "steps=60"),
    ):
        assert written in script
        script = script.replace(written, here)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    log = tmp_path / "log.txt"
    with log.open("w") as file:  # not a pipe: the web server in the background would keep it open
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script], cwd=ROOT, env=environment, stdout=file, stderr=file,
            start_new_session=True,
        )  # fmt: skip
    try:
        shell.wait(timeout=1100)
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
    printed = log.read_text(encoding="utf-8")
    assert shell.returncode == 0, printed[-3000:]
    stats = json.loads((tmp_path / "shards" / "stats.json").read_text(encoding="utf-8"))
    assert stats["rows"]["read"] == 10
    assert stats["rows"]["kept"] >= 5
    head = next(line for line in printed.splitlines() if line.startswith("metric"))
    assert head.split() == ["metric", "meru", "hycoclip", "clip", "chance"]
    heads = tmp_path / "heads"
    assert {path.name for path in (heads / "pictures").iterdir()} == {"meru.png", "hycoclip.png", "clip.png"}
    assert json.loads((heads / "disk.json").read_text(encoding="utf-8"))["projection"] == "norms"
    assert printed.count("tensor(") == 2
