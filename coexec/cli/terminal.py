"""The command line's manners: JSON alone on stdout, one line per warning and error, tables, progress on stderr."""

from __future__ import annotations

import io
import json
import math
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from coexec.cli import INTERRUPTED
from coexec.errors import CoexecError
from coexec.progress import Progress as Report
from coexec.progress import quiet

BROKEN_PIPE = 141
"""What shells give a command that ended because nobody reads its output any more."""
PIPE_WIDTH = 200
"""Columns where the output is no terminal."""
WIDEST = 1000

Document = dict[str, Any]
View = Callable[[Document], Sequence[RenderableType]]


class Interrupted(Exception):
    """Ctrl-C, on its way to `exit_code_of`; a KeyboardInterrupt would be handled by the option parser."""


class ReaderGone(Exception):
    """Nobody reads standard output any more (``| head``)."""


class _Stdout(io.FileIO):
    """Standard output, whose failures reach `exit_code_of`; an OSError would be handled on the way there.

    After the first failure or Ctrl-C all that comes is dropped, lest a later flush fail again or write it twice.
    """

    def __init__(self, descriptor: int, closefd: bool) -> None:
        super().__init__(descriptor, "w", closefd=closefd)
        self._lost = False

    def write(self, data: Any) -> int:
        if self._lost:
            return len(data)
        self._lost = True  # until it is written
        try:
            written = super().write(data)
        except BrokenPipeError as error:
            raise ReaderGone from error
        except OSError as error:
            raise CoexecError(f"cannot write to stdout: {error.strerror}; send it elsewhere") from error
        self._lost = False
        return written


def claim_streams() -> None:
    """Write to stdout through `_Stdout` from now on; CoexecError if it is closed.

    A closed stderr becomes the null device, lest the next file that is opened take its place.
    """
    if sys.stdout is None:
        raise CoexecError("stdout is closed; redirect it to /dev/null if its content is not wanted")
    sys.stdout = _stdout(1, sys.stdout.encoding, closefd=False)
    if sys.stderr is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _stdout(descriptor: int, encoding: str, closefd: bool) -> io.TextIOWrapper:
    """Text output by lines; what the encoding lacks is shown as an escape."""
    stream = io.BufferedWriter(_Stdout(descriptor, closefd))
    return io.TextIOWrapper(stream, encoding, errors="backslashreplace", line_buffering=True)


@dataclass(frozen=True)
class Output:
    """Where a command's result goes: as JSON to ``stream``, or as tables to stdout (``stream`` None)."""

    stream: IO[str] | None

    def show(self, document: Document, view: View) -> None:
        """The result; once per command."""
        if self.stream is not None:
            self.stream.write(json.dumps(plain(document), indent=1, allow_nan=False) + "\n")
            return
        for part in view(document):
            show(part)

    @contextmanager
    def progress(self) -> Iterator[Report]:
        """A callback (done, total, text) that moves a bar on stderr; none with JSON or without a terminal."""
        if self.stream is not None or not sys.stderr.isatty():
            yield quiet
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"))
        # Drawn rarely: the bar's thread must not disturb what is being timed.
        with Progress(
            *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True, refresh_per_second=2
        ) as bar:
            task = bar.add_task("", total=None)
            yield lambda done, total, text: bar.update(task, completed=done, total=total, description=text)


@contextmanager
def output(as_json: bool) -> Iterator[Output]:
    """The output of one command.

    With JSON, everything else that anyone writes to stdout from now on, OpenCL drivers included, goes to stderr.
    """
    try:
        if not as_json:
            yield Output(None)
            return
        sys.stdout.flush()
        with _stdout(os.dup(1), "utf-8", closefd=True) as stream:
            os.dup2(2, 1)
            yield Output(stream)
    except KeyboardInterrupt as error:
        raise Interrupted from error


def show(part: RenderableType) -> None:
    """Print on stdout; a table is never squeezed below the width of its numbers."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    roomy = console.options.update(width=WIDEST)
    console.width = max(console.width, Measurement.get(console, roomy, part).minimum)
    if console.is_terminal:
        console.print(part)
        return
    with console.capture() as capture:
        console.print(part)
    for line in capture.get().splitlines():
        print(line.rstrip())


def say(text: str) -> None:
    """One line for people on stderr; nothing where that cannot be written."""
    try:
        print(" ".join(text.split()), file=sys.stderr)
    except OSError:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - what is left in the old one's buffer would fail at exit


def plain(value: Any) -> Any:
    """The value in JSON's types; numbers that JSON cannot have become null."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()  # NumPy's scalars
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def warn_in_lines() -> None:
    """Show each warning once, as one line on stderr."""
    shown: set[str] = set()

    def line(message: Warning | str, *_: Any, **__: Any) -> None:
        text = " ".join(str(message).split())
        if text not in shown:
            shown.add(text)
            say(f"warning: {text}")

    warnings.showwarning = line


def exit_code_of(command: Callable[[], Any], debug: Callable[[], bool]) -> int:
    """Run a command; whatever it raises becomes an exit code and one line on stderr, except KeyboardInterrupt.

    Shows the traceback as well if ``debug()``, which is asked after the command has run.
    """
    try:
        code = int(command() or 0)
        sys.stdout.flush()
        if code == INTERRUPTED:  # how the option parser reports one of its own
            raise KeyboardInterrupt
        return code
    except Interrupted as error:
        raise KeyboardInterrupt from error
    except ReaderGone:
        return BROKEN_PIPE
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except CoexecError as error:
        raised: Exception = error
        problem, code = str(error), error.exit_code
    except Exception as error:
        raised = error
        # The option parser's errors have this method in every version of it, and no common public base.
        explain = getattr(error, "format_message", None)
        if explain is not None:
            problem, code = f"{str(explain()).rstrip('.')}; see coexec --help", 2
            if not explain():  # no arguments: the help was printed
                return code
        else:
            problem, code = _fault(error), 1
    if debug():
        traceback.print_exception(raised)
    say(f"coexec: {problem}")
    return code


def _fault(error: Exception) -> str:
    text = " ".join(str(error).split())
    return (
        f"internal fault ({type(error).__name__}{': ' * bool(text)}{text}); please report it with what "
        "`coexec --debug ...` prints"
    )
