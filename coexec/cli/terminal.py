"""The command line's manners: JSON alone on stdout, one line per warning and error, tables, progress on stderr."""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from coexec.errors import CoexecError
from coexec.progress import Progress as Report
from coexec.progress import quiet

INTERRUPTED = 130
"""What shells give a command that Ctrl-C ended."""
PIPE_WIDTH = 200
"""Columns where the output is no terminal."""
WIDEST = 1000

Document = dict[str, Any]
View = Callable[[Document], Sequence[RenderableType]]


class Interrupted(Exception):
    """Ctrl-C, on its way to `exit_code_of`; a KeyboardInterrupt would be handled by the option parser."""


@dataclass(frozen=True)
class Output:
    """Where a command's result goes: as JSON to ``stream``, or as tables to stdout (``stream`` None)."""

    stream: IO[str] | None

    def show(self, document: Document, view: View) -> None:
        """The result; once per command."""
        if self.stream is not None:
            json.dump(plain(document), self.stream, indent=1, allow_nan=False)
            self.stream.write("\n")
            self.stream.flush()
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
        with os.fdopen(os.dup(1), "w") as stream:
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
    console.print(part)


def say(text: str) -> None:
    """One line for people on stderr."""
    print(" ".join(text.split()), file=sys.stderr)


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
    """Run a command; whatever it raises becomes an exit code and one line on stderr.

    Shows the traceback as well if ``debug()``, which is asked after the command has run.
    """
    try:
        code = command()
        return INTERRUPTED if code == INTERRUPTED else int(code or 0)
    except (KeyboardInterrupt, Interrupted):
        say("coexec: interrupted")
        return INTERRUPTED
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
