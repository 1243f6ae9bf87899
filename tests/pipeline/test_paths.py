from pathlib import Path

import pytest

from hypergrit_common.errors import UserError
from pipeline.config import load_config
from pipeline.output.store import Store
from pipeline.run.provenance import check_writable, with_absolute_paths


@pytest.mark.parametrize(("key", "other"), [("input", "output"), ("output", "input")])
def test_a_url_with_a_password_is_refused_without_repeating_it(key: str, other: str) -> None:
    config = load_config([f"{key}=https://ann:secret@example.org/a.csv", f"{other}=/data/x"])
    with pytest.raises(UserError, match=f"the URL of {key}= contains a user name or a password") as error:
        with_absolute_paths(config)
    assert "secret" not in str(error.value)


def test_a_container_of_azure_is_not_a_user_name() -> None:
    config = load_config(["input=abfs://container@account.dfs.core.windows.net/a", "output=/data/x"])
    assert with_absolute_paths(config).input.startswith("abfs://container@")


def test_jobs_that_start_together_check_an_output_with_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    real = Store.write
    monkeypatch.setattr(Store, "write", lambda store, name, text: (names.append(name), real(store, name, text))[1])
    for _ in range(2):
        check_writable(Store(str(tmp_path)))
    assert len(set(names)) == 2
    assert list(tmp_path.iterdir()) == []
