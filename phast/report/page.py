"""One HTML file that needs no network: a template, its data as JSON, and the scripts that draw them.

``page.html.jinja`` is the frame and the look of every page, ``page.js`` what every page does: figures drawn once they
come into view, tables that sort, a navigation that follows. A page adds a template and a script of its own.

Names come from folders and files that anybody may have written. They reach the page through Jinja's escaping alone, and
the page's own policy lets nothing run but the two scripts whose hashes it states, and nothing load at all.
"""

import base64
import functools
import hashlib
import math
from collections.abc import Iterable
from importlib import resources
from typing import Any, NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup
from plotly.offline import get_plotlyjs


class Cell(NamedTuple):
    """Text, and the number to sort it by."""

    text: str
    value: float | None = None
    note: str = ""


def table(rows: Iterable[tuple[Any, dict[str, Cell]]]) -> dict[str, Any]:
    """Headings, and for each row what it is about and its cells; columns without any number are left out."""
    rows = list(rows)
    kept = [name for name in rows[0][1] if any(cells[name].text for _, cells in rows)]
    return {"headings": kept, "lines": [(about, [cells[name] for name in kept]) for about, cells in rows]}


def rendered(package: str, name: str, drawings: list[dict[str, Any]], **content: Any) -> str:
    """The page whose template and script are called ``name`` and lie in ``package``.

    ``drawings`` is what the script finds: for each section with figures, its ``id`` and its numbers.
    """
    scripts = [Markup(get_plotlyjs()), Markup(_resource("page.js") + _read(package, f"{name}.js"))]
    policy = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    found = _environment().from_string(_read(package, f"{name}.html.jinja"))
    return found.render(drawings=drawings, **content, scripts=scripts, policy=policy)


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_resource),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _resource(name: str) -> str:
    """A part that every page shares."""
    return _read("phast.report", name)


def _read(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


_DIGITS = 5


def rounded(x: Any) -> Any:
    """Nested lists for JSON: five significant digits, and nothing where a number is not finite."""
    if np.ndim(x):
        return [rounded(part) for part in x]
    return float(f"{x:.{_DIGITS}g}") if math.isfinite(x) else None
