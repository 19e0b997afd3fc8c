"""Trajectories: simulated or measured, cut, made noisy, saved and loaded.

Everything here is NumPy in float64. What a user hands over is checked once, at the door (:class:`Trajectories`), so
that nothing behind it has to ask again. Ground truth comes from an adaptive eighth-order Runge–Kutta method that lands
on every sampling time: never from the integrator that a model learns with.
"""

import dataclasses
import os
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike

from phast.data.files import replacing
from phast.data.manifold import Manifold
from phast.data.tables import Table, about, existing_file, from_frame, parsing, read_table
from phast.errors import InputError, counted

_ARRAYS = ("q", "p", "v", "u", "stretch")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Trajectories:
    """N trajectories of T positions each, sampled every ``dt``; what a simulator also knows stands beside them.

    ``q`` is (N, T, n). ``p`` and ``v`` are the true momenta and velocities, (N, T, n), and ``u`` the inputs, (N, T, m);
    ``None`` where they were not recorded. ``stretch``, (N, T, 1), says how long the step from each sample to the next
    lasts, in units of ``dt`` (the last row leads nowhere); ``None`` where steps are even. All become float64, and what
    does not fit is refused.
    """

    q: np.ndarray
    dt: float
    manifold: Manifold
    p: np.ndarray | None = None
    v: np.ndarray | None = None
    u: np.ndarray | None = None
    stretch: np.ndarray | None = None

    def __post_init__(self):
        names = self.manifold.names
        q = as_floats(self.q, "q")
        if q.ndim != 3:
            raise InputError(
                f"q must have the axes (trajectory, step, coordinate), got shape {q.shape}: use as_trajectories"
            )
        if q.size == 0:
            raise InputError(f"q holds no samples, its shape is {q.shape}: give at least one trajectory of one step")
        if q.shape[2] != len(names):
            raise InputError(
                f"q has {counted(q.shape[2], 'coordinate')} but the manifold has {len(names)} ({', '.join(names)}): "
                "name each coordinate once"
            )
        _require_finite(q, "q", names)
        dt = float(self.dt)
        if not (np.isfinite(dt) and dt > 0.0):
            raise InputError(f"dt must be a positive number of seconds between samples, got {dt}")
        checked = {"q": q, "dt": dt}
        for name, channels in (("p", names), ("v", names), ("u", None), ("stretch", ("dt",))):
            if (given := getattr(self, name)) is not None:
                checked[name] = _beside(q, as_floats(given, name), name, channels)
        _require_positive(checked.get("stretch"))
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        known = "".join(f", {name}" for name in self.arrays() if name not in ("q", "stretch"))
        uneven = "" if self.stretch is None else ", unevenly"
        return (
            f"Trajectories of {', '.join(self.manifold.coordinates)}{known}: {len(self):,} × "
            f"{counted(self.length, 'sample')}, every {self.dt:.6g} s{uneven}"
        )

    def __len__(self) -> int:
        """N, the number of trajectories."""
        return self.q.shape[0]

    @property
    def length(self) -> int:
        """T, the steps in each trajectory."""
        return self.q.shape[1]

    @property
    def t(self) -> Float[np.ndarray, " T"]:
        """The sampling times, from zero, where steps are even."""
        return self.dt * np.arange(self.length)

    @property
    def times(self) -> Float[np.ndarray, "N T"]:
        """The sampling times of each trajectory, from zero, whether or not steps are even."""
        if self.stretch is None:
            return np.tile(self.t, (len(self), 1))
        return np.pad(self.dt * np.cumsum(self.stretch[:, :-1, 0], axis=1), ((0, 0), (1, 0)))

    def subset(self, indices: slice | Sequence[int] | np.ndarray) -> "Trajectories":
        """Some of the trajectories, by a slice, a list of indices or a mask."""
        return self._each(lambda x: x[indices if isinstance(indices, slice) else np.asarray(indices)])

    def steps(self, start: int, stop: int | None = None) -> "Trajectories":
        """The same trajectories from step ``start`` up to ``stop``."""
        return self._each(lambda x: x[:, start:stop])

    def windows(self, length: int, stride: int = 1) -> "Trajectories":
        """All stretches of ``length`` steps, begun every ``stride`` steps, as trajectories of their own."""
        if not 1 <= length <= self.length:
            raise InputError(f"a window of {length} steps does not fit {self.length}: use 1 to {self.length}")
        if stride < 1:
            raise InputError(f"the stride between windows must be at least 1, got {stride}")

        def cut(x: np.ndarray) -> np.ndarray:
            views = np.lib.stride_tricks.sliding_window_view(x, length, axis=1)[:, ::stride]
            return np.moveaxis(views, -1, 2).reshape(-1, length, x.shape[2])

        return self._each(cut)

    def with_noise(self, sigma: float, seed: int) -> "Trajectories":
        """A copy with N(0, σ²) added to the positions; momenta and velocities stay the true ones."""
        if not (np.isfinite(sigma) and sigma >= 0.0):
            raise InputError(f"the noise level must be zero or a positive number, got {sigma}")
        noise = np.random.default_rng(seed).normal(0.0, sigma, self.q.shape)
        return dataclasses.replace(self, q=self.q + noise)

    def arrays(self) -> dict[str, np.ndarray]:
        """What was recorded, by name."""
        return {name: x for name in _ARRAYS if (x := getattr(self, name)) is not None}

    def to_frame(self) -> pd.DataFrame:
        """One row per sample; uneven steps show in its times."""
        names = self.manifold.names
        headings = {"q": self.manifold.coordinates} | {x: [f"{x}({name})" for name in names] for x in "pv"}
        if self.u is not None:
            headings["u"] = [f"u({i + 1})" for i in range(self.u.shape[2])]
        table = {"trajectory": np.repeat(np.arange(len(self)), self.length), "t": self.times.ravel()}
        for x in headings:
            if (values := getattr(self, x)) is not None:
                table |= dict(zip(headings[x], values.reshape(-1, values.shape[2]).T, strict=True))
        return pd.DataFrame(table)

    def _each(self, change: Callable[[np.ndarray], np.ndarray]) -> "Trajectories":
        return dataclasses.replace(self, **{name: change(x) for name, x in self.arrays().items()})


def refuse_turns(
    q: Float[np.ndarray, "N T n"], manifold: Manifold, *, labels: Sequence[str | int] | None = None
) -> None:
    """An angle that was declared a line jumps by 2π, or by 360°, where it wraps: that is no motion.

    A turn is a step of about 2π between steps that are small. Degrees must also span no more than a turn,
    since a step of 360 in another unit is not rare.
    """
    lines = ~np.asarray(manifold.circles)
    lowest, highest = q.min(axis=(0, 1), initial=np.inf), q.max(axis=(0, 1), initial=-np.inf)
    degrees = lines & (highest - lowest <= 361.0) & (np.maximum(highest, -lowest) <= 361.0)
    for turn, asked, kind in ((2 * np.pi, lines, "angle"), (360.0, degrees, "angle:deg")):
        steps = np.abs(np.diff(q, axis=1)) * (2 * np.pi / turn)
        beside = np.pad(steps, ((0, 0), (1, 1), (0, 0)))
        small = np.maximum(beside[:, :-2], beside[:, 2:]) < 1.0
        turns = np.argwhere((np.abs(steps - 2 * np.pi) < 0.5) & small & asked)
        if len(turns):
            trajectory, step, i = turns[0]
            name = manifold.names[i]
            label = trajectory if labels is None else labels[trajectory]
            raise InputError(
                f"'{name}' jumps by {abs(q[trajectory, step + 1, i] - q[trajectory, step, i]):.3g} between samples "
                f"{step} and {step + 1} of trajectory {label}, a turn of an angle: declare it as '{name}:{kind}'"
            )


Numbers = float | Sequence[Any] | ArrayLike  # what NumPy makes an array of, in terms that can be checked at run time


def as_floats(data: ArrayLike, name: str) -> np.ndarray:
    """Numbers in rows of equal length, or what is wrong with them."""
    try:
        array = np.asarray(data)
    except ValueError:
        raise InputError(f"{name} has rows of different lengths: cut them to equal length") from None
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} must hold numbers, got {array.dtype}: drop or convert the other columns")
    return array.astype(np.float64)


def _require_finite(x: np.ndarray, name: str, channels: Sequence[str] | None) -> None:
    bad = np.argwhere(~np.isfinite(x))
    if len(bad):
        trajectory, step, i = map(int, bad[0])
        channel = i if channels is None else f"'{channels[i]}'"
        raise InputError(
            f"{name} is {x[trajectory, step, i]} at trajectory {trajectory}, step {step}, coordinate {channel} "
            f"({counted(len(bad), 'such value')} in all): fill or drop missing samples first"
        )


def _beside(q: np.ndarray, x: np.ndarray, name: str, channels: Sequence[str] | None) -> np.ndarray:
    """``x``, once it is known to run along with q; inputs may have any number of channels."""
    expected = (*q.shape[:2], "inputs" if channels is None else len(channels))
    if x.ndim != 3 or x.shape[:2] != q.shape[:2] or (channels is not None and x.shape[2] != len(channels)):
        shape = ", ".join(map(str, expected))
        raise InputError(f"{name} has shape {x.shape} but q has {q.shape}: give {name} the shape ({shape})")
    _require_finite(x, name, channels)
    return x


def _require_positive(stretch: np.ndarray | None) -> None:
    if stretch is not None and (stretch <= 0.0).any():
        trajectory, step, _ = map(int, np.argwhere(stretch <= 0.0)[0])
        raise InputError(
            f"stretch is {stretch[trajectory, step, 0]:g} at trajectory {trajectory}, step {step}: times must increase"
        )


def as_trajectories(
    data: ArrayLike | Sequence[ArrayLike] | pd.DataFrame,
    *,
    dt: float,
    coordinates: Sequence[str] | None = None,
) -> Trajectories:
    """Measured positions as :class:`Trajectories`.

    ``data`` is one trajectory, (T,) or (T, n) or a DataFrame with a column per coordinate, or several: (N, T, n) or a
    list of equally long ones. ``coordinates`` names them, ``["x", "theta:angle"]``; by default all are lines.
    """
    if isinstance(data, pd.DataFrame):
        coordinates = list(map(str, data.columns)) if coordinates is None else _listed(coordinates)
        manifold = Manifold.parse(*coordinates)
        return Trajectories(_columns(from_frame(data), manifold.names)[None], dt, manifold)
    parts = as_parts(data)
    for i, part in enumerate(parts):
        if part.shape != parts[0].shape:
            raise InputError(
                f"trajectory {i} has shape {part.shape} but trajectory 0 has {parts[0].shape}: cut them to equal length"
            )
    q = np.stack(parts) if parts else np.zeros((0, 0, 1))
    names = [f"q{i + 1}" for i in range(q.shape[-1])] if coordinates is None else _listed(coordinates)
    return Trajectories(q, dt, Manifold.parse(*names))


def as_parts(data: Any) -> list[np.ndarray]:
    """One array (T, n) per trajectory, of whatever lengths."""
    if isinstance(data, list | tuple) and data and np.ndim(data[0]) > 0:
        return [_steps_by_coordinates(as_floats(part, f"trajectory {i}")) for i, part in enumerate(data)]
    q = as_floats(data, "data")
    return list(q) if q.ndim == 3 else [_steps_by_coordinates(q)]


def _steps_by_coordinates(part: np.ndarray) -> Float[np.ndarray, "T n"]:
    if part.ndim not in (1, 2):
        raise InputError(f"a trajectory must have shape (T,) or (T, n), and several (N, T, n); got {part.shape}")
    return part[:, None] if part.ndim == 1 else part


def _listed(coordinates: Sequence[str]) -> list[str]:
    return [coordinates] if isinstance(coordinates, str) else list(coordinates)


def _columns(table: Table, names: Sequence[str]) -> Float[np.ndarray, "rows n"]:
    return np.stack([table.numbers(table.find(name)) for name in names], axis=-1)


# --- files -----------------------------------------------------------------------------------------------------------


def save_trajectories(data: Trajectories, path: str | os.PathLike) -> None:
    """Write .npz, or .csv or .parquet with one row per sample: trajectory, t, coordinates, then p(·), v(·), u(·).

    A heading such as ``theta:angle`` keeps the kind of its coordinate, so that the file says all that was known.
    """
    path = Path(path)
    suffix = _suffix(path)
    with replacing(path) as file:
        if suffix == ".npz":
            arrays: dict[str, Any] = {"dt": data.dt, "coordinates": np.array(data.manifold.coordinates)} | data.arrays()
            np.savez(file, **arrays)
        elif suffix == ".csv":
            data.to_frame().to_csv(file, index=False)
        else:
            data.to_frame().to_parquet(file, index=False)


def load_trajectories(
    path: str | os.PathLike, *, dt: float | None = None, coordinates: Sequence[str] | None = None
) -> Trajectories:
    """Read what :func:`save_trajectories` wrote, or a table of the same form.

    ``dt`` is needed only where the file has no times; ``coordinates`` chooses among the columns and may mark angles.
    """
    path = Path(path)
    suffix = _suffix(path)
    with about(existing_file(path)):
        if suffix == ".npz":
            return from_arrays(stored_arrays(path), dt, coordinates)
        return _from_table(read_table(path), dt, coordinates)


def _suffix(path: Path) -> str:
    if path.suffix not in (".csv", ".parquet", ".npz"):
        raise InputError(f"'{path}': the ending must be .csv, .parquet or .npz, not '{path.suffix}'")
    return path.suffix


def beside_positions(headings: Sequence[str]) -> dict[str, list[str]]:
    """The headings p(·), v(·) and u(·) that :func:`save_trajectories` writes, by their letter."""
    return {letter: [h for h in headings if re.fullmatch(rf"{letter}\(.+\)", h)] for letter in "pvu"}


def _from_table(table: Table, dt: float | None, coordinates: Sequence[str] | None) -> Trajectories:
    frame, extra = table.frame, beside_positions(table.headings)
    if coordinates is None:
        skipped = {"trajectory", "t", *extra["p"], *extra["v"], *extra["u"]}
        coordinates = [heading for heading in table.headings if heading not in skipped]
    manifold = Manifold.parse(*_listed(coordinates))
    labels = frame["trajectory"] if "trajectory" in frame else pd.Series(0, index=frame.index)
    lengths = labels.value_counts(sort=False)
    if lengths.nunique() != 1:
        raise InputError(
            f"trajectories have {lengths.min()} to {lengths.max()} rows: cut them to equal length"
            if len(lengths)
            else "the table has no rows"
        )
    order = np.argsort(pd.factorize(labels)[0], kind="stable")

    def stacked(flat: np.ndarray) -> np.ndarray:
        return flat[order].reshape(len(lengths), -1, flat.shape[-1])

    def beside(headings: list[str]) -> np.ndarray | None:
        return stacked(_columns(table, headings)) if headings else None

    if dt is None:
        dt = _spacing(stacked(_columns(table, ("t",)))[..., 0] if "t" in frame else None)
    p, v = (beside([f"{x}({name})" for name in manifold.names if f"{x}({name})" in extra[x]]) for x in "pv")
    return Trajectories(stacked(_columns(table, manifold.names)), dt, manifold, p=p, v=v, u=beside(extra["u"]))


def _spacing(t: Float[np.ndarray, "N T"] | None) -> float:
    """dt from the times, which must be evenly spaced."""
    if t is None or t.shape[1] < 2:
        raise InputError("the file has neither times nor dt: pass dt=…")
    gaps = np.diff(t, axis=1)
    dt = float(gaps[0, 0])
    uneven = np.argwhere(~(np.abs(gaps - dt) <= 1e-6 * abs(dt) + 1e-12 * np.abs(t[:, 1:])))
    if len(uneven):
        trajectory, step = map(int, uneven[0])
        raise InputError(
            f"times are not evenly spaced, {gaps[trajectory, step]:g} instead of {dt:g} after step {step} of "
            f"trajectory {trajectory}: resample first, or read it as a recording (phast.read)"
        )
    return dt


def stored_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an NPZ file; Python objects among them are refused."""
    if not zipfile.is_zipfile(path):
        raise InputError("this is not an NPZ file")
    with parsing("an NPZ file"), path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return {name: np.asarray(stored[name]) for name in stored.files}


def from_arrays(
    stored: dict[str, np.ndarray], dt: float | None = None, coordinates: Sequence[str] | None = None
) -> Trajectories:
    """What :func:`save_trajectories` writes into NPZ files, by name; times ``t`` serve where there is no ``dt``."""
    if "q" not in stored:
        raise InputError("no array 'q' of positions (trajectory, step, coordinate)")
    if dt is None and not {"dt", "t"} & set(stored):
        raise InputError("neither 'dt' nor 't' in the file: pass dt=…")
    if coordinates is None and "coordinates" in stored:
        coordinates = [str(name) for name in stored["coordinates"].ravel()]
    if coordinates is None:
        coordinates = [f"q{i + 1}" for i in range(stored["q"].shape[-1] if stored["q"].ndim else 0)]
    if dt is None:
        dt = _scalar(stored["dt"], "dt") if "dt" in stored else _spacing(np.atleast_2d(stored["t"]))
    arrays = {name: stored[name] for name in _ARRAYS if name in stored}
    return Trajectories(dt=dt, manifold=Manifold.parse(*_listed(coordinates)), **arrays)


def _scalar(x: np.ndarray, name: str) -> float:
    if x.size != 1 or x.dtype.kind not in "fiu":
        raise InputError(f"'{name}' must be one number, got shape {x.shape} of {x.dtype}")
    return float(x.ravel()[0])
