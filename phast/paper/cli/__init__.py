"""``phast paper``: judge models by the paper's protocol, run whole suites, make the tables and figures, measure."""

from collections.abc import Callable

from phast.cli.commands import AbstractCommands, Command, group


class PaperCommands(AbstractCommands):
    """The study's commands."""

    package = "phast.paper.cli"
    names = ("evaluate", "models", "suite", "reproduce", "report", "bench")

    def others(self) -> dict[str, Callable[[], Command]]:
        return {}


app = group(
    "paper", PaperCommands, "The study: judge models by the paper's protocol, make its tables and figures.", "The paper"
)


@app.callback()
def _paper() -> None: ...  # an application without commands of its own needs one
