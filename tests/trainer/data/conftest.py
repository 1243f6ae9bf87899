from pathlib import Path

import pytest

from tests.trainer.data.samples import write_shards


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Four shards with 21 samples, one of them empty."""
    return write_shards(tmp_path / "shards", [7, 0, 9, 5])
