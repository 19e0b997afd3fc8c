"""Factorisations of small dense matrices: one C function for each that is used, called with sizes."""

from collections.abc import Sequence

from jax.extend.core import JaxprEqn

from phast.control.export.lowering import Atoms, Lowering, Rule, elements

_SOURCES = {
    "cholesky": """/* The lower Cholesky factor, row by row; not a number where there is none. */
static void cholesky(int n, {real} *a) {{
    for (int i = 0; i < n; i++) {{
        for (int j = 0; j <= i; j++) {{
            {real} sum = a[i * n + j];
            for (int k = 0; k < j; k++) sum -= a[i * n + k] * a[j * n + k];
            a[i * n + j] = i == j ? sqrt{s}(sum) : sum / a[j * n + j];
        }}
        for (int j = i + 1; j < n; j++) a[i * n + j] = 0;
    }}
}}
""",
    "lu": """/* P A = L U with partial pivoting, in place. */
static void lu(int n, {real} *a, int64_t *pivots, int64_t *order) {{
    for (int i = 0; i < n; i++) order[i] = i;
    for (int k = 0; k < n; k++) {{
        int best = k;
        for (int i = k + 1; i < n; i++) {{
            if (fabs{s}(a[i * n + k]) > fabs{s}(a[best * n + k])) best = i;
        }}
        pivots[k] = best;
        if (best != k) {{
            const int64_t row = order[k];
            order[k] = order[best];
            order[best] = row;
            for (int j = 0; j < n; j++) {{
                const {real} item = a[k * n + j];
                a[k * n + j] = a[best * n + j];
                a[best * n + j] = item;
            }}
        }}
        for (int i = k + 1; i < n; i++) {{
            a[i * n + k] /= a[k * n + k];
            for (int j = k + 1; j < n; j++) a[i * n + j] -= a[i * n + k] * a[k * n + j];
        }}
    }}
}}
""",
    "permutation": """/* The order of rows after the exchanges of a factorisation. */
static void permutation(int count, int n, const int64_t *pivots, int64_t *order) {{
    for (int i = 0; i < n; i++) order[i] = i;
    for (int k = 0; k < count; k++) {{
        const int64_t row = order[k];
        order[k] = order[pivots[k]];
        order[pivots[k]] = row;
    }}
}}
""",
    "triangular_solve": """/* Solves A x = b for each column of b, in place; down and across are the strides of A. */
static void triangular_solve(int n, int columns, int lower, int unit, int down, int across, const {real} *a,
                             {real} *b) {{
    for (int s = 0; s < n; s++) {{
        const int i = lower ? s : n - 1 - s;
        for (int c = 0; c < columns; c++) {{
            {real} sum = b[i * columns + c];
            for (int k = lower ? 0 : i + 1; k < (lower ? i : n); k++) {{
                sum -= a[i * down + k * across] * b[k * columns + c];
            }}
            b[i * columns + c] = unit ? sum : sum / a[i * (down + across)];
        }}
    }}
}}
""",
    "qr": """/* A = Q R by Householder's reflections, for m >= n; spoils a. */
static void qr(int m, int n, {real} *a, {real} *q, {real} *r) {{
    for (int i = 0; i < m * n; i++) q[i] = i < n * n && i % (n + 1) == 0;
    for (int i = 0; i < n * n; i++) r[i] = 0;
    for (int k = 0; k < n; k++) {{
        {real} norm = 0, length = 0;
        for (int i = k; i < m; i++) norm += a[i * n + k] * a[i * n + k];
        const {real} top = a[k * n + k] >= 0 ? -sqrt{s}(norm) : sqrt{s}(norm);
        r[k * n + k] = top;
        a[k * n + k] -= top;
        for (int i = k; i < m; i++) length += a[i * n + k] * a[i * n + k];
        for (int j = k + 1; j < n; j++) {{
            {real} along = 0;
            for (int i = k; i < m; i++) along += a[i * n + k] * a[i * n + j];
            for (int i = k; length > 0 && i < m; i++) a[i * n + j] -= 2 * along / length * a[i * n + k];
            r[k * n + j] = a[k * n + j];
        }}
    }}
    for (int k = n - 1; k >= 0; k--) {{
        {real} length = 0;
        for (int i = k; i < m; i++) length += a[i * n + k] * a[i * n + k];
        for (int j = 0; j < n; j++) {{
            {real} along = 0;
            for (int i = k; i < m; i++) along += a[i * n + k] * q[i * n + j];
            for (int i = k; length > 0 && i < m; i++) q[i * n + j] -= 2 * along / length * a[i * n + k];
        }}
    }}
}}
""",
    "eigh": """/* Eigenvectors (columns of v) and ascending eigenvalues of a symmetric a, by Jacobi's rotations. */
static void eigh(int n, {real} *a, {real} *v, {real} *w) {{
    for (int i = 0; i < n * n; i++) v[i] = i % (n + 1) == 0;
    for (int sweep = 0; sweep < 60; sweep++) {{
        {real} off = 0, size = 0;
        for (int i = 0; i < n * n; i++) {{
            size += a[i] * a[i];
            off += i % (n + 1) == 0 ? 0 : a[i] * a[i];
        }}
        if (!(off > {tiny} * size)) break;
        for (int p = 0; p < n - 1; p++) {{
            for (int q = p + 1; q < n; q++) {{
                if (a[p * n + q] == 0) continue;
                const {real} half = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
                const {real} t = (half >= 0 ? 1 : -1) / (fabs{s}(half) + sqrt{s}(half * half + 1));
                const {real} c = 1 / sqrt{s}(t * t + 1), s = t * c;
                for (int k = 0; k < n; k++) {{
                    const {real} x = a[k * n + p], y = a[k * n + q];
                    a[k * n + p] = c * x - s * y;
                    a[k * n + q] = s * x + c * y;
                }}
                for (int k = 0; k < n; k++) {{
                    const {real} x = a[p * n + k], y = a[q * n + k];
                    a[p * n + k] = c * x - s * y;
                    a[q * n + k] = s * x + c * y;
                }}
                for (int k = 0; k < n; k++) {{
                    const {real} x = v[k * n + p], y = v[k * n + q];
                    v[k * n + p] = c * x - s * y;
                    v[k * n + q] = s * x + c * y;
                }}
            }}
        }}
    }}
    for (int i = 0; i < n; i++) w[i] = a[i * (n + 1)];
    for (int i = 0; i < n; i++) {{
        int least = i;
        for (int j = i + 1; j < n; j++) least = w[j] < w[least] ? j : least;
        const {real} value = w[i];
        w[i] = w[least];
        w[least] = value;
        for (int k = 0; k < n; k++) {{
            const {real} item = v[k * n + i];
            v[k * n + i] = v[k * n + least];
            v[k * n + least] = item;
        }}
    }}
}}
""",
}


def sources(names: Sequence[str], real: str, suffix: str) -> str:
    """The C functions with these names."""
    tiny = "1e-32" if not suffix else "1e-15f"
    return "\n".join(_SOURCES[name].format(real=real, s=suffix, tiny=tiny) for name in sorted(names))


def _square(lowering: Lowering, equation: JaxprEqn, array: Atoms) -> int:
    if array.ndim != 2:
        raise lowering.refused(equation, " of several matrices at once")
    return array.shape[0]


def _called(lowering: Lowering, name: str, arguments: str, defines: Sequence[str], uses: Sequence[str] = ()) -> None:
    """Call one of the functions above."""
    lowering.program.helpers.add(name)
    lowering.program.line(f"{name}({arguments});", defines, [*uses, *defines])


def _cholesky(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
    n, out = _square(lowering, equation, arguments[0]), lowering.copied(arguments[0])
    name = out[0, 0].name
    _called(lowering, "cholesky", f"{n}, {name}", [name])
    return [out]


def _lu(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
    n, out = _square(lowering, equation, arguments[0]), lowering.copied(arguments[0])
    name, pivots, order = out[0, 0].name, *(lowering.program.declare("i", n) for _ in range(2))
    _called(lowering, "lu", f"{n}, {name}, {pivots}, {order}", [name, pivots, order])
    return [out, elements(pivots, "i", (n,)), elements(order, "i", (n,))]


def _permutation(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
    if arguments[0].ndim != 1:
        raise lowering.refused(equation, " of several matrices at once")
    n = equation.params["permutation_size"]
    (pivots, items), order = lowering.stored(arguments[0]), lowering.program.declare("i", n)
    _called(lowering, "permutation", f"{items.size}, {n}, {pivots}, {order}", [order], [pivots])
    return [elements(order, "i", (n,))]


def _triangular_solve(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
    (a, b), params = arguments, equation.params
    n = _square(lowering, equation, a)
    across_right = not params["left_side"]  # X A = B is Aᵀ Xᵀ = Bᵀ
    b = b.T if across_right else b
    turned = bool(params["transpose_a"]) != across_right
    matrix, _ = lowering.stored(a)
    out = lowering.copied(b)
    name, lower = out[0, 0].name, int(bool(params["lower"]) != turned)
    strides = f"{1 if turned else n}, {n if turned else 1}"
    sizes = f"{n}, {b.shape[1]}, {lower}, {int(params['unit_diagonal'])}, {strides}"
    _called(lowering, "triangular_solve", f"{sizes}, {matrix}, {name}", [name], [matrix])
    return [out.T if across_right else out]


def _eigh(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
    n, program = _square(lowering, equation, arguments[0]), lowering.program
    spoiled = lowering.copied(arguments[0])[0, 0].name
    vectors, values = program.declare("f", n * n), program.declare("f", n)
    _called(lowering, "eigh", f"{n}, {spoiled}, {vectors}, {values}", [vectors, values], [spoiled])
    return [elements(vectors, "f", (n, n)), elements(values, "f", (n,))]


def _qr(lowering: Lowering, equation: JaxprEqn, arguments: list[Atoms]) -> Sequence[Atoms]:
    rows, columns = arguments[0].shape if arguments[0].ndim == 2 else (0, 1)
    if rows < columns or equation.params["pivoting"] or (equation.params["full_matrices"] and rows > columns):
        raise lowering.refused(equation, " of this shape")
    program, spoiled = lowering.program, lowering.copied(arguments[0])[0, 0].name
    q, r = program.declare("f", rows * columns), program.declare("f", columns * columns)
    _called(lowering, "qr", f"{rows}, {columns}, {spoiled}, {q}, {r}", [q, r], [spoiled])
    return [elements(q, "f", (rows, columns)), elements(r, "f", (columns, columns))]


RULES: dict[str, Rule] = {
    "cholesky": _cholesky,
    "lu": _lu,
    "lu_pivots_to_permutation": _permutation,
    "triangular_solve": _triangular_solve,
    "eigh": _eigh,
    "qr": _qr,
}
