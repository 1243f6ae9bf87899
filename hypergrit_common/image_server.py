"""The child process of `hypergrit_common.image_process`: decodes images within limits that end it.

The system kills the child after its CPU time, also within a codec, and refuses it more memory than its limit.
"""

import errno
import json
import os
import resource
import signal
import sys
import tempfile
from typing import IO, Any, Final, cast

import cv2
import numpy as np

from hypergrit_common.image_codec import Image, ImageLimits, ImageRejected, decode_here, decode_jpeg_here
from hypergrit_common.image_header import jpeg_header

MEMORY_ERROR: Final = -4  # of OpenCV


def shared_file() -> IO[bytes]:
    """Open a file without a name: in memory where the system can, else in the folder for temporary files."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("image"), "w+b", buffering=0)
    return cast(IO[bytes], tempfile.TemporaryFile(buffering=0))


def write_at_start(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data` to the start of a file."""
    view, done = memoryview(data).cast("B"), 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], done)


def read_from_start(descriptor: int, target: Image) -> None:
    """Fill `target` from the start of a file. Raises EOFError if the file is shorter."""
    if not target.size:
        return
    view, done = target.data.cast("B"), 0
    while done < len(view):
        n_bytes = os.preadv(descriptor, [view[done:]], done)
        if not n_bytes:
            raise EOFError
        done += n_bytes


def serve(descriptor: int) -> None:
    """Answer the requests on standard input until it ends; the command of the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    cv2.setNumThreads(0)
    own_bytes = address_space()
    sys.stdout.buffer.write(b"\n")  # a sign that it has started
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        data = os.pread(descriptor, request["n_bytes"], 0)
        limit_resources(request["max_s"], own_bytes + len(data) + request["max_bytes"])
        try:
            answer, pixels = answer_to(request, data)
            signal.setitimer(signal.ITIMER_PROF, 0)
            if pixels.size:
                write_at_start(descriptor, np.ascontiguousarray(pixels).data)
        except OSError as error:  # of the machine, not of the image
            answer, pixels = {"errno": error.errno}, np.empty((0, 0, 3), np.uint8)
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()
        del data, pixels


def answer_to(request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], Image]:
    """Decode the image of a request: the fields of the answer and the pixels."""
    nothing = np.empty((0, 0, 3), np.uint8)
    try:
        if "flags" in request:
            pixels = decode_jpeg_here(data, request["flags"])
            return {"shape": pixels.shape}, pixels
        max_pixels, min_side_px, max_aspect_ratio = request["limits"]
        limits = ImageLimits(max_pixels=max_pixels, min_side_px=min_side_px, max_aspect_ratio=max_aspect_ratio)
        found = decode_here(data, jpeg_header(data), limits, request["short_side"])
    except ImageRejected as error:
        return {"reason": error.reason, "detail": error.detail}, nothing
    except (MemoryError, cv2.error, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        if isinstance(error, cv2.error) and error.code != MEMORY_ERROR:
            return {"reason": "undecodable", "detail": f"OpenCV: {error.err}"[:200]}, nothing
        return {"reason": "too_costly", "detail": f"decoding needs more than {request['max_bytes'] >> 20} MB"}, nothing
    fields = {
        "shape": found.pixels.shape,
        "original_width": found.original_width,
        "original_height": found.original_height,
        "original_format": found.original_format,
        "is_plain": found.is_plain,
    }
    return fields, found.pixels


def address_space() -> int:
    """The size of this process's address space in bytes; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def limit_resources(max_s: float, max_bytes: int) -> None:
    """Let the system kill this process after `max_s` more seconds of CPU time, and refuse it more than `max_bytes`."""
    signal.setitimer(signal.ITIMER_PROF, max_s)
    if sys.platform == "linux":
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes if hard < 0 else min(max_bytes, hard), hard))
