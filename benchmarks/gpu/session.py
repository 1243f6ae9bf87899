"""Options of the scripts, their limit of time, and results that are saved after each measurement."""

import argparse
import gc
import json
import platform
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from benchmarks.gpu.timing import gpu_name
from hypergrit_common.devices import pick_device

OUT = Path("out/gpu")
MINUTES = 9.0
MAX_MESSAGE = 600
RING_AGAIN_S = 10.0


class OutOfTime(BaseException):
    """The script has run for `--minutes`. Not an Exception, so that no `except Exception` hides it."""


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every script."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda[:n]")
    parser.add_argument("--tiny", action="store_true", help="use very small networks and few repetitions, for a test")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="time after which the script stops and saves")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    return parser


class Session:
    """The results of a script: `OUT/NAME.json` with one row per measurement, and other files named `OUT/NAME_*`."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.options, self.device = name, options, pick_device(options.device)
        self.start, self.is_complete = time.monotonic(), False
        self.rows: list[dict[str, Any]] = []
        options.out.mkdir(parents=True, exist_ok=True)

    @property
    def seconds_left(self) -> float:
        """Seconds until the script stops."""
        return 60 * self.options.minutes - (time.monotonic() - self.start)

    def path(self, suffix: str) -> Path:
        """Return the path of a file of this script, such as OUT/glip_8.json.gz for "8.json.gz"."""
        return Path(self.options.out, f"{self.name}_{suffix}")

    @contextmanager
    def measure(self, **labels: Any) -> Iterator[dict[str, Any]]:
        """Yield a row to fill with figures; it is printed and saved at the end.

        If the measurement fails, the row gets an `error`, and the script goes on: time on a GPU is short.
        """
        gc.collect()  # compiled blocks refer to themselves, so what is left of the last model is freed here only
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.seconds_left <= 0:
            raise OutOfTime
        row, start = dict(labels), time.monotonic()
        try:
            yield row
        except torch.OutOfMemoryError:
            row["error"] = "out of memory"
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:MAX_MESSAGE]
        except OutOfTime:
            row["error"] = "out of time"
            raise
        finally:
            row["took_s"] = time.monotonic() - start
            row = rounded(row)
            self.rows.append(row)
            print(json.dumps({name: value for name, value in row.items() if not isinstance(value, dict)}), flush=True)
            self.save()

    def results(self) -> dict[str, Any]:
        """Return all results as JSON values."""
        return {
            "name": f"gpu_{self.name}",
            "device": gpu_name(self.device),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "tiny": self.options.tiny,
            "complete": self.is_complete,
            "seconds": round(time.monotonic() - self.start, 1),
            "errors": sum("error" in row for row in self.rows),
            "cases": self.rows,
        }

    def save(self) -> None:
        """Write the results so far."""
        text = json.dumps(self.results(), indent=1)
        Path(self.options.out, f"{self.name}.json").write_text(text + "\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    """Return a JSON value with four significant digits of its floats.

    >>> rounded({"ms": [1234.56789, 2]})
    {'ms': [1235.0, 2]}
    """
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def run(name: str, options: argparse.Namespace, measure: Callable[[Session], None]) -> None:
    """Run `measure` until it ends or the time is over, and print a summary as one JSON line.

    Rows and summary are printed without their tables, which are in `OUT/NAME.json`.
    """
    session = Session(name, options)

    def stop(signum: int, frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    # It rings again, because Python drops an exception that is raised while an object is being freed.
    timer_before = signal.setitimer(signal.ITIMER_REAL, max(0.001, 60 * options.minutes), RING_AGAIN_S)
    try:
        measure(session)
        session.is_complete = True
    except OutOfTime:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer_before)
    session.save()
    print(json.dumps({name: value for name, value in session.results().items() if name != "cases"}))
