"""Paths that all processes of a job resolve to the same files."""

import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from hypergrit_common.cli import escape_exceptions, set_up_logging
from hypergrit_common.errors import UserError

LOCAL: Final = ("file://", "local://")
"""Protocols of local paths in fsspec; what follows may be a relative path."""


def repository_root() -> Path:
    """The folder that contains the packages."""
    return Path(__file__).resolve().parents[1]


def absolute(path: str) -> str:
    """Make a local path absolute; strip the trailing slashes of a URL, which object stores treat as part of a name."""
    local = without_protocol(path)
    is_url = "://" in path and (path == local or os.path.isabs(local))
    return path.rstrip("/") if is_url else os.path.abspath(local)


def without_protocol(path: str) -> str:
    """Return the path of a local URL; other URLs and paths as they are."""
    return next((path.removeprefix(name) for name in LOCAL if path.startswith(name)), path)


def public_name(model: str) -> str:
    """Return the name of a model without the folder, bucket or server of those who ran it.

    >>> public_name("/home/ann/models/swin"), public_name("openai:http://127.0.0.1:8000/v1#qwen"), public_name("a/b")
    ('swin', 'qwen', 'a/b')
    """
    if "://" in model or os.path.isabs(model):
        return model.partition("#")[2] or model.rstrip("/").rpartition("/")[2]
    return model


def check_output_is_absolute(output: str, instead: str) -> None:
    """Raise UserError if `output` is relative and this process is a Ray job; `instead` describes valid values."""
    if is_relative_in_ray_job(output):
        raise UserError(
            f"output={output} is relative, but a Ray job runs in a temporary copy of the working directory, so the "
            f"output would be lost. Give {instead}, such as output={made_absolute(output)}"
        )


def check_input_is_absolute(input: str, key: str = "input") -> None:
    """Raise UserError if `input`, the value of `key`, is relative and this process is a Ray job.

    This includes files of the submitted working directory: the workers run in other copies of it, so that the recorded
    paths would differ between runs.
    """
    if is_relative_in_ray_job(input):
        raise UserError(
            f"{key}={input} is relative, but a Ray job runs in a temporary copy of the working directory. Give an "
            f"absolute path that all machines can read, such as {key}={made_absolute(input)}, or a URL"
        )


def is_relative_in_ray_job(path: str) -> bool:
    """Return True for a relative path, no URL, if this process was started by `ray job submit`."""
    is_ray_job, path = "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ, without_protocol(path)
    return is_ray_job and "://" not in path and not os.path.isabs(path)


def made_absolute(path: str) -> str:
    """Return what to write in a shell in place of a relative path."""
    path = without_protocol(path)
    return path if path.startswith("~") else f"$PWD/{path}"


def set_variables(variables: Mapping[str, str]) -> None:
    """Set environment variables of this process, also those that fsspec reads when it is imported (FSSPEC_*)."""
    os.environ.update(variables)
    if variables and (config := sys.modules.get("fsspec.config")):
        config.set_conf_env(config.conf, os.environ)


def chdir_hook(folder: str, variables: Mapping[str, str] | None = None) -> Callable[[], None]:
    """Return a start-up hook for Ray workers: it changes the working directory to `folder`, and escapes their logs.

    Relative paths then refer to the same files as in the driver. On a machine without this folder the hook does
    not change it. It also sets `variables`: Ray logs and shows those of a runtime environment, not what a hook holds.
    """

    def hook() -> None:
        set_variables(variables or {})
        set_up_logging(logging.WARNING)
        escape_exceptions()
        with suppress(OSError):
            os.chdir(folder)

    return hook
