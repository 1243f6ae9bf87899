import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError
from trainer.data.config import DataConfig

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("fields", [{"workers": -1}, {"crop_scale": (0.9, 0.2)}, {"subreddit_probability": 2.0}])
def test_invalid_setting_is_named_in_the_error(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(UserError, match=rf"^{name} is"):
        replace(DataConfig(), **fields)


def test_importing_the_settings_does_not_import_torch() -> None:
    code = "import sys, trainer.data.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
