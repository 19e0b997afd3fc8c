"""The words of a structure, checked before anything heavy is loaded."""

import re
from difflib import get_close_matches
from typing import NamedTuple

import numpy as np

from phast.errors import InputError

REGIMES = ("known", "partial", "unknown")
MASSES = ("learned", "links", "joints", "joints+rotors", "cartpole")
DAMPINGS = ("viscous", "coulomb", "quadratic", "stiction", "directional", "coupled", "free", "none")
POTENTIALS = ("cosine", "quadratic", "quartic", "constant", "coupled", "chain", "none", "auto")
PORTS = ("identity", "learned")

_OF_COMBINATIONS = ("cosine", "quadratic", "quartic", "constant", "viscous", "coulomb", "stiction")
_WITH_STRENGTH = ("cosine", "quadratic", "chain")
_TERM = re.compile(r"([^(:]*)(?:\(([^()]*)\))?(?::(.*))?")


class Term(NamedTuple):
    """One word: what kind, of which coordinates or their sums and differences, and how strong."""

    kind: str
    where: str | None = None
    strength: str | None = None


def words_in(text: str) -> list[str]:
    """The words, joined by + outside of brackets."""
    return [word.strip() for word in re.split(r"\+(?![^(]*\))", text)]


def term_in(word: str) -> Term:
    """``cosine``, ``cosine:9.81``, ``quadratic(x1-x2)``, taken apart."""
    found = _TERM.fullmatch(word)
    if found is None:
        raise InputError(f"'{word}': write a word, or a word of some coordinates, as quadratic(x1-x2)")
    kind, where, strength = found.groups()
    return Term(kind.strip(), where, strength)


def combinations_in(where: str, names: tuple[str, ...]) -> tuple[tuple[float, ...], ...]:
    """``x1-x2, theta`` as rows over the coordinates."""
    return tuple(_row(part.strip(), names) for part in where.split(","))


def _row(text: str, names: tuple[str, ...]) -> tuple[float, ...]:
    """A coordinate, or coordinates joined by + and -."""
    known = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    row, rest = dict.fromkeys(names, 0.0), text if text[:1] in ("+", "-") else f"+{text}"
    while found := re.match(rf"\s*([+-])\s*({known})(?=\s*(?:[+-]|$))", rest):
        row[found[2]] += 1.0 if found[1] == "+" else -1.0
        rest = rest[found.end() :]
    if rest.strip() or not any(row.values()):
        raise InputError(f"'({text})': name coordinates, of {', '.join(names)}, joined by + and -")
    return tuple(row.values())


def check_potentials(text: str) -> list[Term]:
    """Refuse an unknown potential, and name the nearest one."""
    terms = [check_potential(word) for word in words_in(text)]
    for word in ("none", "auto"):
        if len(terms) > 1 and word in [term.kind for term in terms]:
            raise InputError(f"potential '{text}': '{word}' goes with no other term")
    return terms


def check_potential(word: str) -> Term:
    """Refuse an unknown potential, and name the nearest one."""
    term = term_in(word)
    if term.kind not in POTENTIALS:
        near = get_close_matches(term.kind, POTENTIALS, n=1, cutoff=0.6)
        hint = f" (did you mean '{near[0]}'?)" if near else ""
        raise InputError(
            f"unknown potential '{word}'{hint}: choose {', '.join(POTENTIALS)}, or a strength, 'cosine:9.8'"
        )
    _check_where(term, word)
    if term.strength is not None and term.kind not in _WITH_STRENGTH:
        raise InputError(f"potential '{word}': only {', '.join(_WITH_STRENGTH)} take a strength")
    if term.strength:
        strength_in(term.strength, word)
    return term


def _check_where(term: Term, word: str) -> None:
    if term.where is not None and term.kind not in _OF_COMBINATIONS:
        raise InputError(f"'{word}': '{term.kind}' is of all coordinates; leave the brackets out")
    if term.where is not None and not term.where.strip():
        raise InputError(f"'{word}': name coordinates in the brackets, as {term.kind}(x1-x2)")


def strength_in(strength: str, text: str) -> float:
    strengths = numbers_in(strength, f"potential '{text}'")
    if len(strengths) > 1 or strengths[0] <= 0.0:
        raise InputError(f"potential '{text}': give one strength, a positive number")
    return strengths[0]


def check_dampings(text: str) -> list[Term]:
    """Refuse an unknown damping, and words that do not go together."""
    terms = [term_in(word) for word in words_in(text)]
    kinds = [term.kind for term in terms]
    for term, word in zip(terms, words_in(text), strict=True):
        if term.kind not in DAMPINGS or term.strength is not None:
            near = get_close_matches(term.kind, DAMPINGS, n=1)
            hint = f" (did you mean '{near[0]}'?)" if near and near[0] != word else ""
            raise InputError(f"unknown damping '{word}'{hint}: choose of {', '.join(DAMPINGS)}, joined by +")
        _check_where(term, word)
    if len(terms) > 1 and "none" in kinds:
        raise InputError(f"damping '{text}': 'none' goes with no other term")
    if "directional" in kinds and not {"viscous", "coulomb", "quadratic"} & set(kinds):
        raise InputError(f"damping '{text}': name what differs by direction, as coulomb+directional")
    if {Term("stiction"), Term("coulomb")} <= set(terms):
        raise InputError(f"damping '{text}': stiction is Coulomb friction that holds; leave coulomb out")
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
    if text.replace(" ", "") not in MASSES:
        masses_in(text)


def masses_in(text: str) -> tuple[float, ...]:
    given = numbers_in(text, f"mass '{text}' (a number, one for each coordinate, or {', '.join(MASSES)})")
    if min(given) <= 0.0:
        raise InputError(f"mass '{text}': give positive numbers, or choose {', '.join(MASSES)}")
    return given


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
    if potential is not None:
        check_potentials(potential)
    if damping is not None:
        check_dampings(damping)
    check_mass(mass)
    if potential == "auto" and not (damping is regime is None and mass in ("1.0", "1")):
        raise InputError("potential 'auto' finds the whole law: leave mass, damping and regime out")
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
