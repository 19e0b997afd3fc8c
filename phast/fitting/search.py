"""Find the law: which terms of a library a motion needs, and what they are worth.

1. For every kind of mass, the terms that the accelerations need (:mod:`phast.fitting.selection`); the kind whose
   evidence is largest is kept.
2. Where there is noise, accelerations tell less than positions do: all terms are fitted to windows of positions at
   once, and those that do not pay are removed by the normal equations of that fit.
3. The rest, as ordinary components, is fitted, and what is not significant is removed, until all is.

What the terms leave unexplained is left to splines. The cost is that of a few fits, however many terms are tried.
"""

import time
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jaxtyping import Array, Float

from phast.components.damping import AbstractFriction, SumDamping
from phast.components.lowrank import Dense
from phast.components.parameter import Real, value_of
from phast.components.potential import AbstractPotential, Sum
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.errors import FitError
from phast.estimation.moving_horizon import ModelAware
from phast.fitting.coefficients import in_units
from phast.fitting.free_fields import free_damping, free_potential
from phast.fitting.law import Law, law_of, mass_of
from phast.fitting.library import DISSIPATIVE, SOFTENING, Candidate, candidates, families
from phast.fitting.preprocess import Preprocessed
from phast.fitting.selection import Equations, ScaledNormal, Selection, eliminated, price_of, select, settle
from phast.fitting.structure import Structure, port_rows

Fit = Callable[[PortHamiltonian, float], ModelAware]

_SMOOTHING = 0.02  # of the typical velocity, near which dry friction changes sign
_SHARPNESS = (1e-3, 0.3)  # in between, if the accelerations tell
_SAMPLES, _SHARE = 20_000, 3.0  # of a smoother's window, one sample in each third counts as its own
_CLEAN, _EXACT = (
    1e-6,
    1e-13,
)  # noise, relative to the motion: below the first there is none, and fits may go to the second
_WIDEST = 64  # terms that a fit of all of them may have
_ROUNDS, _CERTAIN = 3, 3.0  # fits that remove terms, and deviations from zero that keep one
_NOTHING = 1e-6  # of what would be as large as the forces are
_BEYOND, _CLOSE = 2.0, 1e-4  # of the noise, and of the motion: residuals of more are left to splines
_UNEXPLAINED = 25.0  # mean square of what is left, in units of the smoother's error, that splines are for


def find_law(
    structure: Structure, preprocessed: Preprocessed, fit: Fit, *, budget: float | None = None
) -> PortHamiltonian | ModelAware:
    """The fitted law that these data show; a system that is still to be fitted where splines are added to it, or the
    budget was too short."""
    deadline = np.inf if budget is None else time.monotonic() + budget
    searched = _Search(structure, preprocessed, fit, deadline)
    found = searched.selected()
    if searched.is_noisy and len(searched.library) <= _WIDEST:
        found = searched.by_positions(found)
    law, model = searched.pruned(found)
    if searched.skipped:
        warnings.warn(f"the search ended with its budget: not tried were {', '.join(searched.skipped)}", stacklevel=2)
    if searched.is_unexplained(found, model):
        return _with_free_fields(law.system, preprocessed)
    return law.system if model is None else model


def _with_free_fields(system: PortHamiltonian, preprocessed: Preprocessed) -> PortHamiltonian:
    """The law beside splines for what it leaves."""
    data, scales = preprocessed.data, preprocessed.scales
    potential = Sum((system.potential, *free_potential(data, False, unit=scales.energy)))
    damping = SumDamping((system.damping, free_damping(data, unit=scales.damping)))
    return PortHamiltonian(potential, system.mass, damping, system.port)


class _Search:
    """What the steps of a search share."""

    def __init__(self, structure: Structure, preprocessed: Preprocessed, fit: Fit, deadline: float):
        data, samples = preprocessed.data, preprocessed.samples
        self.n, self.preprocessed, self.deadline, self.skipped = data.manifold.size, preprocessed, deadline, []
        self.port = port_rows(structure.port, data)
        spread = np.std(data.q, axis=(0, 1))
        self.is_noisy = bool((preprocessed.noise > _CLEAN * spread).any())
        self.fit = lambda system: fit(system, _CLEAN if self.is_noisy else _EXACT)
        self.smoothing = _SMOOTHING * preprocessed.scales.velocity
        self.library = candidates(data.manifold, np.ptp(samples.q, axis=0))
        stride = max(int(preprocessed.smoother.window / _SHARE), len(samples.q) // _SAMPLES, 1)
        self.samples = jax.tree.map(lambda x: x[::stride], samples)
        passed = preprocessed.noise * np.linalg.norm(preprocessed.smoother.kernels(preprocessed.even.dt)[2])
        self.deviation = np.sqrt(passed**2 + (0.03 * self.samples.bias) ** 2 + (3e-5 * samples.a.std(axis=0)) ** 2)

    def selected(self) -> Selection:
        """The terms of the best kind of mass, by accelerations."""
        u = self.samples.u
        forces = np.zeros_like(self.samples.q) if u is None else u @ self._port_matrix().T
        self.forces = forces
        found: list[Selection] = []
        for family in families(self.preprocessed.data.manifold, u is not None):
            if found and time.monotonic() > self.deadline:
                self.skipped.append(f"the mass '{family.name}'")
                continue
            equations = Equations(self.samples, forces, self.deviation, family, self.library, self.smoothing)
            try:
                found.append(select(equations, self.deadline))
            except np.linalg.LinAlgError:  # a mass that these data cannot have
                continue
        return self._sharpened(max(found, key=lambda each: each.evidence))

    def _sharpened(self, found: Selection) -> Selection:
        """How sharply dry friction changes sign, from the accelerations."""
        if not any(term.kind in ("coulomb", "drag") for term in found.kept):
            return found
        speed = self.preprocessed.scales.velocity

        def tried(log_share: float) -> tuple[float, Selection]:
            smoothing = float(np.exp(log_share)) * speed
            kept = list(found.kept)
            equations = Equations(self.samples, self.forces, self.deviation, found.family, kept, smoothing)
            refined = settle(equations, found)
            return refined.excess, refined

        best = scipy.optimize.minimize_scalar(
            lambda x: tried(x)[0], bounds=np.log(_SHARPNESS), method="bounded", options={"xatol": 1e-5}
        )
        excess, refined = tried(best.x)
        if excess >= found.excess:
            return found
        self.smoothing = float(np.exp(best.x)) * speed
        return refined

    def _port_matrix(self) -> np.ndarray:
        return np.eye(self.n) if self.port is None else np.asarray(self.port)

    def by_positions(self, found: Selection) -> Selection:
        """The terms that positions need, from one fit of all terms."""
        if time.monotonic() > self.deadline:
            self.skipped.append("the fit of all terms to positions")
            return found
        at = dict(zip(found.kept, found.coefficients.tolist(), strict=True))
        stored = [term for term in self.library if term.kind not in DISSIPATIVE]
        lost = [term for term in self.library if term.kind in DISSIPATIVE]
        units = self._units()
        starts = [[at.get(term, 0.0) / units[term] for term in terms] for terms in (stored, lost)]
        potential = _Terms(Real.starting_at(starts[0]), tuple(stored), tuple(units[term] for term in stored))
        damping = _Losses(
            Real.starting_at(starts[1]), tuple(lost), tuple(units[term] for term in lost), float(self.smoothing)
        )
        mass, count = mass_of(found, self.n)
        try:
            fitted = self.fit(PortHamiltonian(potential, mass, damping, self.port))
        except FitError:
            return found
        k = len(stored)
        order = [*range(k), *range(k + count, k + count + len(lost)), *range(k, k + count)]
        information = np.asarray(fitted.evidence.information)[np.ix_(order, order)]
        theta = np.concatenate(
            [np.asarray(fitted.core.system.potential.values()), np.asarray(fitted.core.system.damping.values())]
        )
        moving = np.zeros(count)  # the mass stays: what it would be at zero is no question
        normal = ScaledNormal.about(information, np.concatenate([theta, moving]), fitted.evidence.count)
        terms = [*stored, *lost]
        price = price_of(fitted.evidence.count, len(terms))
        kept = eliminated(normal, np.ones(len(order), dtype=bool), price, terms)
        x = normal.solve(kept)[0] / normal.scale[kept]
        chosen = np.flatnonzero(kept[: len(terms)])
        values = [x[i] * units[terms[j]] for i, j in enumerate(chosen)]
        return found._replace(kept=tuple(terms[i] for i in chosen), coefficients=np.array(values))

    def is_unexplained(self, found: Selection, model: ModelAware | None) -> bool:
        """Whether the law leaves of the positions more than noise, and more than next to nothing."""
        if model is None:
            return found.excess > _UNEXPLAINED
        least = _CLOSE * self.preprocessed.scales.position
        return model.evidence.rms > max(_BEYOND * float(np.max(self.preprocessed.noise)), least)

    def _units(self) -> dict[Candidate, float]:
        """The coefficient with which a term is as large as the forces are."""
        size = float(np.sqrt(np.mean(self.samples.a**2)))
        forces = (term.force(self.samples.q, self.samples.v, self.smoothing) for term in self.library)
        return {t: size / float(np.sqrt(np.mean(f**2)) + 1e-300) for t, f in zip(self.library, forces, strict=True)}

    def pruned(self, found: Selection) -> tuple[Law, ModelAware | None]:
        """The law without the terms that its fit finds insignificant, and that fit."""
        law, model = law_of(found, self.n, float(self.smoothing), self.port), None
        for _ in range(_ROUNDS if law.owners else 0):
            if time.monotonic() > self.deadline:
                self.skipped.append("removing terms that are not significant")
                break
            model = self.fit(law.system)
            gone = self._insignificant(law, model)
            if not gone:
                break
            left = [i for i, term in enumerate(found.kept) if term not in gone]
            found = found._replace(kept=tuple(found.kept[i] for i in left), coefficients=found.coefficients[left])
            law, model = law_of(found, self.n, float(self.smoothing), self.port), None
        return law, model

    def _insignificant(self, law: Law, model: ModelAware) -> set[Candidate]:
        """Terms whose number is no more than a few deviations, or next to nothing of what would be felt."""
        values, slopes = np.array(in_units(model.core.system)).T
        deviations = np.abs(slopes) * np.sqrt(np.maximum(np.diag(model.evidence.covariance), 0.0))
        units, position = self._units(), self.preprocessed.scales.position
        felt = {
            term: {"sine": 1.0, "constant": min(unit, position)}.get(term.kind, unit) for term, unit in units.items()
        }
        pairs = zip(law.owners, values, deviations, strict=True)
        return {
            owner
            for owner, value, deviation in pairs
            if owner is not None and abs(value) < max(_CERTAIN * deviation, _NOTHING * felt[owner])
        }


# --- all terms at once -----------------------------------------------------------------------------------------------


class _Terms(AbstractPotential):
    """Σ θ_k f_k(r_k·q): every term of a library, of either sign."""

    coefficients: Real
    terms: tuple[Candidate, ...]
    units: tuple[float, ...]

    def values(self) -> Float[Array, " k"]:
        return value_of(self.coefficients)

    def __call__(self, q):
        each = jnp.stack([unit * _energy(term, q) for term, unit in zip(self.terms, self.units, strict=True)])
        return jnp.dot(value_of(self.coefficients), each)


def _energy(term: Candidate, q: Float[Array, " n"]) -> Float[Array, ""]:
    if term.kind == "pair":
        first, second = (int(i) // 2 for i in np.flatnonzero(term.row)[::2])
        points = q.reshape(-1, 2)
        near = jnp.sum((points[first] - points[second]) ** 2) + SOFTENING**2
        return near ** (-0.5 * term.power)
    x = jnp.dot(jnp.asarray(term.row), q)
    found = {
        "constant": lambda: -x,
        "quadratic": lambda: 0.5 * x**2,
        "quartic": lambda: 0.25 * x**4,
        "cosine": lambda: 1.0 - jnp.cos(x),
        "sine": lambda: -jnp.sin(x),
    }
    return found[term.kind]()


class _Losses(AbstractFriction):
    """Σ θ_k d_k(q, r_k·v) r_k r_kᵀ: as :class:`_Terms`, for a while of either sign."""

    coefficients: Real
    terms: tuple[Candidate, ...]
    units: tuple[float, ...]
    smoothing: float

    def values(self) -> Float[Array, " k"]:
        return value_of(self.coefficients)

    def operator(self, q, v):
        rows = jnp.asarray([term.row for term in self.terms])
        speeds = jnp.sqrt((rows @ v) ** 2 + self.smoothing**2)
        ways = {"viscous": lambda s, t: 1.0, "coulomb": lambda s, t: 1.0 / s, "drag": lambda s, t: s}
        ways["facing"] = lambda s, t: jnp.abs(jnp.sin(q[t.where]))
        each = jnp.stack([u * ways[t.kind](s, t) for t, u, s in zip(self.terms, self.units, speeds, strict=True)])
        return Dense((rows.T * (value_of(self.coefficients) * each)) @ rows)
