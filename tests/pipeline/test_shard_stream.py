"""open_shards: decoded samples for a training loop of one's own, divided among ranks and loader processes."""

import functools
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from hypergrit_common.errors import UserError
from hypergrit_common.shards import list_shards
from pipeline import open_shards
from tests.memory import memory_below
from tests.trainer.data.samples import (
    Files,
    grit_files,
    jpeg,
    pair_files,
    tar_bytes,
    train_files,
    write_shards,
    write_tar,
)
from trainer.data.workers import preserve_sigchld_handler


@pytest.fixture(autouse=True)
def without_handlers() -> Iterator[None]:
    """Restore the signal handler that a DataLoader leaves behind."""
    with preserve_sigchld_handler():
        yield


def captions(stream: Any) -> list[str]:
    return [sample["caption"] for sample in stream]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A web server of a folder `web`, which sends no parts of files."""
    (tmp_path / "web").mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path / "web"))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_sample_has_image_boxes_and_tree_as_tensors(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "train", [2])
    first, second = open_shards(str(shards), shuffle=0)
    assert (first["key"], first["caption"], first["levels"], first["captions"]) == (
        second["key"][:-1] + "0",
        "cat 0",
        [],
        [],
    )
    assert (first["image"].shape, first["image"].dtype) == ((3, 48, 48), torch.uint8)
    assert [(box["phrase"], tuple(box["crop"].shape)) for box in first["boxes"]] == [
        ("box 0 of 0", (3, 48, 48)),
        ("box 1 of 0", (3, 48, 48)),
    ]
    tree = {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in first["tree"].items()}
    assert tree == {"start": [0, 4], "end": [3, 5], "head": [0, 0], "dep": ["ROOT", "nummod"]}


def test_boxes_of_raw_grit_are_cut_out_and_pairs_have_none(tmp_path: Path) -> None:
    (grit,) = open_shards(str(write_tar(tmp_path / "grit.tar", [("a", grit_files(1))])))
    assert [(box["phrase"], tuple(box["crop"].shape)) for box in grit["boxes"]] == [("a cat", (3, 96, 64))]
    (pair,) = open_shards(str(write_tar(tmp_path / "pairs.tar", [("a", pair_files(1))])))
    assert (pair["boxes"], pair["tree"], tuple(pair["image"].shape)) == ([], None, (3, 40, 64))


def test_commands_and_web_servers_without_ranges_give_the_samples_of_files(tmp_path: Path, address: str) -> None:
    shards = write_shards(tmp_path / "train", [3, 2])
    expected = captions(open_shards(str(shards), shuffle=0))
    assert expected == [f"cat {i}" for i in range(5)]
    assert captions(open_shards(f"pipe:cat '{shards}'/{{00000..00001}}.tar", shuffle=0)) == expected
    assert captions(open_shards(f"pipe:cat {shards}/0000{{0,1}}.tar | cat", shuffle=0)) == expected
    shutil.copytree(shards, tmp_path / "web", dirs_exist_ok=True)
    assert captions(open_shards(f"{address}/{{00000..00001}}.tar", shuffle=0)) == expected
    with pytest.raises(UserError, match="is a command"):
        list_shards("pipe:cat a.tar")
    with pytest.raises(UserError, match="no shards given"):
        open_shards("")


def test_every_loader_process_of_every_rank_has_its_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = write_shards(tmp_path / "train", [2] * 8)
    monkeypatch.setenv("WORLD_SIZE", "2")
    parts = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        parts += captions(DataLoader(open_shards(str(shards), shuffle=4), batch_size=None, num_workers=2 * rank))
    assert sorted(parts) == sorted(f"cat {i}" for i in range(16))


def test_fewer_shards_than_loader_processes_are_refused(tmp_path: Path) -> None:
    stream = open_shards(str(write_shards(tmp_path / "train", [2])))
    with pytest.raises(UserError, match="1 shard cannot be divided among 2 loader processes; use fewer processes"):
        captions(DataLoader(stream, batch_size=None, num_workers=2))


@pytest.mark.parametrize(("workers", "stays"), [(0, False), (2, False), (2, True)])
def test_epochs_have_orders_of_their_own_which_repeat_with_the_seeds(tmp_path: Path, workers: int, stays: bool) -> None:
    shards = write_shards(tmp_path / "train", [4] * 4)

    def epochs(seed: int) -> list[list[str]]:
        torch.manual_seed(7)
        stream = open_shards(str(shards), shuffle=8, seed=seed)
        loader = DataLoader(stream, batch_size=None, num_workers=workers, persistent_workers=stays)
        return [captions(loader) for _ in range(2)]

    first, second = epochs(0)
    assert first != second
    assert sorted(first) == sorted(second) == sorted(f"cat {i}" for i in range(16))
    assert epochs(0) == [first, second]
    assert epochs(1)[0] != first


def test_the_pipeline_has_the_methods_of_webdataset(tmp_path: Path) -> None:
    stream = open_shards(str(write_shards(tmp_path / "train", [4])), shuffle=0)
    batches = stream.map(lambda sample: sample["caption"]).batched(3, collation_fn=list)
    assert list(batches) == [["cat 0", "cat 1", "cat 2"], ["cat 3"]]
    assert captions(stream.with_epoch(6)) == [f"cat {i}" for i in (0, 1, 2, 3, 0, 1)]


def test_bad_samples_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nan = json.dumps({"caption": "a cat", "noun_chunks": [[0, 5, float("nan"), 0, 1, 1, 0.9]], "ref_exps": []}).encode()
    wrong: list[tuple[str, Files]] = [
        ("a", grit_files(1)),
        ("b", {"jpg": jpeg(), "json": nan}),
        ("c", {"jpg": b"no image", "json": b'{"caption": "a cat", "noun_chunks": []}'}),
        ("d", {"jpg": jpeg(), "json": b"no json"}),
        ("e", {"jpg": jpeg(), "json": b'{"caption": " ", "noun_chunks": []}'}),
        ("f", {"jpg": jpeg(9, 128, 96), "json": b'{"caption": "no box", "noun_chunks": []}'}),
    ]
    shards = str(write_tar(tmp_path / "a.tar", wrong))
    stream = open_shards(shards, shuffle=0)
    assert captions(stream) == ["a cat 1", "no box"]
    for reason in ("bad_json", "undecodable_image", "no_caption"):
        assert f": {reason}: " in caplog.text
    assert "bad sample 1, left out" in caplog.text
    assert captions(open_shards(shards, needs=["boxes"], shuffle=0)) == ["a cat 1"]
    many = str(write_tar(tmp_path / "many.tar", [("a", pair_files(1)), *((f"b{i}", {"txt": b"x"}) for i in range(80))]))
    with pytest.raises(UserError, match=r"64 of the 65 samples .* \(64 missing_member\), more than max_bad_share=0.1"):
        list(open_shards(many, shuffle=0))


def test_damaged_shards_are_read_up_to_the_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shards = write_shards(tmp_path / "train", [2] * 12)
    whole = (shards / "00003.tar").read_bytes()
    start_of_second = len(tar_bytes([("x", train_files(6))]).rstrip(b"\0")) // 512 * 512 + 512
    (shards / "00003.tar").write_bytes(whole[: start_of_second + 700])
    stream = open_shards(str(shards), shuffle=0)
    assert captions(stream) == [f"cat {i}" for i in range(24) if i != 7]
    assert list(stream.damaged) == [str(shards / "00003.tar")]
    (shards / "00004.tar").write_bytes(b"<html>not found</html>" * 99)
    with pytest.raises(UserError, match="2 of the 12 shards of this process are damaged"):
        captions(open_shards(str(shards), shuffle=0))


@pytest.mark.parametrize("content", ["cut", "hole", "twice", "large"])
def test_no_damage_of_a_tar_passes_unnoticed(tmp_path: Path, content: str) -> None:
    samples: list[tuple[str, Files]] = [("a", pair_files(1)), ("b", pair_files(2))]
    match content:
        case "cut":  # at the end of a file, where tarfile takes it for whole
            data = tar_bytes(samples).rstrip(b"\0")
            data = data.ljust(-(-len(data) // 512) * 512, b"\0")
        case "hole":
            data = tar_bytes(samples).rstrip(b"\0").ljust(40 << 10, b"\0") + tar_bytes([("c", pair_files(3))])
        case "twice":
            data = tar_bytes([*samples, ("b", pair_files(3))])
        case "large":
            data = tar_bytes([*samples, ("c", {"jpg": bytes(100 << 20), "txt": b"large"})])
    (tmp_path / "a.tar").write_bytes(data)
    stream = open_shards(str(tmp_path), shuffle=0, max_bad_share=1.0)
    with memory_below(200 << 20):
        found = captions(stream)
    assert found == (["cat 1"] if content in ("cut", "hole") else ["cat 1", "cat 2"])
    assert len(stream.damaged) == 1


def test_a_command_that_fails_is_a_damaged_shard_whose_words_stay_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tar(tmp_path / "a.tar", [("a", pair_files(1))])
    for command, problem in (
        (f"head -c 900 {path}; exit SECRET", "unexpected end of data"),
        ("exit SECRET", "empty file"),
    ):
        with pytest.raises(UserError, match=rf"pipe:\w+ \.\.\.: {problem}") as error:
            list(open_shards(f"pipe:{command}"))
        assert "SECRET" not in str(error.value)
    assert "SECRET" not in caplog.text
