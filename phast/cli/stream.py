"""States of a stream: each line of standard input is answered by one line on standard output, as it comes."""

import contextlib
import dataclasses
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from phast.cli.console import note
from phast.cli.options import Columns
from phast.errors import InputError

if TYPE_CHECKING:
    from phast.api.fitted import Fitted
    from phast.api.stream import StateStream, StreamedState
    from phast.data.lines import Sample


def answer_lines(
    fitted: "Fitted", columns: Columns, *, silent: bool, noise: float | None, process_noise: float | None
) -> float:
    """Answer until standard input ends; the root mean square innovation.

    Every answer is flushed. A line that is no sample raises after all before it are answered.
    """
    from phast.data.lines import SampleReader

    with _about("standard input"):
        reader = SampleReader(sys.stdin.buffer, **columns.named_for(fitted))
        units = reader.units
        stream = dataclasses.replace(fitted, units=units).stream(
            inputs=reader.inputs, noise=noise, process_noise=process_noise
        )
        names = [*units.manifold.names, *(f"p({name})" for name in units.manifold.names)]
        _write("trajectory", "t", *units.headings, *names[units.manifold.size :], *(f"deviation({x})" for x in names))
        squares, count = 0.0, 0
        for label, state in _states(stream, columns.between(reader), silent=silent):
            _write(label, *map(repr, [state.t, *state.q.tolist(), *state.p.tolist(), *state.deviation.tolist()]))
            if not state.restarted:
                squares, count = squares + float(state.innovation @ state.innovation), count + len(state.innovation)
    return math.sqrt(squares / max(count, 1))


def _states(
    stream: "StateStream", samples: "Iterator[Sample]", *, silent: bool
) -> "Iterator[tuple[str, StreamedState]]":
    """The state at each sample, and the name of its piece as in a recording."""
    last, part = None, 1
    for sample in samples:
        if fresh := last is None or sample.label != last.label:
            stream.restart()
            part = 1
        with _about(f"line {sample.line}"):
            state = stream.update(sample.q, None if last is None or fresh else last.u, t=sample.t)
        if state.restarted and not fresh:
            part += 1
            if not silent:
                note(f"a gap before line {sample.line}: the filter starts again")
        yield (sample.label if part == 1 else f"{sample.label} part {part}"), state
        last = sample


def _write(*values: str) -> None:
    sys.stdout.write(",".join(values) + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def _about(what: str) -> Iterator[None]:
    """Add where it was to every error."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{what}: {error}") from error
