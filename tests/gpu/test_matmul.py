# SPDX-License-Identifier: Apache-2.0
"""Every kind of Matmul on a GPU against float64 (or exact integer) NumPy: a pairwise cover, listed when run."""

from __future__ import annotations

import itertools
import os

import ml_dtypes  # noqa: F401  (bfloat16 arrays for Numba)
import numpy as np
import pytest

from tests.gpu.pairwise import cover
from tests.gpu.values import ROUNDOFF, TF32_ROUNDOFF, carrier, random_logical, read_back, to_device, to_pairs

PRECISIONS = [
    ("float16", "float16", "float16"), ("float16", "float16", "float32"), ("bfloat16", "bfloat16", "float32"),
    ("tfloat32", "tfloat32", "float32"), ("float32", "float32", "float32"), ("float64", "float64", "float64"),
    ("float8_e4m3fn", "float8_e4m3fn", "float32"), ("float8_e5m2", "float8_e4m3fn", "float16"),
    ("float8_e5m2", "float8_e5m2", "float32"), ("int8", "int8", "int32"), ("uint8", "uint8", "uint32"),
    ("uint8", "int8", "int32"), ("int16", "int16", "int64"), ("uint16", "uint16", "uint64"), ("int8", "int8", "int64"),
    ("float16", "bfloat16", "float32"), ("float32", "float16", "float64"), ("bfloat16", "float32", "float64"),
]  # fmt: skip
ORDERS = ("col_major", "row_major")
SIZES = (1, 3, 7, 17, 33, 64)
FACTORS = {
    "precision": PRECISIONS,
    "arrangement": list(itertools.product(ORDERS, repeat=3)),
    "m": SIZES,
    "n": SIZES,
    "k": SIZES,
    "data_type": ("real", "complex"),
    "padding": (0, 3),
    "threads": (32, 96, 128, 256),
}


def is_possible(row):
    if row["data_type"] == "complex" and any(t.startswith("uint") for t in row["precision"]):
        return False  # libmathdx: complex integers are signed
    # 227 KiB of shared memory: 64 x 64 complex128 three times fits (196,608 bytes) without padding only.
    widest = 2 * 8 if row["data_type"] == "complex" else 8
    need = sum((x + row["padding"]) * (y + row["padding"]) for x, y in _shapes(row)) * widest
    return need <= 227 * 1024


def _shapes(row):
    return (row["m"], row["k"]), (row["k"], row["n"]), (row["m"], row["n"])


CASES = cover(FACTORS, allowed=is_possible, seed=1)


def name_of(row):
    kind = "c" if row["data_type"] == "complex" else "r"
    orders = "".join(o[0] for o in row["arrangement"])
    types = "-".join(t.replace("float", "f").replace("int", "i") for t in row["precision"])
    return f"{types}.{kind}.{orders}.{row['m']}x{row['n']}x{row['k']}.pad{row['padding']}.t{row['threads']}"


def matmul_of(row, nd):
    m, n, k = row["m"], row["n"], row["k"]
    shapes = _shapes(row)
    lds = [
        (rows if order == "col_major" else cols) + row["padding"]
        for (rows, cols), order in zip(shapes, row["arrangement"], strict=True)
    ]
    return nd.Matmul(
        size=(m, n, k),
        precision=row["precision"],
        data_type=row["data_type"],
        arrangement=row["arrangement"],
        leading_dimension=lds,
        block_size=row["threads"],
        sm=None,
    )


@pytest.fixture(scope="module", autouse=True)
def generated(request):
    """Generate all missing code at once, on all cores; the tests then only link.

    Spread over several pytest processes the tests generate for themselves, each its own.
    """
    import nvmath_device as nd
    from nvmath_device.lto import codegen

    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    params = [getattr(item, "callspec", None) for item in request.session.items if item.module.__name__ == __name__]
    selected = [p.params["row"] for p in params if p is not None and "row" in p.params]
    codegen.codes([matmul_of(row, nd).resolved().recipe(matmul_api(row, nd)) for row in selected])


def matmul_api(row, nd):
    from nvmath_device.lto import toolchain
    from nvmath_device.lto.recipes import static_leading_dimension_is_miscompiled

    bad = static_leading_dimension_is_miscompiled(matmul_of(row, nd).descriptor, toolchain.nvrtc_version)
    return "SMEM_DYNAMIC_LD" if bad else "SMEM"


def launch(nd, mm, alpha, a, b, beta, c):
    """Stage the three 1-D carriers through shared memory, multiply, and copy C back."""
    from numba import cuda

    scale = [
        len(x) // size for x, size in zip((a, b, c), (mm.a_size, mm.b_size, mm.c_size), strict=True)
    ]  # 2 for components
    sizes = [size * s for size, s in zip((mm.a_size, mm.b_size, mm.c_size), scale, strict=True)]
    na, nb, nc = sizes
    threads = mm.block_size
    ta, tb, tc = (nd.element_type(x.dtype) if x.dtype.kind != "c" else x.dtype for x in (a, b, c))

    @cuda.jit
    def kernel(alpha, a, b, beta, c):
        sa = nd.shared.array(na, ta)
        sb = nd.shared.array(nb, tb)
        sc = nd.shared.array(nc, tc)
        for i in range(cuda.threadIdx.x, na, threads):
            sa[i] = a[i]
        for i in range(cuda.threadIdx.x, nb, threads):
            sb[i] = b[i]
        for i in range(cuda.threadIdx.x, nc, threads):
            sc[i] = c[i]
        cuda.syncthreads()
        mm.execute(alpha, sa, sb, beta, sc)
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, nc, threads):
            c[i] = sc[i]

    device = [to_device(x) for x in (a, b, c)]
    kernel[1, threads](alpha, device[0], device[1], beta, device[2])
    return device[2].copy_to_host()


def scalars(rng, precision, data_type):
    if "int" in precision[2]:
        return (3, 2)
    values = rng.uniform(0.5, 1.5, 4)
    if data_type == "complex":
        kind = np.complex128 if precision[2] == "float64" else np.complex64
        return kind(values[0] + 1j * values[1]), kind(values[2] - 1j * values[3])
    return float(np.float16(values[0])), float(np.float16(values[1]))


@pytest.mark.parametrize("row", CASES, ids=name_of)
def test_pairwise(row):
    import nvmath_device as nd

    rng = np.random.default_rng(list(name_of(row).encode()))
    is_complex = row["data_type"] == "complex"
    mm = matmul_of(row, nd)
    ta, tb, tc = row["precision"]
    (sa, sb, sc), (oa, ob, oc) = _shapes(row), row["arrangement"]
    a, b, c = (
        random_logical(rng, s, t, is_complex=is_complex) for s, t in zip((sa, sb, sc), (ta, tb, tc), strict=True)
    )
    lda, ldb, ldc = mm.leading_dimension
    alpha, beta = scalars(rng, row["precision"], row["data_type"])
    got = read_back(
        launch(
            nd, mm, alpha,
            carrier(a, ta, is_complex=is_complex, order=oa, ld=lda),
            carrier(b, tb, is_complex=is_complex, order=ob, ld=ldb),
            beta,
            carrier(c, tc, is_complex=is_complex, order=oc, ld=ldc),
        ),
        tc, sc, is_complex=is_complex, order=oc, ld=ldc,
    )  # fmt: skip
    if "int" in tc:
        check_exact(got, a, b, c, alpha, beta, is_complex)
    else:
        check_close(got, a, b, c, alpha, beta, is_complex, row["precision"])


def check_exact(got, a, b, c, alpha, beta, is_complex):
    if not is_complex:
        expected = alpha * (a @ b) + beta * c
    else:
        real = a[..., 0] @ b[..., 0] - a[..., 1] @ b[..., 1]
        imag = a[..., 0] @ b[..., 1] + a[..., 1] @ b[..., 0]
        expected = alpha * np.stack([real, imag], axis=-1) + beta * c
    wrapped = expected.astype(got.dtype)  # C's own width; unsigned complex products may pass below zero
    np.testing.assert_array_equal(got, wrapped)


def check_close(got, a, b, c, alpha, beta, is_complex, precision):
    """Norm-wise: |got - exact| against the size of what was added up, in units of C's roundoff."""
    a, b, c, got = (to_pairs(x, is_complex) for x in (a, b, c, got))
    expected = alpha * (a @ b) + beta * c
    size = abs(alpha) * (np.abs(a) @ np.abs(b)) + abs(beta) * np.abs(c)
    assert np.isfinite(got).all()
    error = np.linalg.norm(got - expected) / np.linalg.norm(size)
    k = a.shape[1]
    # Rounding errors of k additions in C's type at worst add up to about k roundoffs; alpha, beta and the
    # complex products add a few.
    bound = ROUNDOFF[precision[2]] * (k + 6)
    if "tfloat32" in precision[:2]:
        bound += 2 * TF32_ROUNDOFF
    bound += product_roundoff(*precision)
    assert error <= bound, f"error {error:.2e} is above {bound:.2e}"


def product_roundoff(a, b, c):
    """Off the tensor cores libmathdx multiplies in the operands' common type before it adds in C's.

    Seen on an H200 with libmathdx 0.4.2: products of float16 are rounded to float16, and products of float32
    with something narrower to float32, while bfloat16 and fp8 products come out exact.
    """
    if (a, b) == ("float16", "float16") and c != "float16":
        return ROUNDOFF["float16"]
    if "float32" in (a, b) and c == "float64":
        return ROUNDOFF["float32"]
    return 0.0


def test_the_cover_is_large_and_complete():
    assert len(CASES) >= 120
    for x, y in itertools.combinations(("precision", "arrangement", "m", "n", "k", "data_type"), 2):
        pairs = {(row[x], row[y]) for row in CASES}
        wanted = {
            pair
            for pair in itertools.product(FACTORS[x], FACTORS[y])
            if not ({x, y} == {"precision", "data_type"} and "complex" in pair and "uint" in str(pair))
        }
        assert pairs == wanted, (x, y)
    print("\n".join(name_of(row) for row in CASES))
