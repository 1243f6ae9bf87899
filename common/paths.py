"""Paths that all processes of a job resolve to the same files."""

import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from common.cli import print_exception, set_up_logging
from common.errors import UserError


def absolute(path: str) -> str:
    """Make a local path absolute; strip the trailing slashes of a URL, which object stores treat as part of a name."""
    return path.rstrip("/") if "://" in path else os.path.abspath(path)


def check_output_is_absolute(output: str, instead: str) -> None:
    """Raise UserError if `output` is relative and this process is a Ray job; `instead` describes valid values."""
    if "://" not in output and not os.path.isabs(output) and "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        raise UserError(
            f"output={output} is relative, but a Ray job runs in a temporary copy of the working directory, so the "
            f"output would be lost. Give {instead}, such as output=$PWD/{output}"
        )


def chdir_hook(folder: str) -> Callable[[], None]:
    """Return a start-up hook for Ray workers: it changes the working directory to `folder`, and escapes their logs.

    Relative paths then refer to the same files as in the driver. On a machine without this folder the hook does
    not change it.
    """

    def hook() -> None:
        set_up_logging(logging.WARNING)
        sys.excepthook = print_exception
        with suppress(OSError):
            os.chdir(folder)

    return hook
