"""The meaning of a failed call: an error of the job, of its shard, or only of the machine."""

import re
from typing import Final, Literal

from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)

from common.errors import UserError
from pipeline.faults.fault import ShardError, TooManyFaultsError, describe
from pipeline.rescue.child import RemoteError

COLOR: Final = re.compile(r"\x1b\[[0-9;]*m")
Kind = Literal["job", "shard", "crash", "lost"]
FOR_JOB: Final = (UserError, TooManyFaultsError)
CRASHES: Final = (WorkerCrashedError, OutOfMemoryError, ActorDiedError, RayActorError, TaskCancelledError)
LOSSES: Final = (ObjectLostError, NodeDiedError, LocalRayletDiedError, ActorUnavailableError)
"""Losses of a machine or of what it held. `ObjectLostError` includes objects that cannot be reconstructed."""


def root(error: BaseException) -> BaseException:
    """Return the error behind a RayTaskError: Ray also wraps its own, such as that of a lost argument of a call."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error


def kind_of(error: BaseException) -> Kind:
    """Classify an error: it ends the job, counts against the shard, ended a worker, or came from a lost machine."""
    error = root(error)
    if isinstance(error, FOR_JOB):
        return "job"
    if isinstance(error, LOSSES):
        return "lost"
    return "crash" if isinstance(error, CRASHES) else "shard"


def message_of(error: BaseException) -> str:
    """Return an error in one line, for records and logs."""
    cause = root(error)
    if isinstance(cause, ShardError | RemoteError):
        return str(cause)
    if isinstance(cause, RayError):
        lines = str(cause).strip().splitlines()
        return f"{type(cause).__name__}: {lines[0] if lines else ''}".rstrip(": ")
    return describe(cause)


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception in a worker; empty for those that need none."""
    cause = root(error)
    if isinstance(cause, ShardError):
        return ""
    if isinstance(cause, RemoteError):
        return cause.traceback
    return COLOR.sub("", str(error)) if isinstance(error, RayTaskError) else ""
