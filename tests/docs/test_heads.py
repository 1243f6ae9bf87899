"""The tutorial of docs/heads.md: its commands run as written, on fewer pairs and steps."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import COMMAND_S

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "heads.md"


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return found[1]


@pytest.mark.rest
@pytest.mark.slow
def test_the_commands_lead_to_two_heads_that_are_evaluated_side_by_side(tmp_path: Path) -> None:
    script = f"{block('bash')}\npython - <<'END'\n{block('python')}\nEND\n".replace("out/heads", str(tmp_path))
    assert "1200" in script
    assert "jobs/train/heads.yaml" in script
    script = script.replace("1200", "300").replace("heads.yaml", "heads.yaml steps=60")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    script = f'hypergrit() {{ python -m hypergrit "$@"; }}\n{script}'  # of this checkout, whichever is installed
    found = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    head = next(line for line in found.stdout.splitlines() if line.startswith("metric"))
    assert head.split() == ["metric", "meru", "hycoclip", "chance"]
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"meru.png", "hycoclip.png"}
    assert "tensor([" in found.stdout
