"""Where files are, said so that it means the same to every process of a job."""

import os
from collections.abc import Callable
from contextlib import suppress

from common.errors import UserError


def absolute(place: str) -> str:
    """A path from the root; a URL as it is, but for slashes at its end: to an object store they are a part of a name."""
    return place.rstrip("/") if "://" in place else os.path.abspath(place)


def check_output_is_absolute(output: str, instead: str) -> None:
    """Raise UserError for a relative `output` of a Ray job, which is lost when the job ends; `instead` names what to give."""
    if "://" not in output and not os.path.isabs(output) and "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        raise UserError(
            f"output={output} is relative, and a Ray job runs in a temporary copy of the working dir: "
            f"what it wrote there would be lost. Give {instead}, such as output=$PWD/{output}"
        )


def chdir_hook(folder: str) -> Callable[[], None]:
    """For workers to begin with: relative places mean what they mean in `folder`, if this machine has it."""

    def hook() -> None:
        with suppress(OSError):
            os.chdir(folder)

    return hook
