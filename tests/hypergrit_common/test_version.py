from pathlib import Path

import pytest

from hypergrit_common import version


def test_without_a_checkout_the_version_is_that_of_the_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "package_version", {"hypergrit": "1.2.3"}.__getitem__)
    assert version.version_in(tmp_path) == "1.2.3"
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "4.5.6"\n')
    assert version.version_in(tmp_path) == "4.5.6"
