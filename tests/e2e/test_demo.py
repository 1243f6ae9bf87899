"""The bytes of the demo's shards, as `make demo` makes them; half a minute and more, so `make soak` runs it."""

from pathlib import Path

import pytest

from tests.e2e.demo_run import run_demo
from tests.e2e.recorded import environment, read_recorded


@pytest.mark.soak
@pytest.mark.ray
def test_the_demos_shards_have_the_recorded_content(tmp_path: Path) -> None:
    """After an intended change of the content: `python -m tests.e2e.record --demo`."""
    record = read_recorded()
    if record["made_with"] != environment():
        pytest.skip("the hashes were recorded with other packages or on another processor")
    found = run_demo(tmp_path)
    if found is None:
        pytest.skip("the port of the demo, which is a part of the URLs, is taken")
    assert found == record["demo"]
