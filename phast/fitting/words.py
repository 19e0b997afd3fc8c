"""The words of a structure, checked before anything heavy is loaded."""

from difflib import get_close_matches

import numpy as np

from phast.errors import InputError

REGIMES = ("known", "partial", "unknown")
MASSES = ("learned", "links", "joints")
DAMPINGS = ("viscous", "coulomb", "quadratic", "free", "none")
POTENTIALS = ("cosine", "quadratic", "chain")
PORTS = ("identity", "learned")


def words_in(text: str) -> list[str]:
    return [word.strip() for word in text.split("+")]


def check_potential(word: str) -> None:
    """Refuse an unknown potential, and name the nearest one."""
    kind, _, strength = word.partition(":")
    if kind not in POTENTIALS:
        near = get_close_matches(kind, POTENTIALS, n=1, cutoff=0.6)
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        raise InputError(
            f"unknown potential '{word}'{hint}: choose {', '.join(POTENTIALS)}, or a strength, 'cosine:9.8'"
        )
    if strength:
        strength_in(strength, word)


def strength_in(strength: str, text: str) -> float:
    strengths = numbers_in(strength, f"potential '{text}'")
    if len(strengths) > 1 or strengths[0] <= 0.0:
        raise InputError(f"potential '{text}': give one strength, a positive number")
    return strengths[0]


def check_dampings(text: str) -> list[str]:
    terms = words_in(text)
    unknown = [word for word in terms if word not in DAMPINGS]
    if unknown:
        near = get_close_matches(unknown[0], DAMPINGS, n=1)
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        raise InputError(f"unknown damping '{unknown[0]}'{hint}: choose of {', '.join(DAMPINGS)}, joined by +")
    if len(terms) > 1 and "none" in terms:
        raise InputError(f"damping '{text}': 'none' goes with no other term")
    return terms


def numbers_in(text: str, what: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{what}: '{text}' is not a number") from None
    if not np.isfinite(values).all():
        raise InputError(f"{what}: '{text}' is not a finite number")
    return values


def check_mass(text: str) -> None:
    """Refuse what is neither a word for a mass nor numbers."""
    if text not in MASSES:
        masses_in(text)


def masses_in(text: str) -> tuple[float, ...]:
    return numbers_in(text, f"mass '{text}' (a number, one for each coordinate, or {', '.join(MASSES)})")


def check_port(text: str | None) -> None:
    """Refuse what is neither a word for a port nor rows of numbers."""
    if text not in (None, *PORTS):
        rows_in(text)


def rows_in(text: str) -> list[tuple[float, ...]]:
    return [
        numbers_in(row, f"port '{text}' (rows such as '1,0;0,1', or {', '.join(PORTS)})") for row in text.split(";")
    ]


def check(potential: str | None, mass: str, damping: str | None, regime: str | None) -> None:
    """Refuse unknown words of a structure, and a regime that lacks what it needs."""
    for word in [] if potential is None else words_in(potential):
        check_potential(word)
    if damping is not None:
        check_dampings(damping)
    check_mass(mass)
    check_regime(regime, has_potential=potential is not None, has_damping=damping is not None)


def check_regime(regime: str | None, *, has_potential: bool, has_damping: bool) -> None:
    """Refuse an unknown regime, or one that lacks what it needs."""
    if regime not in (None, *REGIMES):
        raise InputError(f"unknown regime '{regime}': choose {', '.join(REGIMES[:-1])} or {REGIMES[-1]}")
    if regime == "unknown" and has_potential:
        raise InputError("regime 'unknown' has no template: leave the potential out, or choose 'partial'")
    if regime in ("known", "partial") and not has_potential:
        raise InputError(f"regime '{regime}' needs a potential (--potential), e.g. cosine or quadratic")
    if regime == "known" and not has_damping:
        terms = ", ".join(DAMPINGS)
        raise InputError(f"regime 'known' needs a damping law (--damping): name its terms, of {terms}, joined by +")
