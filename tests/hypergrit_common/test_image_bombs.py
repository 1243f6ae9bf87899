"""Crafted images are dropped, or decoded, in bounded time and memory; other images do not notice."""

import io
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import PIL.Image
import pyarrow as pa
import pytest

from hypergrit_common import image_process
from hypergrit_common.errors import is_machine_error
from hypergrit_common.image_header import MAX_SCANS, cost_of
from hypergrit_common.image_process import DecoderProcess, isolated
from hypergrit_common.images import ISOLATED_S, ImageLimits, ImageRejected, decode, decode_reduced
from pipeline.faults import run_isolated
from pipeline.stages.download import stage
from pipeline.stages.download.config import DownloadConfig
from schemas.rows import READ
from tests.hypergrit_common import bombs
from tests.patience import PATIENCE_S, wait_until
from tests.pipeline.test_images import encoded, gradient

LIMITS = ImageLimits()
MAX_CPU_S = 4.0  # the limits are below 2 s on an idle core of this decade
MAX_BYTES = 1_000_000_000


class Outcome(NamedTuple):
    """The result for an image, and the resources that a fresh process and its children used for it."""

    result: str  # drop reason or size
    cpu_s: float
    peak_bytes: int


def measure(data: bytes, queue: "multiprocessing.Queue[Outcome]") -> None:
    try:
        result = str(decode_reduced(data, LIMITS, 256).original_width)
    except ImageRejected as error:
        result = error.reason
    child = isolated()._child
    peaks = [peak_bytes("self"), peak_bytes(str(child.pid)) if child else 0]
    isolated().close()
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    queue.put(Outcome(result, sum(usage.ru_utime + usage.ru_stime for usage in usages), max(peaks)))


def peak_bytes(process: str) -> int:
    """The peak memory of a process; unlike ru_maxrss it does not include that of the parent before exec."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def outcome_of(data: bytes) -> Outcome:
    context = multiprocessing.get_context("spawn")  # a forked process would begin with the peak memory of this one
    queue: multiprocessing.Queue[Outcome] = context.Queue()
    process = context.Process(target=measure, args=(data, queue))
    process.start()
    outcome = queue.get(timeout=PATIENCE_S)
    process.join()
    return outcome


@pytest.mark.parametrize(
    ("make", "result"),
    [
        (bombs.scan_bomb, "too_costly"),
        pytest.param(partial(bombs.scan_bomb, 8, MAX_SCANS), "too_costly", marks=pytest.mark.rest),
        (bombs.tile_bomb, "too_costly"),
        pytest.param(partial(bombs.tile_bomb, 7000), "too_costly", marks=pytest.mark.rest),
        (bombs.fill_bomb, "too_costly"),
        (bombs.segment_bomb, "too_costly"),
        (bombs.comment_bomb, "too_costly"),
        pytest.param(partial(bombs.chunk_bomb, b"IDAT", 4_000_000), "too_costly", marks=pytest.mark.rest),
        (partial(bombs.chunk_bomb, b"zzZz", 4_000_000), "too_costly"),
        pytest.param(lambda: bombs.LARGE_WEBP["RGB"], "7740", marks=pytest.mark.rest),
        pytest.param(lambda: bombs.LARGE_WEBP["RGBA"], "7740", marks=pytest.mark.rest),
        (bombs.large_png, "7740"),
    ],
)
def test_crafted_image_is_bounded_in_time_and_memory(make: Callable[[], bytes], result: str) -> None:
    outcome = outcome_of(make())
    assert outcome.result == result
    assert outcome.cpu_s < MAX_CPU_S + 2  # 2 s for starting two interpreters on a busy machine
    assert outcome.peak_bytes < MAX_BYTES


@pytest.mark.parametrize("compression", [1, 5, 8])
def test_tiles_are_judged_before_decoding(compression: int) -> None:
    with pytest.raises(ImageRejected, match="tiles of 46000 x 46000 px in an image of 100 x 100 px"):
        decode(bombs.tile_bomb(compression=compression))


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
def test_usual_image_is_not_isolated(format_: str) -> None:
    data = encoded(gradient(480, 640), format_)
    assert (cost_of(data, LIMITS.max_pixels).predicted_s > ISOLATED_S) == (format_ == "TIFF")


def test_progressive_photo_with_data_after_its_end_is_kept() -> None:
    photo = encoded(gradient(1500, 2000), "JPEG", progressive=True)
    data = photo + b"\xff\xda" * 3000  # such as the video of a moving photo
    assert decode(data).shape == (1500, 2000, 3)


@pytest.mark.parametrize("format_", ["PNG", "WEBP", "JPEG", "TIFF"])
def test_isolated_decoder_gives_the_same_pixels(format_: str) -> None:
    data = encoded(gradient(300, 400), format_)
    np.testing.assert_array_equal(isolated().decode_reduced(data, LIMITS, None).pixels, decode(data))


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
@pytest.mark.parametrize("format_", ["WEBP", "PNG"])
def test_large_image_converted_in_strips_equals_pillows(
    format_: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hypergrit_common.image_codec.STRIP_PIXELS", 5000)
    rng = np.random.default_rng(0)
    noise = cv2.resize(rng.integers(0, 255, (40, 50, 4), np.uint8), (231, 207), interpolation=cv2.INTER_CUBIC)
    data = encoded(PIL.Image.fromarray(noise).convert(mode), format_)
    image = PIL.Image.open(io.BytesIO(data)).convert("RGBA")
    expected = PIL.Image.alpha_composite(PIL.Image.new("RGBA", image.size, "white"), image)
    np.testing.assert_array_equal(decode(data), np.asarray(expected.convert("RGB")))


def test_rejection_in_the_child_is_the_same_as_here() -> None:
    data = encoded(gradient(300, 400), "TIFF")
    with pytest.raises(ImageRejected) as caught:
        decode(data[: len(data) // 2])
    assert caught.value.reason == "undecodable"
    with pytest.raises(ImageRejected, match="too_small"):
        decode(data, ImageLimits(min_side_px=301))


def test_child_killed_by_another_is_replaced_and_its_image_kept() -> None:
    decoder, data = DecoderProcess(), encoded(gradient(30, 40), "TIFF")
    decoder.decode_reduced(data, LIMITS, None)
    assert decoder._child is not None
    os.kill(decoder._child.pid, signal.SIGKILL)
    time.sleep(0.1)
    assert decoder.decode_reduced(data, LIMITS, None).pixels.shape == (30, 40, 3)
    decoder.close()


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT"])
def test_only_a_crash_of_its_own_is_the_fault_of_an_image(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The system kills a process with SIGKILL for a lack of memory."""
    command = (
        f"import os; print(flush=True); input(); os.kill(os.getpid(), {int(signal.Signals[name])}) # {{descriptor}}"
    )
    monkeypatch.setattr(image_process, "COMMAND", command)
    decoder, data = DecoderProcess(), encoded(gradient(30, 40), "TIFF")
    if name in ("SIGSEGV", "SIGABRT"):
        with pytest.raises(ImageRejected, match=f"undecodable.*{name}"):
            decoder.decode_reduced(data, LIMITS, None)
    else:
        with pytest.raises(OSError, match=name) as caught:
            decoder.decode_reduced(data, LIMITS, None)
        assert is_machine_error(caught.value)


@pytest.mark.parametrize("executable", ["/bin/false", "/nowhere/python"])
def test_a_decoder_that_does_not_start_drops_no_row(monkeypatch: pytest.MonkeyPatch, executable: str) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(stage, "PATIENCE_S", 0.1)
    isolated().close()
    image = encoded(PIL.Image.new("RGB", (3000, 2000), "red"), "TIFF")
    rows = [{"key": "0", "source": "a", "source_row": 0, "status": "kept", "image": image}]
    download = stage.Download(DownloadConfig())
    with pytest.raises(OSError, match="does not start"):
        run_isolated("download", download.isolate, pa.Table.from_pylist(rows, schema=READ))
    monkeypatch.undo()
    assert download(pa.Table.from_pylist(rows, schema=READ))["status"].to_pylist() == ["kept"]


def test_child_ends_with_its_parent() -> None:
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[int] = context.Queue()
    process = context.Process(target=leave_a_child, args=(queue,))
    process.start()
    pid = queue.get(timeout=PATIENCE_S)
    process.join()
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))


def leave_a_child(queue: "multiprocessing.Queue[int]") -> None:
    decode(encoded(gradient(30, 40), "TIFF"))
    child = isolated()._child
    assert child is not None
    queue.put(child.pid)
    queue.close()
    queue.join_thread()
    os.kill(os.getpid(), signal.SIGKILL)


def test_markers_without_length_hide_no_scans() -> None:
    stream = io.BytesIO()
    PIL.Image.new("L", (2800, 2800), 90).save(stream, "JPEG", progressive=True, quality=50)
    data = stream.getvalue()
    scan = data[data.rfind(b"\xff\xda") : -2]
    for hiding in (b"\xff\x01", b"\xff\xd0\xff\x01\xff\xff"):
        with pytest.raises(ImageRejected, match="too_costly"):
            decode(data[:-2] + hiding + scan * 2000 + data[-2:])


@pytest.mark.parametrize("in_child", [False, True])
def test_shared_file_that_cannot_be_written_is_no_fault_of_the_image(in_child: bool) -> None:
    decoder, data = DecoderProcess(), encoded(gradient(300, 400), "TIFF")
    decoder.decode_reduced(data, LIMITS, None)
    assert decoder._child is not None
    pid = decoder._child.pid if in_child else os.getpid()
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            decoder.decode_reduced(data, LIMITS, None)
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    assert decoder.decode_reduced(data, LIMITS, None).pixels.shape == (300, 400, 3)
    decoder.close()
