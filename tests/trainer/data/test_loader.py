import io
import json
import logging
import multiprocessing
import os
import pickle
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from common.errors import UserError
from tests.trainer.data.samples import (
    TOKENIZER,
    Files,
    grit_files,
    jpeg,
    pair_files,
    train_files,
    write_shards,
    write_tar,
)
from trainer.batch import Batch
from trainer.data.config import DataConfig
from trainer.data.loader import Loader
from trainer.text.syntax import Syntax

BOXES = frozenset({"boxes"})


def loader(shards: object, batch: int = 4, needs: frozenset[str] = BOXES, **fields: Any) -> Loader:
    ranks = {name: fields.pop(name) for name in ("rank", "world_size") if name in fields}
    config = DataConfig(**{"shards": str(shards), "workers": 0, "shuffle_buffer": 6, **fields})
    return Loader(config, tokenizer=TOKENIZER, size_px=16, batch=batch, needs=needs, **ranks)


def take(source: Loader, n: int) -> list[Batch]:
    batches = list(islice(iter(source), n))
    source.close()
    return batches


def tensors(batch: Batch) -> dict[str, torch.Tensor]:
    fields = {**vars(batch), **(vars(batch.syntax) if batch.syntax else {})}
    return {name: value for name, value in fields.items() if isinstance(value, torch.Tensor)}


def assert_same(ours: Sequence[Batch], theirs: Sequence[Batch]) -> None:
    assert [batch.keys for batch in ours] == [batch.keys for batch in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert tensors(one).keys() == tensors(other).keys()
        assert all(torch.equal(value, tensors(other)[name]) for name, value in tensors(one).items())


def keys(batches: Sequence[Batch]) -> list[str]:
    return [key for batch in batches for key in batch.keys]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return write_shards(tmp_path / "shards", [7, 0, 9, 5])


def test_a_batch_is_what_the_models_take(shards: Path) -> None:
    (batch,) = take(loader(shards, needs=frozenset({"boxes", "parse"})), 1)
    assert (batch.images.shape, batch.images.dtype) == ((4, 3, 16, 16), torch.uint8)
    assert batch.box_images is not None
    assert batch.box_token_ids is not None
    assert batch.box_images.shape == (4, 3, 16, 16)
    assert batch.box_owner is None
    assert isinstance(batch.syntax, Syntax)
    for row, key in enumerate(batch.keys):
        number = int(key[-4:])
        assert TOKENIZER.decode(batch.token_ids[row].tolist()).replace(" ", "") == f"cat{number}"
        assert f"of{number}" in TOKENIZER.decode(batch.box_token_ids[row].tolist()).replace(" ", "")
        bright = batch.images[row].max().item()
        assert abs(bright - (number % 200 + 50)) < 12


def test_every_epoch_has_every_sample_once_and_none_is_lost_between(shards: Path) -> None:
    row = keys(take(loader(shards), 21))  # 84 samples: four epochs of 21
    for epoch in range(4):
        assert len(set(row[21 * epoch : 21 * epoch + 21])) == 21


@pytest.mark.parametrize("layout", [train_files, grit_files, pair_files])
def test_workers_change_nothing(tmp_path: Path, layout: Any) -> None:
    shards = write_shards(tmp_path, [5, 6], layout)
    needs = frozenset[str]() if layout is pair_files else BOXES
    assert_same(take(loader(shards, needs=needs), 5), take(loader(shards, needs=needs, workers=2), 5))


def test_ranks_share_each_batch_out(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [10])  # one shard for four ranks
    alone = take(loader(shards, batch=8), 3)
    ranks = [take(loader(shards, batch=2, rank=rank, world_size=4), 3) for rank in range(4)]
    for step, batch in enumerate(alone):
        assert batch.keys == tuple(keys([batches[step] for batches in ranks]))
        assert torch.equal(batch.images, torch.cat([batches[step].images for batches in ranks]))


def test_a_run_goes_on_where_it_was_killed(shards: Path) -> None:
    whole = take(loader(shards), 9)
    first = loader(shards, workers=1)
    batches = iter(first)
    for _ in range(4):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    first.close()
    again = loader(shards, workers=2, prefetch=1)
    again.load_state_dict(state)
    assert_same(take(again, 5), whole[4:])
    assert again.counts["samples"] == 36


def test_what_comes_before_the_position_is_not_read(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {**loader(shards).state_dict(), "place": 4 * 5000}
    again = loader(shards)
    again.load_state_dict(state)
    made = []
    make = again.maker.make
    monkeypatch.setattr(again.maker, "make", lambda place, samples: made.append(place) or make(place, samples))
    take(again, 2)
    assert made == [20000, 20004]
    assert again.epoch == 20008 / 21


def test_a_position_in_other_data_is_refused(shards: Path, tmp_path: Path) -> None:
    state = loader(shards).state_dict()
    for other in (loader(write_shards(tmp_path / "other", [7, 9, 6])), loader(shards, seed=1)):
        with pytest.raises(UserError, match="position is one in other data"):
            other.load_state_dict(state)


def test_moved_shards_are_the_same_data(shards: Path, tmp_path: Path) -> None:
    state = loader(shards).state_dict()
    moved = shards.rename(tmp_path / "moved")
    loader(moved).load_state_dict(state)


def test_the_global_generator_is_left_alone(shards: Path) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    take(loader(shards), 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_sample_is_cut_anew_at_each_visit(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [1])
    batches = take(loader(shards, batch=1), 30)
    assert len({batch.images.numpy().tobytes() for batch in batches}) > 10
    phrases = Counter(str(batch.box_token_ids) for batch in batches)
    assert len(phrases) == 2
    assert min(phrases.values()) > 5


def test_all_boxes_come_with_their_owners(tmp_path: Path) -> None:
    samples = [(f"{n}", train_files(n, n_boxes=n)) for n in (1, 2, 3)]
    write_tar(tmp_path / "0.tar", samples)
    (batch,) = take(loader(tmp_path, batch=3, boxes="all", shuffle_buffer=0), 1)
    assert batch.box_owner is not None
    assert batch.box_images is not None
    assert batch.box_owner.tolist() == [0, 1, 1, 2, 2, 2]
    assert len(batch.box_images) == 6


def test_without_a_need_for_boxes_there_are_none(shards: Path) -> None:
    (batch,) = take(loader(shards, needs=frozenset()), 1)
    assert (batch.box_images, batch.box_token_ids, batch.syntax) == (None, None, None)


def test_raw_grit_boxes_come_from_the_image_itself(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [4], grit_files)
    (batch,) = take(loader(shards, crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0)), 1)
    assert batch.box_images is not None
    # A 64 x 96 box is the dark half, in the middle of a white square; the 128 x 96 image has white above and below.
    assert (batch.box_images[:, :, :, 5:11].float().mean() - 100).abs() < 5
    assert (batch.box_images[:, :, :, :2] == 255).all()
    assert (batch.images[:, :, :2] == 255).all()


def test_subreddits_precede_half_the_captions(tmp_path: Path) -> None:
    files: Files = {"jpg": jpeg(), "json": b'{"caption": "my cat", "subreddit": "cats"}'}
    write_tar(tmp_path / "0.tar", [("a", files)])
    row = [TOKENIZER.decode(batch.token_ids[0].tolist()) for batch in take(loader(tmp_path, 1, frozenset()), 60)]
    texts = Counter(text.replace(" ", "") for text in row)
    assert set(texts) == {"mycat", "cats:mycat"}
    assert 18 <= texts["cats:mycat"] <= 42


def test_shards_in_a_remote_store_give_the_same_batches(shards: Path) -> None:
    fs = fsspec.filesystem("memory")
    for path in shards.iterdir():
        fs.pipe(f"/loader/{path.name}", path.read_bytes())
    assert_same(take(loader("memory://loader"), 4), take(loader(shards), 4))


class RangeHandler(BaseHTTPRequestHandler):
    """Files of a folder, with range requests, which the standard library's own handler ignores."""

    folder: Path
    ranges = True

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        content = (self.folder / self.path.strip("/")).read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        part = content[int(wanted[1]) : int(wanted[2]) + 1] if wanted and self.ranges else content
        self.send_response(206 if wanted and self.ranges else 200)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Accept-Ranges", "bytes")
        if wanted and self.ranges:
            self.send_header("Content-Range", f"bytes {wanted[1]}-{wanted[2]}/{len(content)}")
        self.end_headers()
        if body:
            self.wfile.write(part)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web(shards: Path) -> Iterator[str]:
    RangeHandler.folder, RangeHandler.ranges = shards, True
    server = ThreadingHTTPServer(("127.0.0.1", 0), RangeHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_workers_read_from_the_web_what_is_on_the_disk(shards: Path, web: str) -> None:
    """Their parent has asked the same store before it forked."""
    urls = ",".join(f"{web}/0000{i}.tar" for i in range(4))
    assert_same(take(loader(urls, workers=2), 3), take(loader(shards), 3))


def test_a_store_without_range_requests_is_named(shards: Path, web: str) -> None:
    source = loader(f"{web}/00000.tar")
    RangeHandler.ranges = False
    with pytest.raises(UserError, match="range requests"):
        take(source, 1)


def test_another_process_can_be_sent_what_makes_batches(tmp_path: Path) -> None:
    for make, needs in ((train_files, BOXES), (pair_files, frozenset[str]())):
        source = loader(write_shards(tmp_path / make.__name__, [5], make), needs=needs)
        sent = pickle.loads(pickle.dumps(source.maker))
        task = next(source.tasks(0))
        assert torch.equal(sent.make(*task)[0]["images"], source.maker.make(*task)[0]["images"])


def with_bad_samples(folder: Path) -> Path:
    samples = [(f"{n:04d}", train_files(n)) for n in range(20)]
    samples[3][1]["child.jpg"] = jpeg()[:300]
    samples[8][1]["parent000.jpg"] = samples[8][1]["parent001.jpg"] = b"no image"
    samples[11][1]["child.txt"] = b""
    del samples[14][1]["child.txt"]
    write_tar(folder / "0.tar", samples)
    return folder


def test_bad_samples_are_counted_named_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = loader(with_bad_samples(tmp_path), batch=5)
    with caplog.at_level(logging.WARNING):
        batches = take(source, 4)
    assert all(len(batch.keys) == 5 == len(set(batch.keys)) for batch in batches)
    assert not {f"0.tar/{n:04d}" for n in (3, 8, 11, 14)} & set(keys(batches))
    bad = {name: n for name, n in source.counts.items() if name.startswith("bad/")}
    assert bad.keys() == {"bad/undecodable_image", "bad/no_caption", "bad/missing_member"}
    assert sum(bad.values()) >= 4  # a replacement may be bad too
    assert "0.tar: 0014: missing_member: there is no child.txt" in caplog.text


def test_replacements_are_the_same_with_workers_and_after_a_resume(tmp_path: Path) -> None:
    shards = with_bad_samples(tmp_path)
    source, again = loader(shards, workers=1), loader(shards)
    whole = take(source, 6)
    again.load_state_dict({**again.state_dict(), "place": 12})
    assert_same(take(again, 3), whole[3:])


def test_many_bad_samples_do_not_flood_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    samples = [(f"{n}", train_files(n)) for n in range(20)]
    for _, files in samples[4:]:
        files["child.txt"] = b""
    write_tar(tmp_path / "0.tar", samples)
    source = loader(tmp_path, batch=1)
    take(source, 30)
    assert source.n_bad > 100
    assert len(caplog.records) < 20


@pytest.mark.parametrize(
    ("make", "needs", "message"),
    [
        (pair_files, "boxes", r"00000\.tar: 0000: no_boxes.*without boxes"),
        (lambda n: train_files(n, with_json=False), "parse", r"00000\.tar: 0000: no_parse.*formats=\[train\]"),
        (lambda n: {"txt": b"a"}, "boxes", r"missing_member: there is no jpg.*Give train/ shards"),
    ],
)
def test_data_without_what_the_model_needs_is_refused_at_the_start(
    tmp_path: Path, make: Any, needs: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        loader(write_shards(tmp_path, [3, 2], make), needs=frozenset({needs}))


def test_data_of_another_layout_than_was_asked_for_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no json.*The layout asked for is grit; auto looks for itself"):
        loader(write_shards(tmp_path, [3], pair_files), layout="grit")


def test_one_good_sample_among_those_looked_at_is_enough_to_start(tmp_path: Path) -> None:
    samples = [(f"{n}", train_files(n, n_boxes=int(n == 5))) for n in range(10)]
    write_tar(tmp_path / "0.tar", samples)
    (batch,) = take(loader(tmp_path, batch=1), 1)
    assert batch.keys == ("0.tar/5",)


@pytest.mark.parametrize("workers", [0, 1])
def test_bad_samples_alone_stop_the_run(tmp_path: Path, workers: int) -> None:
    samples = [(f"{n}", train_files(n)) for n in range(4)]
    write_tar(tmp_path / "0.tar", samples)
    source = loader(tmp_path, workers=workers)
    for _, files in samples:
        files["child.txt"] = b" " * len(files["child.txt"])  # of the same size: the index holds
    write_tar(tmp_path / "0.tar", samples)
    with pytest.raises(UserError, match=r"256 bad samples one after the other, the last: .*0\.tar: \d: no_caption"):
        take(source, 1)


def test_a_killed_worker_is_explained_where_the_next_batch_is_asked_for(shards: Path) -> None:
    before = set(multiprocessing.active_children())
    source = loader(shards, workers=1)
    batches = iter(source)
    next(batches)
    (worker,) = set(multiprocessing.active_children()) - before
    os.kill(worker.pid or 0, signal.SIGKILL)
    worker.join(10)
    with pytest.raises(UserError, match=r"was killed.*data\.workers"):
        list(islice(batches, 10))
    source.close()


def test_fewer_samples_than_a_batch_are_spoken_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (batch,) = take(loader(write_shards(tmp_path, [3]), batch=7), 1)
    assert len(batch.keys) == 7
    assert "3 samples are fewer than a batch of 7" in caplog.text


@pytest.mark.parametrize("fields", [{"workers": -1}, {"crop_scale": (0.9, 0.2)}, {"subreddit_probability": 2.0}])
def test_impossible_settings_are_named(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(UserError, match=rf"^{name} is"):
        replace(DataConfig(), **fields)


def test_images_are_not_copied_to_have_their_channels_first(shards: Path) -> None:
    (batch,) = take(loader(shards), 1)
    assert batch.images.is_contiguous(memory_format=torch.channels_last)


def test_a_batch_can_be_saved_and_read_as_tensors_alone(shards: Path) -> None:
    (batch,) = take(loader(shards), 1)
    file = io.BytesIO()
    torch.save(tensors(batch), file)
    file.seek(0)
    assert torch.load(file, weights_only=True).keys() == tensors(batch).keys()
