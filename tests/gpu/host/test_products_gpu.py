# SPDX-License-Identifier: Apache-2.0
"""Products on a GPU: element types by libraries by layouts, batches, vectors, forms of C, ``out``, factors.

Expected values are float64 NumPy; ``products.py`` says how far off a result may be, and why. Cases come from
``product_cases.py``, and ``tests/host/test_products_cpu.py`` runs the same ones on the CPU.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from nvmath_device import host
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from tests.gpu.host import product_cases as cases
from tests.gpu.host.libraries import CUPY, JAX, TORCH, combinations, library_of, needs, place, to_numpy
from tests.gpu.host.product_cases import LAYOUTS, array
from tests.gpu.host.product_checks import check, close, expected, norm_error
from tests.gpu.host.products import COMPLEX, FLOATS, KINDS, WIDE, Case, Given, lay, run

LIBRARIES = ["numpy", "numba", "dlpack", "cupy", "torch"]
ON_GPU = ["numba", "dlpack", CUPY, TORCH]
EVERYTHING = combinations(KINDS.values(), LIBRARIES)
IN_POOLS = combinations(KINDS.values(), ["cupy", "torch"])


def each(family, kind, library):
    """All cases of a family, with what was being computed where one fails."""
    for case in family(kind, library):
        try:
            check(case, run(case, "cuda"))
        except Exception as error:
            error.add_note(str(case))
            raise


@pytest.mark.parametrize(("kind", "library"), EVERYTHING)
def test_layouts(kind, library):
    each(cases.layout_cases, kind, library)


@pytest.mark.parametrize(("kind", "library"), IN_POOLS)
def test_batches(kind, library):
    each(cases.batch_cases, kind, library)
    each(cases.permuted_batch_cases, kind, library)


@pytest.mark.parametrize(("kind", "library"), EVERYTHING)
def test_vectors_and_empty_arrays(kind, library):
    each(cases.vector_cases, kind, library)
    each(cases.empty_cases, kind, library)


@pytest.mark.parametrize(("kind", "library"), combinations(KINDS.values(), ["cupy", "torch", "numpy"]))
def test_forms_of_c_and_factors(kind, library):
    each(cases.c_cases, kind, library)


@pytest.mark.parametrize(("kind", "library"), EVERYTHING)
def test_out_of_any_strides(kind, library):
    each(cases.out_cases, kind, library)


@pytest.mark.parametrize(("kind", "library"), combinations(COMPLEX.values(), LIBRARIES))
def test_conjugates(kind, library):
    each(cases.conjugate_cases, kind, library)


@pytest.mark.parametrize(
    ("kind", "library"), combinations([*FLOATS.values(), *COMPLEX.values(), *WIDE.values()], ["cupy", "torch"])
)
@pytest.mark.parametrize("mnk", [(1024, 768, 512), (1000, 600, 2000), (64, 64, 8192), (4096, 16, 64)], ids=str)
def test_larger_products(kind, library, mnk):
    """Tiles, edges of tiles, and a K that cuBLASLt may split, whose parts are then added in the result's type."""
    m, n, k = mnk
    rng = np.random.default_rng(10)
    for of_a in ("C", "F"):
        case = Case(kind, cases.pair(rng, kind, library, (m, k), (k, n), LAYOUTS[of_a], LAYOUTS["C"]))
        wanted = expected(case)
        wanted["d"].allowed *= 3  # up to 8 parts of independent signs: sqrt(8) roundings
        check(case, run(case, "cuda"), wanted)


# -- what is computed with ----------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [CUPY, TORCH])
def test_float32_is_not_rounded_unless_asked_for(library):
    """With the operands' last bits: tf32 keeps 10 bits behind the point and loses 2**-11 of each or more."""
    rng = np.random.default_rng(11)
    case = Case(FLOATS["float32"], cases.pair(rng, FLOATS["float32"], library, (512, 512), (512, 512)))
    check(case, run(case, "cuda"))
    errors = {}
    want = case.a @ case.b
    for compute_type in ("COMPUTE_32F", "COMPUTE_32F_FAST_TF32", "COMPUTE_32F_FAST_16BF", "COMPUTE_32F_FAST_16F"):
        got = run(case, "cuda", compute_type=compute_type).arrays["d"]
        errors[compute_type] = norm_error(got, want)
    assert errors["COMPUTE_32F"] < 1e-6
    assert 2e-5 < errors["COMPUTE_32F_FAST_TF32"] < 2e-3
    assert 2e-4 < errors["COMPUTE_32F_FAST_16BF"] < 1e-2
    assert errors["COMPUTE_32F_FAST_16F"] < 2e-3


@needs["torch"]
def test_result_types():
    import torch

    rng = np.random.default_rng(12)
    for name in ("float16", "bfloat16"):
        case = Case(FLOATS[name], cases.pair(rng, FLOATS[name], "torch", (32, 64), (64, 16)))
        for given in ("float32", np.float32, torch.float32, host.CudaDataType.CUDA_R_32F):
            answer = run(case, "cuda", result_type=given).arrays["d"]
            assert answer.dtype == np.float32
            assert norm_error(answer, case.a @ case.b) < 1e-5
    a = place("torch", array(rng, (4, 4), "float64"), "cuda").array
    with pytest.raises(InvalidArgumentError, match="result_type"):
        host.matmul(a, a, options={"result_type": "float16"})
    with pytest.raises(UnsupportedError, match="a and b"):
        host.matmul(a, a.float())


# -- several libraries in one call --------------------------------------------------------------------------


@pytest.mark.parametrize("of_b", ["numba", "dlpack", CUPY, TORCH, JAX])
@pytest.mark.parametrize("of_a", ["numba", "dlpack", CUPY, TORCH, JAX])
def test_mixed_libraries(of_a, of_b):
    """The result is of A's library, or our own array where A's cannot be made by others."""
    rng = np.random.default_rng(13)
    a, b = rng.standard_normal((12, 20)).astype(np.float32), rng.standard_normal((20, 8)).astype(np.float32)
    x, y = make(of_a, a), make(of_b, b)
    for result in (host.matmul(x, y), host.matmul(x, y), planned(x, y)):
        assert library_of(result) == {"dlpack": "ours"}.get(of_a, of_a)
        assert norm_error(to_numpy(result), a.astype(float) @ b.astype(float)) < 1e-6
    assert np.array_equal(to_numpy(x), a)


def make(library, values):
    if library == "jax":
        import jax

        return jax.device_put(values, jax.local_devices(backend="gpu")[0])
    return place(library, lay(values, values.dtype.name), "cuda").array


def planned(*operands, **options):
    with host.Matmul(*operands, options=options or None) as mm:
        mm.plan()
        return mm.execute()


def test_cuda_core_memory():
    from cuda.core import Device
    from cuda.core.utils import StridedMemoryView

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    rng = np.random.default_rng(14)
    values = [rng.standard_normal((8, 8)).astype(np.float32) for _ in range(2)]
    views = []
    for x in values:
        source = make("numba", x)
        buffer = device.memory_resource.allocate(x.nbytes, stream=stream)
        copy_bytes(int(buffer.handle), source.device_ctypes_pointer.value, x.nbytes)
        views.append(StridedMemoryView.from_buffer(buffer, (8, 8), dtype=np.dtype(np.float32)))
    result = host.matmul(*views)
    assert library_of(result) == "ours"
    assert norm_error(to_numpy(result), values[0].astype(float) @ values[1].astype(float)) < 1e-6


def copy_bytes(to, start, nbytes):
    from cuda.bindings import driver

    assert int(driver.cuMemcpyDtoD(to, start, nbytes)[0]) == 0
    assert int(driver.cuCtxSynchronize()[0]) == 0


@pytest.mark.parametrize("library", ON_GPU)
def test_operands_in_cpu_memory_beside_a_gpu_only_on_request(library):
    rng = np.random.default_rng(15)
    a, b = rng.standard_normal((6, 7)).astype(np.float32), rng.standard_normal((7, 5)).astype(np.float32)
    x, want = make(library, a), a.astype(float) @ b.astype(float)
    for call in (host.matmul, planned):
        with pytest.raises(InvalidArgumentError, match="mix_devices"):
            call(x, b)
    for options in ({"mix_devices": True}, {"mix_devices": True, "blocking": True}):
        on_gpu = host.matmul(x, b, options=options)
        assert library_of(on_gpu) == {"dlpack": "ours"}.get(library, library)
        assert norm_error(to_numpy(on_gpu), want) < 1e-6
        on_cpu = host.matmul(a, make(library, b), options=options)
        assert type(on_cpu) is np.ndarray
        assert norm_error(on_cpu, want) < 1e-6
        assert norm_error(to_numpy(planned(x, b, **options)), want) < 1e-6


def test_numpy_arrays_go_to_the_gpu_and_back():
    """With an out of any strides, and with narrow types."""
    rng = np.random.default_rng(16)
    a, b = rng.standard_normal((3, 6, 7)).astype(np.float32), rng.standard_normal((7, 5)).astype(np.float32)
    want = a.astype(float) @ b.astype(float)
    out = np.full((3, 5, 12), np.nan, np.float32)
    view = out[:, :, ::2].swapaxes(1, 2)
    assert host.matmul(a, b, out=view) is view
    assert norm_error(view, want) < 1e-6
    assert np.isnan(out[:, :, 1::2]).all()
    narrow = a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
    got = host.matmul(*narrow)
    assert got.dtype == ml_dtypes.bfloat16
    assert norm_error(got, narrow[0].astype(float) @ narrow[1].astype(float)) < 4e-3


# -- copies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [CUPY, TORCH])
def test_what_is_read_in_place_and_what_is_copied(library):
    """A leading dimension or a transposition costs nothing; a step inside of a row costs one copy, with a reason."""
    rng = np.random.default_rng(17)
    kind = FLOATS["float32"]
    for name, layout in LAYOUTS.items():
        if not cases.fits(layout, library):
            continue
        given = cases.pair(rng, kind, library, (24, 32), (32, 16), layout, LAYOUTS["C"])
        case = Case(kind, given, form="object")
        in_place = name in ("C", "F", "C, padded", "F, padded", "F, odd leading dimension", "every second row") or (
            name == "C, off by one element"
        )
        outcome = run(case, "cuda")
        check(case, outcome)
        assert (outcome.copies == ()) == in_place, f"{name}: {outcome.copies}"
        if in_place:
            check(case, run(case, "cuda", copies="refuse"))
            continue
        assert [reason.partition(":")[0] for reason in outcome.copies] == ["a"]
        for form in ("object", "function"):
            case.form = form
            with pytest.raises(InvalidArgumentError, match=r"copies: 'refuse'.*\ba: \w+"):
                run(case, "cuda", copies="refuse")


# -- out ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [CUPY, TORCH])
def test_out_is_checked(library):
    x = make(library, np.eye(6, dtype=np.float32))
    wide = make(library, np.zeros((12, 6), np.float32))
    for call in (lambda out: host.matmul(x, x, out=out), lambda out: into(x, x, out)):
        with pytest.raises(InvalidArgumentError, match=r"out: .*shape"):
            call(make(library, np.zeros((6, 5), np.float32)))
        with pytest.raises((ArgumentTypeError, InvalidArgumentError), match=r"out|result"):
            call(make(library, np.zeros((6, 6), np.float64)))
        with pytest.raises(InvalidArgumentError, match="shares memory with a"):
            call(x)
        with pytest.raises(InvalidArgumentError, match="on cpu"):
            call(np.zeros((6, 6), np.float32))
    part = wide[:6]
    for call in (host.matmul, lambda a, b, out: into(a, b, out)):
        with pytest.raises(InvalidArgumentError, match="shares memory"):
            call(part, x, out=wide[3:9])
        call(part, x, out=wide[6:])  # neighbours do not overlap
    assert np.array_equal(to_numpy(x), np.eye(6))


def into(a, b, out):
    with host.Matmul(a, b) as mm:
        mm.plan()
        return mm.execute(out=out)


@pytest.mark.parametrize(
    ("kind", "library"),
    combinations([FLOATS["float32"], FLOATS["float16"], COMPLEX["complex64"]], ["cupy", "torch"]),
)
def test_result_in_place_of_c(kind, library):
    """As ``out`` and by the option, in both orders of C."""
    rng = np.random.default_rng(18)
    for order in ("C", "F"):
        given = cases.pair(rng, kind, library, (16, 12), (12, 20))
        given["c"] = Given(array(rng, (16, 20), kind.c, LAYOUTS[order]), library)
        wanted = expected(Case(kind, given, alpha=0.5, beta=-2))["d"]
        for how in ("out", "option", "object"):
            a, b, c = (place(library, given[name].lay, "cuda").array for name in "abc")
            if how == "out":
                result = host.matmul(a, b, c, alpha=0.5, beta=-2, out=c)
            elif how == "option":
                result = host.matmul(a, b, c, alpha=0.5, beta=-2, options={"inplace": True})
            else:
                with host.Matmul(a, b, c, alpha=0.5, beta=-2, options={"inplace": True}) as mm:
                    mm.plan()
                    result = mm.execute()
            assert result is c
            close(to_numpy(c), wanted)
