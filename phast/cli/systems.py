"""``phast systems``."""

import phast
from phast.cli.console import JsonSink, print_table
from phast.cli.options import Shown

PANEL = "Simulated systems"
EXAMPLE = "phast systems --json systems.json"


def command(shown: Shown) -> None:
    """List the systems that can be simulated: domain, coordinates, regime."""
    rows = [
        {
            "name": system.name,
            "domain": system.domain,
            "coordinates": system.manifold.coordinates,
            "regime": system.regime,
            "dt": system.dt,
            "benchmark": system.benchmark,
        }
        for system in phast.SYSTEMS.values()
    ]
    if not shown.silent:
        lines = [
            [
                row["name"],
                row["domain"],
                ", ".join(row["coordinates"]),
                row["regime"],
                f"{row['dt']:g}",
                "yes" * row["benchmark"],
            ]
            for row in rows
        ]
        print_table(["system", "domain", "coordinates", "regime", "dt", "benchmark"], lines)
    JsonSink(shown.json_file).write(rows)
