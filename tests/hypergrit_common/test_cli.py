"""The frame of the commands: exit codes, one line on stderr, safe log lines and tracebacks."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest

from hypergrit_common.cli import (
    JsonFormatter,
    MessageFormatter,
    TerminatedError,
    command,
    escape_exceptions,
    notify,
    print_exception,
    sigterm_handler_kept,
    sigterm_raises,
)
from hypergrit_common.errors import UserError
from tests.patience import PATIENCE_S


def raising(error: BaseException) -> int:
    @command("all is kept")
    def main() -> int:
        raise error

    return main()


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("no \x1b[2Jfile\nerror: forged"), 2, "error: no \\x1b[2Jfile\\nerror: forged\n"),
        (UserError("s3://KEY:SECRET@bucket is gone"), 2, "error: s3://***@bucket is gone\n"),
        (KeyboardInterrupt(), 130, "interrupted: all is kept\n"),
        (TerminatedError(), 143, "terminated: all is kept\n"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    assert raising(error) == code
    assert capsys.readouterr().err == line


def test_no_message_has_the_query_of_a_url(capsys: pytest.CaptureFixture[str]) -> None:
    url = "https://h.test/out?X-Sig=SECRET"
    for text in (
        f"cannot read {url}/_job.json: {url!r} has gone",
        f"source={url}: no",
        "line 3: 'h.test/a.jpg?sig=SECRET'",
    ):

        @command()
        def main(text: str = text) -> int:
            raise UserError(text)

        assert main() == 2
    record = logging.LogRecord("x", logging.INFO, "", 0, "reading %s", (url,), None)
    printed = capsys.readouterr().err + MessageFormatter("%(message)s").format(record) + JsonFormatter().format(record)
    assert printed.count("h.test/") == 6
    try:
        raise ValueError(url)
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
        print_exception(ValueError, error, error.__traceback__)
    notify(f"input {url} is damaged")
    printed += capsys.readouterr().err + MessageFormatter("%(message)s").format(record)
    assert printed.count("h.test/") == 10
    printed += JsonFormatter().format(record)
    assert printed.count("h.test/") == 12
    assert "SECRET" not in printed


@pytest.mark.parametrize("formatter", [MessageFormatter("%(message)s"), JsonFormatter()])
def test_messages_and_tracebacks_are_safe_in_both_formats(formatter: logging.Formatter) -> None:
    url = "read.id_column=ftp://eve:PASSWORD@h.test/c\u202e\x1b[2J"
    try:
        raise KeyError(url)
    except KeyError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "%s", (f"{url} {'x' * 9_000}",), sys.exc_info())
    record.progress = {"text": "s3://KEY:PASSWORD@bucket/a?sig=SIGNATURE"}
    text = formatter.format(record)
    assert text.count("ftp://***@h.test/c\\") == 2
    assert not any(found in text for found in ("PASSWORD", "SIGNATURE", "\x1b", "\u202e"))
    assert " characters omitted] xxx" in text
    assert len(text) < 5_500


def test_an_exception_of_a_thread_is_safe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    escape_exceptions()
    for error in (ValueError("http://ann:PASSWORD@h.test/?a=1"), SystemExit(3)):
        thread = threading.Thread(target=raising_in_thread, args=(error,))
        thread.start()
        thread.join()
    assert capsys.readouterr().err.endswith("\nValueError: http://***@h.test/\n")


def raising_in_thread(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("bug", [ZeroDivisionError, BrokenPipeError])  # the pipe of another file than the output
def test_a_bug_raises(bug: type[Exception]) -> None:
    with pytest.raises(bug):
        raising(bug())


def test_sigterm_is_raised_in_the_command_and_another_one_changes_no_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before, codes = signal.getsignal(signal.SIGTERM), list[int]()

    @command()
    def main() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE_S)
        return 0

    assert main() == 143
    assert capsys.readouterr().err == "terminated\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "_exit", codes.append)
        os.kill(os.getpid(), signal.SIGTERM)
    assert codes == [143]
    signal.signal(signal.SIGTERM, before)


def test_a_handler_that_a_library_replaces_is_restored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with sigterm_handler_kept():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


PROGRAM = """
import sys, time
from hypergrit_common.cli import command
from hypergrit_common.config_help import print_text
@command("all is kept")
def main():
    {body}
    return 0
sys.exit(main())
"""


def start(body: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("[print('x' * 1000) for _ in range(10**5)]", 141),
        ("sys.stdin.read(); print_text('done')", 0),  # the last lines
        ("print_text('line\\n' * 100_000)", 0),
    ],
)
def test_a_closed_output_pipe_ends_without_a_traceback(body: str, code: int) -> None:
    process = start(body)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait() == code


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("body", ["print_text('done')", "print('done')", "print('x' * 10**6)", "raise SystemError"])
def test_a_full_output_device_is_a_line(body: str, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(body=body)], stdout=full, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    if body.startswith("raise"):
        assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "SystemError")
    else:
        assert done.stderr == "error: the standard output cannot be written: No space left on device\n"
        assert done.returncode == 2


@pytest.mark.parametrize(("closed", "text"), [(">&-", "error: no\n"), ("2>&-", "done\n"), (">&- 2>&-", "")])
@pytest.mark.parametrize(("body", "code"), [("print_text('done')", 0), ("return 3", 3), ("raise UserError('no')", 2)])
def test_a_closed_stream_changes_no_exit_code(closed: str, text: str, body: str, code: int) -> None:
    program = PROGRAM.format(body=f"from hypergrit_common.errors import UserError; {body}")
    line = f'exec "$0" -c "$1" {closed}'
    done = subprocess.run(["bash", "-c", line, sys.executable, program], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (
        code,
        text if (code, text[:1]) in ((0, "d"), (2, "e")) else "",
    )


@pytest.mark.parametrize("child", ["", "import subprocess; subprocess.run([sys.executable, '-c', "])
def test_warnings_of_libraries_are_hidden_here_and_in_children(child: str) -> None:
    warn = "import warnings; [warnings.warn(str(i)) for i in range(9)]"
    process = start(f'{child}"{warn}"])' if child else warn)
    assert process.communicate()[1] == ""
    assert process.returncode == 0


def test_a_lack_of_memory_is_a_message() -> None:
    process = start("import resource; resource.setrlimit(resource.RLIMIT_AS, (10**9, 10**9)); bytes(10**10)")
    assert process.communicate()[1] == "error: there is too little memory; free some, or raise its limit (ulimit -v)\n"
    assert process.returncode == 2


def test_the_second_sigterm_ends_the_process_at_once() -> None:
    process = start(
        "try: print('ready', flush=True); time.sleep(600)\n    finally: print('ready', flush=True); time.sleep(600)"
    )
    assert process.stdout is not None
    for _ in range(2):
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    process.communicate()


def test_log_lines_cannot_be_forged_and_tracebacks_keep_their_lines() -> None:
    formatter = MessageFormatter("%(levelname)s %(message)s")
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "member %s", ("\x1b]0;x\x07\n00:00 INFO done",), None)
    assert formatter.format(record) == "WARNING member \\x1b]0;x\\x07\\n00:00 INFO done"
    try:
        raise ValueError("\x1b[2J https://u:pw@h/")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    text = formatter.format(record)
    assert text.count("\n") >= 3
    assert text.endswith("ValueError: \\x1b[2J https://***@h/")


def test_a_traceback_has_no_escape_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    print_exception(ValueError, ValueError("\x1b[2J"), None)
    assert capsys.readouterr().err == "ValueError: \\x1b[2J\n"


def test_an_option_of_python_shows_the_warnings_of_libraries() -> None:
    code = "import warnings; from hypergrit_common.cli import set_up_logging; set_up_logging(); warnings.warn('some')"
    for options, n in (([], 0), (["-W", "default"], 1)):
        done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=True)
        assert done.stderr.count("UserWarning: some") == n


@pytest.mark.parametrize(("color", "is_terminal", "expected"), [("1", True, "0"), ("", True, "None"), ("", False, "0")])
def test_colors_of_ray_need_a_terminal_and_no_no_color(color: str, is_terminal: bool, expected: str) -> None:
    code = "import os; from hypergrit_common.cli import set_up_logging; set_up_logging(); print(os.environ.get('RAY_COLOR_PREFIX'))"
    environment = {**os.environ, "NO_COLOR": color}
    environment.pop("RAY_COLOR_PREFIX", None)
    terminal, end = os.openpty()
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, env=environment,
                          stderr=end if is_terminal else subprocess.DEVNULL)  # fmt: skip
    os.close(terminal)
    os.close(end)
    assert done.stdout.strip() == expected


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, TerminatedError), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_in_a_callback_whose_exceptions_python_ignores_is_not_lost(
    number: signal.Signals, error: type[BaseException]
) -> None:
    def wait() -> None:
        with sigterm_raises():
            watched = {1}  # a set can be referred to weakly
            reference = weakref.ref(watched, lambda _: signal.raise_signal(number))
            del watched
            assert reference() is None
            time.sleep(PATIENCE_S)

    hook, handler = sys.unraisablehook, signal.getsignal(signal.SIGTERM)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    with pytest.raises(error):
        wait()
    assert sys.unraisablehook is hook
    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, before)


def test_a_process_leaves_with_its_exit_functions_and_threads_but_frees_no_object() -> None:
    body = """
import atexit, sys, threading, time
from hypergrit_common.cli import leave
class Slow:
    def __del__(self):
        print("freed")
kept = Slow()
atexit.register(print, "exit function")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
leave(7)
"""
    done = subprocess.run([sys.executable, "-c", body], stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (7, "thread\nexit function\n")
