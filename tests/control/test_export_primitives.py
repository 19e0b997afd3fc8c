"""JAX as C, primitive by primitive: one file with all of these functions, compared with JAX for random numbers."""

import ctypes

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import call, compiled
from jax.scipy.linalg import cho_solve

from phast.control.export import linear_algebra
from phast.control.export.function import Place, written
from phast.control.export.program import DOUBLE, Program, Tables
from phast.errors import InputError

pytestmark = pytest.mark.usefixtures("float64")


def _pd(a):
    return a @ a.T + jnp.eye(len(a))


def _spectral(a):
    values, vectors = jnp.linalg.eigh(_pd(a))
    return (vectors * jnp.exp(-values)) @ vectors.T


def _swapped(i, x):
    """A loop that carries two large arrays and exchanges them, and an integer."""

    def body(k, both):
        return both[1] * 1.1, jnp.roll(both[0], 1) + k

    return sum(jax.lax.fori_loop(0, i + 2, body, (jnp.tile(x, 9), jnp.ones(54))))


def _scanned(b, c):
    return jax.lax.scan(lambda carry, x: (carry * 0.5 + x[0], jnp.outer(x, b) * carry), 1.0, c, reverse=True)[1]


# Each of a (6, 6), b (6), c (9, 2) and an integer i between 0 and 4.
FUNCTIONS = {
    "elementary": lambda a, b, c, i: jnp.stack([jnp.sin(b), jnp.expm1(b), jnp.tanh(b), jnp.hypot(b, 2 * b)]),
    "powers": lambda a, b, c, i: jnp.stack([b**2, b**3, b**-2, jnp.abs(b) ** 0.3, jnp.exp2(b), jnp.cbrt(b)]),
    "special": lambda a, b, c, i: jnp.stack([jax.nn.softplus(b), jax.nn.gelu(b), jax.nn.sigmoid(b), jnp.sinc(b)]),
    "rounding": lambda a, b, c, i: jnp.stack([jnp.round(3 * b), jnp.floor(b), jnp.sign(b), jnp.mod(b, 0.3)]),
    "choices": lambda a, b, c, i: jnp.where((b > 0) & (b < 1), jnp.clip(b, 0.2, 0.5), jnp.maximum(b, -b)),
    "not a number": lambda a, b, c, i: jnp.minimum(jnp.maximum(jnp.log(b), 0.0), 1.0),
    "products": lambda a, b, c, i: jnp.einsum("ij,j,k->ik", a, b, b) + jnp.tensordot(c, c, axes=[[0, 1], [0, 1]]),
    "large products": lambda a, b, c, i: jnp.kron(a, a) @ jnp.tile(b, 6),
    "sums": lambda a, b, c, i: jnp.concatenate([jnp.cumsum(c, 0)[:, 0], a.max(1), c.prod(0), jnp.tile(a, 3).min(0)]),
    "places": lambda a, b, c, i: jnp.argmax(b) + 10.0 * jnp.argmin(c, 0),
    "windows": lambda a, b, c, i: jax.lax.dynamic_slice(c, (i, 0), (3, 2)),
    "windows replaced": lambda a, b, c, i: jax.lax.dynamic_update_slice(c, c[:3], (i, 0)),
    "rows": lambda a, b, c, i: jnp.concatenate([a[i], c[jnp.array([2, 1]) + i, 0], b[jnp.array([5 - i])]]),
    "outside": lambda a, b, c, i: jnp.take(c, jnp.array([2, 10]) + i, axis=0),
    "replaced": lambda a, b, c, i: b.at[i].set(1.0).at[-1].add(2.0) + c.at[i, :].set(7.0)[:6, 0] + b.at[i + 5].set(9.0),
    "moves": lambda a, b, c, i: jax.lax.pad(jnp.roll(a.T[::-1], 1, axis=1)[::2], 7.0, ((1, 0, 1), (-1, 2, 0))),
    "loops": lambda a, b, c, i: _swapped(i, b),
    "scans": lambda a, b, c, i: _scanned(b, c),
    "branches": lambda a, b, c, i: jax.lax.switch(i, [jnp.sin, jnp.cos, lambda x: x[::-1]], b),
    "searches": lambda a, b, c, i: jnp.interp(b, jnp.arange(6.0) - 3.0, b),
    "cholesky": lambda a, b, c, i: cho_solve((jnp.linalg.cholesky(_pd(a)), True), b),
    "solves": lambda a, b, c, i: jnp.linalg.solve(a, b) + jnp.linalg.inv(_pd(a))[0] * jnp.linalg.det(a),
    "eigenvalues": lambda a, b, c, i: _spectral(a),
    "reflections": lambda a, b, c, i: jnp.concatenate(jnp.linalg.qr(c)),
    "derivatives": lambda a, b, c, i: jax.hessian(lambda x: jnp.sum(jnp.tanh(a @ x) ** 2))(b),
}
SHAPES = {"a": (6, 6), "b": (6,), "c": (9, 2)}


def _arguments(seed):
    rng = np.random.default_rng(seed)
    return *(rng.normal(size=shape) for shape in SHAPES.values()), np.float64(seed % 5)


def _indexed(function):
    return lambda a, b, c, i: [jnp.asarray(function(a, b, c, i.astype(int)), dtype=float)]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """All functions in one file, compiled so that undefined behaviour ends the process."""
    tables, texts, helpers = Tables(DOUBLE), [], set()
    with jax.enable_x64(True):
        for k, function in enumerate(FUNCTIONS.values()):
            (out,) = jax.eval_shape(_indexed(function), *_arguments(0))
            places = [Place(name, shape) for name, shape in SHAPES.items()]
            found = written(_indexed(function), [*places, Place("i")], [Place("out", out.shape)], DOUBLE, tables)
            helpers |= found.helpers
            unused = "".join(f"(void){name};" for name in "abci")
            head = f"void f{k}(const double *a, const double *b, const double *c, double i, double *out)"
            texts.append(f"{head} {{ {unused}\n{found.body}\n}}\n")
    body = "\n".join(texts)
    sources = linear_algebra.sources(sorted(helpers), "double", "")
    path = tmp_path_factory.mktemp("primitives") / "functions.c"
    path.write_text("\n".join(["#include <math.h>", "#include <stdint.h>", sources, tables.text(body), body]))
    return compiled(path, "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_c_computes_what_jax_computes(library, name):
    k, function = list(FUNCTIONS).index(name), FUNCTIONS[name]
    for seed in range(3):
        arguments = _arguments(seed)
        wanted = np.asarray(jax.jit(_indexed(function))(*arguments)[0])
        out = np.full(wanted.shape, 123.0)
        call(getattr(library, f"f{k}"), *arguments, out.reshape(-1) if out.ndim else out[None])
        np.testing.assert_allclose(out, wanted, rtol=1e-11, atol=1e-13)


def test_what_c_has_no_counterpart_for_is_refused_by_name():
    def function(x):
        return [jnp.sort(x)]

    with pytest.raises(InputError, match=r"'sort' has no counterpart.*function, test_export_primitives.py:\d+"):
        written(function, [Place("x", (3,))], [Place("out", (3,))], DOUBLE, Tables(DOUBLE))


def test_too_much_stack_is_refused():
    x, out = Place("x", (300,)), Place("out", (300,))
    with pytest.raises(InputError, match="bytes of stack"):
        written(lambda x: [jnp.outer(x, x).sum(0)], [x], [out], DOUBLE, Tables(DOUBLE))


def test_what_nothing_needs_is_not_written():
    program = Program(DOUBLE, Tables(DOUBLE))
    total, waste = program.declare("f", None), program.declare("f", 10)
    with program.block("for (int i = 0; i < 10; i++)"):
        program.line(f"{waste}[i] = i;", [waste], [waste])
    program.line(f"{total} = 1;", [total], ())
    body, stack = program.body({total})
    assert waste not in body and "for" not in body and total in body and stack == 8


def test_numbers_are_read_back_exactly():
    for value in np.random.default_rng(0).normal(size=50) * 10.0 ** np.arange(-25, 25):
        assert float(DOUBLE.number(value).strip("()")) == value
    assert DOUBLE.number(-np.inf) == "(-INFINITY)" and ctypes.sizeof(ctypes.c_double) == 8
