"""What may be published: the licences of rows in the layouts of PD12M and Open Images, and what the hub gets of them."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import httpx
import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub.utils import filter_repo_objects

from hypergrit import __main__ as hypergrit
from pipeline import grit
from pipeline.commands.export_licenses import Permits, license_name, read_facts
from tests.jobs.test_published import BY, JOBS, PD12M, write_open_images
from tests.pipeline.here import running_here
from tests.pipeline.hub import hub as serving

CC0 = "https://creativecommons.org/publicdomain/zero/1.0/"
MARK = "https://creativecommons.org/publicdomain/mark/1.0/"
NC = "https://creativecommons.org/licenses/by-nc/2.0/"
LICENSES = (BY, CC0, NC, "", "All rights reserved", "https://creativecommons.org/licenses/by-nd/2.0/", MARK)
KEPT = ["000000000000", "000000000001", "000000000006"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("https://creativecommons.org/licenses/by/2.0/", "cc-by-2.0"),
        ("http://creativecommons.org/licenses/by-sa/3.0/de/deed.en", "cc-by-sa-3.0"),
        ("//www.creativecommons.org/licenses/by-nc-sa/4.0/legalcode", "cc-by-nc-sa-4.0"),
        ("CC BY 4.0", "cc-by-4.0"),
        ("CC-BY-SA-4.0", "cc-by-sa-4.0"),
        ("cc by", "cc-by"),
        ("CC BY 2", "cc-by-2.0"),
        ("Creative Commons Attribution 4.0 International License", "cc-by-4.0"),
        ("Attribution-NonCommercial-NoDerivs License", "cc-by-nc-nd"),
        ("Creative Commons Attribution-ShareAlike 2.0 Generic", "cc-by-sa-2.0"),
        ("cc-by-nd-nc-1.0", "cc-by-nc-nd-1.0"),
        ("cc0", "cc0-1.0"),
        ("CC0 1.0", "cc0-1.0"),
        ("CC0-1.0", "cc0-1.0"),
        ("CC0 1.0 Universal", "cc0-1.0"),
        ("Creative Commons Zero v1.0 Universal", "cc0-1.0"),
        (CC0, "cc0-1.0"),
        (MARK, "pdm-1.0"),
        ("Public Domain Mark 1.0", "pdm-1.0"),
        (" Public domain ", "public-domain"),
        ("All rights reserved", None),
        ("not CC BY", None),
        ("CC BY or all rights reserved", None),
        ("no public domain", None),
        ("https://example.org/?https://creativecommons.org/licenses/by/2.0/", None),
        ("https://creativecommons.org.example/licenses/by/2.0/", None),
        ("by-nd-sa", None),
        ("MIT", None),
        ("4", None),
    ],
)
def test_licences_have_one_name_however_they_are_written(text: str, name: str | None) -> None:
    assert license_name(text) == name


def test_a_hostile_text_of_a_licence_takes_linear_time() -> None:
    for unit in ("cc-by-", "by-nc", " ", "-", "creative commons ", "no-deriv"):
        assert license_name(unit * 200_000) is None


def test_columns_for_credit_are_found_however_they_are_written() -> None:
    extra = {"LICENSE": 4, "license_url": CC0, "Creator": "Jane", "pageurl": "museum", "source": "web", "author": 4}
    found = read_facts({"url": "http://h/1", "extra": json.dumps(extra)})
    assert (found["license"], found["license_name"]) == (CC0, "cc0-1.0")
    assert (found["author"], found["page"], found["title"], found["url"]) == ("Jane", "museum", None, "http://h/1")
    assert set(read_facts({"url": None, "extra": None}).values()) == {None}


@pytest.mark.parametrize(
    "columns",
    [
        {"license": BY, "License": "CC BY-NC"},
        {"license": "All rights reserved", "license_name": "CC0"},
        {"licensename": "Attribution License", "licenseurl": NC},
        {"license": ["CC BY", "CC BY-NC"]},
        {"license": 4},
    ],
)
def test_of_several_licences_the_strictest_counts(columns: dict[str, Any]) -> None:
    facts = read_facts({"url": "http://h/1", "extra": json.dumps(columns)})
    assert Permits(["none"]).refuses(facts)


class Repositories:
    """The hub: a folder of repositories, to which files are uploaded by the patterns of the client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create_repo(self, repo_id: str, **_: Any) -> None:
        (self.folder / repo_id).mkdir(parents=True)

    def upload_folder(
        self, folder_path: str, repo_id: str, allow_patterns: Any = None, ignore_patterns: Any = None, **_: Any
    ) -> None:
        names = [path.relative_to(folder_path).as_posix() for path in Path(folder_path).rglob("*") if path.is_file()]
        for name in filter_repo_objects(names, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns):
            target = self.folder / repo_id / name
            assert not target.exists(), f"{name} is uploaded twice"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(Path(folder_path, name).read_bytes())


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the hub's repositories."""
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: Repositories(tmp_path / "hub"))
    return tmp_path / "hub"


def write_pd12m(folder: Path, urls: list[str], captions: list[str], licenses: tuple[str, ...]) -> None:
    """Write pairs.parquet in the layout of PD12M."""
    columns: dict[str, list[Any]] = {
        "id": [f"id{i}" for i in range(len(urls))],
        "url": urls,
        "caption": captions,
        "license": list(licenses),
        "source": [f"museum {i}" for i in range(len(urls))],
    }
    arrays = {name: columns.get(name, [None] * len(urls)) for name in PD12M}
    pq.write_table(pa.table(arrays, pa.schema([*PD12M.items()])), folder / "pairs.parquet")


LAYOUTS: dict[str, Callable[..., None]] = {"pd12m": write_pd12m, "open_images": write_open_images}


@pytest.fixture(scope="module", params=LAYOUTS)
def output(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a job for one of the sets: two shards, of seven pictures with other licences and one that is gone."""
    folder = tmp_path_factory.mktemp(request.param)
    urls = [f"file://{folder}/{i}.jpg" for i in range(8)]
    captions = [f"a picture of dog {i}" for i in range(8)]
    for i in range(7):
        cv2.imwrite(str(folder / f"{i}.jpg"), np.full((64, 64, 3), 30 * i, np.uint8))
    LAYOUTS[request.param](folder, urls, captions, (*LICENSES, NC))
    settings = [f"input={folder / 'pairs.parquet'}", f"output={folder / 'out'}", f"read.image_roots=[{folder}]"]
    common = ["rows_per_shard=6", "ray.runner=local", "grounder=none", "scorer=none", "parse.model=none", "quiet=true"]
    with running_here():
        assert grit.main([str(JOBS / f"{request.param}.yaml"), *settings, *common]) == 0
    return folder / "out"


def samples(tar: bytes) -> dict[str, dict[str, Any]]:
    """The JSON of the samples of a tar, by key."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as file:
        found = {name: file.extractfile(name) for name in file.getnames() if name.endswith(".json")}
        return {name.partition(".")[0]: json.load(member) for name, member in found.items() if member}


def test_shards_are_published_without_rows_that_have_no_open_licence(output: Path, hub: Path, capsys: Any) -> None:
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    assert hypergrit.main(["export", str(output), "to=hub", "repo=me/open"]) == 0
    assert "left out for their licence: 1 non-commercial, 1 no licence, 1 unknown licence, 1 no derivatives; 3 " in (
        capsys.readouterr().out
    )
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before
    with serving(hub) as url:
        names = {item["rfilename"] for item in httpx.get(f"{url}/api/datasets/me/open").json()["siblings"]}
        files = {name: httpx.get(f"{url}/datasets/me/open/resolve/main/{name}").content for name in names}
    shards = {f"{name}/0000{i}.{suffix}" for i in range(2) for name, suffix in
              (("grit", "tar"), ("grit", "parquet"), ("train", "tar"), ("_index", "arrow"))}  # fmt: skip
    assert names == {"README.md", "pictures.jsonl", *shards}
    for format in ("grit", "train"):
        assert [key for i in range(2) for key in samples(files[f"{format}/0000{i}.tar"])] == KEPT
    rows = [row for i in range(2) for row in pq.read_table(io.BytesIO(files[f"grit/0000{i}.parquet"])).to_pylist()]
    assert [row["key"] for row in rows if row["url"]] == KEPT
    assert len(rows) == 8
    for text in ("dog 2", "dog 3", "dog 4", "dog 5", "dog 7"):
        assert not any(text.encode() in content for content in files.values())
    lines = [json.loads(line) for line in files["pictures.jsonl"].splitlines()]
    assert [(line["key"], line["license_name"]) for line in lines] == list(
        zip(KEPT, ["cc-by-2.0", "cc0-1.0", "pdm-1.0"], strict=True)
    )
    assert all(line["url"] and line["page"] for line in lines)


def test_card_has_the_shares_of_licences_and_whom_to_credit(output: Path, hub: Path) -> None:
    assert hypergrit.main(["export", str(output), "to=hub", "repo=me/open"]) == 0
    card = (hub / "me/open/README.md").read_text().replace("\\", "")
    for name in ("cc-by-2.0", "cc0-1.0", "pdm-1.0"):
        assert f"| {name} | 1 (33.3%) |" in card
    for reason in ("no licence", "non-commercial", "no derivatives", "unknown licence"):
        assert f"| left out: {reason} | 1 |" in card
    n = 3 if output.parent.name.startswith("open_images") else 0
    assert f"`author` ({n}), `title` ({n}), `page` (3)" in card


def test_licences_that_the_user_names_are_published_too(output: Path, hub: Path) -> None:
    named = {"nc": ["licenses=[cc-by-nc,none]"], "nd": ["licenses=[CC BY-ND 2.0]"], "all": ["licenses=[any]"]}
    for name, arguments in named.items():
        assert hypergrit.main(["export", str(output), "to=hub", f"repo=me/{name}", *arguments]) == 0
    found = {
        name: [int(key) for i in range(2) for key in samples((hub / f"me/{name}/grit/0000{i}.tar").read_bytes())]
        for name in named
    }
    assert found == {"nc": [0, 1, 2, 3, 6], "nd": [0, 1, 5, 6], "all": [*range(7)]}
    for path in (hub / "me/all/grit").iterdir():  # nothing is left out: the files as they are
        assert path.read_bytes() == (output / "grit" / path.name).read_bytes()


def test_a_folder_for_the_hub_has_the_same_pictures_and_one_that_stays_here_has_all(
    output: Path, hub: Path, tmp_path: Path
) -> None:
    to_hub = [f"output={tmp_path / 'x'}", "format=coco", "to=hub", "repo=me/coco"]
    assert hypergrit.main(["export", str(output), *to_hub]) == 0
    lines = [json.loads(line) for line in (hub / "me/coco/pictures.jsonl").read_text().splitlines()]
    assert [line["key"] for line in lines] == KEPT
    assert len([*(hub / "me/coco/images").rglob("*.jpg")]) == 3
    assert "| left out\\: no licence | 1 |" in (hub / "me/coco/README.md").read_text()
    assert hypergrit.main(["export", str(output), f"output={tmp_path / 'y'}", "format=coco"]) == 0
    assert len((tmp_path / "y/pictures.jsonl").read_text().splitlines()) == 7


def test_an_output_without_licences_is_refused_and_nothing_is_created(finished: Path, hub: Path, capsys: Any) -> None:
    for arguments in ([], ["output=x", "format=odvg"]):
        assert hypergrit.main(["export", str(finished), "to=hub", "repo=me/web", *arguments]) == 2
        message = capsys.readouterr().err
        assert "no picture may be published: 9 no licence; " in message
        assert "licenses=[cc-by-nc]" in message
    assert not hub.exists()
    assert hypergrit.main(["export", str(finished), "output=x", "format=odvg", "licenses=[any]"]) == 2
    assert "licenses= decides what to=hub publishes" in capsys.readouterr().err


def test_shards_without_a_ledger_are_published_only_by_name(
    finished: Path, hub: Path, tmp_path: Path, capsys: Any
) -> None:
    with running_here():
        arguments = [f"source={finished}", f"output={tmp_path / 'out'}", "formats=[train]", "ray.runner=local"]
        assert hypergrit.main(["rewrite", *arguments]) == 0
    assert hypergrit.main(["export", str(tmp_path / "out"), "to=hub", "repo=me/train"]) == 2
    assert "shard 0 has no arrow/ with licences; licenses=[any]" in capsys.readouterr().err
    assert hypergrit.main(["export", str(tmp_path / "out"), "to=hub", "repo=me/train", "licenses=[any]"]) == 0
    assert (hub / "me/train/train/00000.tar").exists()


def test_attribution_needs_a_source() -> None:
    permits, nothing = Permits([]), {"url": None, "page": None, "author": None, "title": None}
    assert permits.refuses({**nothing, "license": BY, "license_name": "cc-by-2.0"})
    assert not permits.refuses({**nothing, "license": BY, "license_name": "cc-by-2.0", "author": "Jane"})
    assert not permits.refuses({**nothing, "license": CC0, "license_name": "cc0-1.0"})
    assert permits.describe() == "1 no source"
