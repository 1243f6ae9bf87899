"""The tutorial: its commands run as written, on ten URLs of the demo's web server, with the miniature models."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "quickstart.md"
FOLDER = "out/quickstart"


def blocks(language: str) -> str:
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL))


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


@pytest.mark.rest
@pytest.mark.timeout(1200)
@pytest.mark.slow
def test_the_commands_lead_from_ten_urls_to_an_evaluated_model(tmp_path: Path) -> None:
    script = blocks("bash").replace("8800", str(free_port())) + f"\npython - <<'END'\n{blocks('python')}\nEND\n"
    script = f'hypergrit() {{ python -m hypergrit "$@"; }}\n{script}'  # of this checkout, whichever is installed
    assert FOLDER in script
    script = script.replace(FOLDER, str(tmp_path))
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
    assert (tmp_path / "hycoclip" / "model" / "model.safetensors").is_file()
    assert "retrieval/text_to_image/recall@1" in json.loads((tmp_path / "evaluation.json").read_text(encoding="utf-8"))
    assert printed.count("tensor(") == 2
