"""Decode expensive images in a child process that can be killed.

A codec cannot be interrupted: a thread that decodes a crafted image runs until it is done, with all the memory that it
wants. The child therefore limits its own CPU time (a timer that kills it) and its address space, and the parent its
wall time. One child serves a process; it starts with the first expensive image and is replaced after a kill.

A request and its answer are lines of JSON; the bytes of the image and of the pixels are in a file in memory that both
share. The child is not trusted: its answers are parsed as JSON, and never unpickled.
"""

import errno
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from typing import IO, Any, Final, cast, get_args

import numpy as np

from hypergrit_common.errors import is_machine_error
from hypergrit_common.image_codec import Decoded, Image, ImageLimits, ImageRejected, Reason
from hypergrit_common.image_header import cost_of
from hypergrit_common.image_server import read_from_start, shared_file, write_at_start
from hypergrit_common.processes import status_text

WALL_FACTOR: Final = 20
"""Wall time that a child may take, as a multiple of its limit on CPU time; other processes may use the CPU."""
ATTEMPTS: Final = 2
"""A child may also end for a reason other than its image."""
START_S: Final = 60.0
"""Wall time for the start of a child."""
FROM_OUTSIDE: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
"""Signals that no codec raises. The system kills a process for a lack of memory, in which the image has little part:
the child's own memory is limited."""
COMMAND: Final = "from hypergrit_common.image_server import serve; serve({descriptor})"
MAX_ANSWER_BYTES: Final = 1 << 16


class DecoderDiedError(Exception):
    """The child ended or was killed during a request; the message is the reason, `is_limit` true for a limit.

    `is_outside` is true if another process or the system killed it.
    """

    def __init__(self, message: str, is_limit: bool, is_outside: bool = False) -> None:
        super().__init__(message)
        self.is_limit, self.is_outside = is_limit, is_outside


class DecoderProcess:
    """A child process that decodes one image at a time; threads wait for each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._shared = shared_file()

    def decode_reduced(self, data: bytes, limits: ImageLimits, short_side: int | None) -> Decoded:
        """Decode like `hypergrit_common.images.decode_reduced`. Raises ImageRejected, also if a limit is exceeded, and OSError if
        the machine lacks something.
        """
        answer, pixels = self._request(data, limits, {"short_side": short_side})
        return Decoded(
            pixels, answer["original_width"], answer["original_height"], answer["original_format"], answer["is_plain"]
        )

    def decode_jpeg(self, data: bytes, flags: int, limits: ImageLimits) -> Image:
        """Decode like `hypergrit_common.images.decode_jpeg`. Raises ImageRejected, also if a limit is exceeded."""
        return self._request(data, limits, {"flags": flags})[1]

    def _request(self, data: bytes, limits: ImageLimits, options: dict[str, Any]) -> tuple[dict[str, Any], Image]:
        cost = cost_of(data, limits.max_pixels)
        request = options | {
            "n_bytes": len(data),
            "limits": [limits.max_pixels, limits.min_side_px, limits.max_aspect_ratio],
            "max_s": cost.max_s,
            "max_bytes": cost.max_bytes,
        }
        with self._lock:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    answer, pixels = self._ask(request, data)
                    break
                except DecoderDiedError as error:
                    if error.is_limit:
                        raise ImageRejected("too_costly", str(error)) from error
                    if attempt == ATTEMPTS and error.is_outside:
                        raise OSError(
                            errno.ENOMEM, f"{error} twice, as the system does for a lack of memory"
                        ) from error
                    if attempt == ATTEMPTS:
                        raise ImageRejected("undecodable", str(error)) from error
        if "errno" in answer:
            raise OSError(int(answer["errno"]), os.strerror(int(answer["errno"])))
        if "reason" in answer:
            reason = answer["reason"] if answer["reason"] in get_args(Reason) else "undecodable"
            raise ImageRejected(cast(Reason, reason), str(answer["detail"]))
        return answer, pixels

    def _ask(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], Image]:
        """Send a request and receive its answer. Raises DecoderDiedError; the next request then starts a new child."""
        child = self._running_child()
        deadline = time.monotonic() + WALL_FACTOR * request["max_s"]
        descriptor = self._shared.fileno()
        try:
            write_at_start(descriptor, data)
            assert child.stdin is not None
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
            answer = json.loads(self._receive_line(deadline))
            pixels = np.empty(answer.get("shape", (0, 0, 3)), np.uint8)
            read_from_start(descriptor, pixels)
            os.ftruncate(descriptor, 0)
            return answer, pixels
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            is_late = isinstance(error, TimeoutError)
            is_machine = is_machine_error(error)
            status = self._stop(kill=is_late or is_machine)
            if is_machine:
                raise
            if is_late or status == -signal.SIGPROF:
                raise DecoderDiedError(f"decoding took more than {request['max_s']:.1f} s", is_limit=True) from error
            if -status in FROM_OUTSIDE:
                raise DecoderDiedError(
                    f"the decoder was killed ({status_text(status)})", False, is_outside=True
                ) from error
            raise DecoderDiedError(f"the decoder crashed ({status_text(status)})", is_limit=False) from error

    def _running_child(self) -> "subprocess.Popen[bytes]":
        """Return the child, started if needed. Raises OSError if the machine cannot start it."""
        if self._child is None:
            try:
                self._child = start_child(self._shared.fileno())
                self._receive_line(time.monotonic() + START_S)
            except (OSError, EOFError) as error:  # includes TimeoutError
                reason = str(error) or type(error).__name__
                if self._child is not None:
                    reason = status_text(self._stop(kill=isinstance(error, TimeoutError)))
                raise OSError(errno.EAGAIN, f"the decoder of images does not start ({reason})") from error
            assert self._child is not None
        return self._child

    def _receive_line(self, deadline: float) -> bytes:
        """Read a line. Raises TimeoutError at the deadline, and EOFError if the child ends or the line does not."""
        assert self._child is not None
        assert self._child.stdout is not None
        descriptor, line = self._child.stdout.fileno(), b""
        poll = select.poll()  # `select` knows no descriptors above 1023
        poll.register(descriptor, select.POLLIN)
        while not line.endswith(b"\n"):
            if not poll.poll(1000 * max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            block = os.read(descriptor, MAX_ANSWER_BYTES)
            line += block
            if not block or len(line) > MAX_ANSWER_BYTES:
                raise EOFError
        return line

    def _stop(self, kill: bool) -> int:
        """End the child and return its exit status."""
        child, self._child = self._child, None
        assert child is not None
        if kill:
            child.kill()
        for pipe in (child.stdin, child.stdout):
            with suppress(OSError):
                cast(IO[bytes], pipe).close()
        try:
            return child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()

    def close(self) -> None:
        """End the child, if there is one. The next request starts another."""
        with self._lock:
            if self._child is not None:
                self._stop(kill=True)


def start_child(descriptor: int) -> "subprocess.Popen[bytes]":
    """Start a child that shares the file `descriptor`. Raises OSError."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND.format(descriptor=descriptor)],
        pass_fds=[descriptor],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # libtiff prints warnings about what it reads
        env=environment | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )


@cache
def _decoder(pid: int) -> DecoderProcess:
    return DecoderProcess()


def isolated() -> DecoderProcess:
    """The decoder of this process; a forked process gets another one."""
    return _decoder(os.getpid())
