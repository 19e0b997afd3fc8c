"""Mistakes that a type checker must find; `make lint` fails where an `ignore` below silences nothing."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

import phast

phast.lern()  # pyright: ignore[reportAttributeAccessIssue]
phast.read("swing.csv", tiem="t")  # pyright: ignore[reportCallIssue]
phast.read("swing.csv", dt="fast")  # pyright: ignore[reportArgumentType]
phast.simulate("pendulum-windy", 200)  # pyright: ignore[reportArgumentType]
phast.read("swing.csv").duration()  # pyright: ignore[reportAttributeAccessIssue]
phast.PortHamiltonian(phast.Cosine(9.81), phast.ConstantMass(1.0))  # pyright: ignore[reportCallIssue]

recording = phast.read("swing.csv")
fitted = phast.fit(recording)
phast.fit(recording, "cosine")  # pyright: ignore[reportArgumentType]
phast.fit(recording, method="sharp")  # pyright: ignore[reportArgumentType]
phast.fit(recording, potential="cosine")  # pyright: ignore[reportCallIssue]
phast.Structure(friction="viscous")  # pyright: ignore[reportCallIssue]
phast.Structure(regime="unsure")  # pyright: ignore[reportArgumentType]
phast.SecondOrder(epochs=3)  # pyright: ignore[reportCallIssue]
fitted.forecast("2 s", start="middle")  # pyright: ignore[reportArgumentType]
fitted.forcast(10)  # pyright: ignore[reportAttributeAccessIssue]
