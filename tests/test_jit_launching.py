# SPDX-License-Identifier: Apache-2.0
"""Launches of ``nd.jit`` on a stand-in for a device: what reaches the driver, what is read when, what is refused."""

from __future__ import annotations

import ctypes
import threading
from collections import namedtuple
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from numba import cuda
from numba.cuda import types

import nvmath_device as nd
from nvmath_device import dtypes
from nvmath_device.errors import (
    ArgumentTypeError,
    DriverError,
    InvalidArgumentError,
    InvalidStateError,
    LaunchError,
    NvmathDeviceError,
)
from nvmath_device.kernel_code import KernelCode
from nvmath_device.launch_limits import DeviceLimits
from nvmath_device.launch_record import record_of
from nvmath_device.lto.cubin import Resources
from nvmath_device.numba_backend import configured, launching
from tests.host import fakes
from tests.host.fake_gpu import CUPY_STREAM, TORCH_STREAM, gpu

__all__ = ["gpu"]
FUNCTION = 0x77
FORMATS = {
    "ptr": ctypes.c_uint64, "i32": ctypes.c_int32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64, "f32": ctypes.c_float,
    "f64": ctypes.c_double, "f16": ctypes.c_uint16, "bf16": ctypes.c_uint16, "bool": ctypes.c_bool,
    "u8": ctypes.c_uint8,
}  # fmt: skip


class Launches(list):
    """What cuLaunchKernelEx was called with: grid, block, shared bytes, stream, flat parameters."""

    status = 0

    def __call__(self, config, function, addresses, extra):
        assert extra is None
        words = self.words[function.value]
        c = launching._Config.from_address(config.value)
        attributes = [(c.attributes[i].id, c.attributes[i].value) for i in range(c.count)]
        places = (ctypes.c_void_p * len(words)).from_address(addresses.value)
        values = [FORMATS[w].from_address(p).value for w, p in zip(words, places, strict=True)]
        self.append(
            SimpleNamespace(
                grid=tuple(c.grid),
                block=tuple(c.block),
                shared=c.shared,
                stream=c.stream or 0,
                values=values,
                attributes=attributes,
            )
        )
        return self.status


@pytest.fixture
def launches(gpu, monkeypatch):
    """The list of launches. Kernels are loaded without being compiled; ``types`` has for what types they were."""
    made = Launches()
    made.types, made.cooperative, made.words, made.blocks, made.least_shared = [], False, {}, (), 0
    made.resources = Resources(
        registers=32, static_shared_bytes=0, local_bytes=0, max_threads=1024, constant_bytes=0, parameter_bytes=0
    )

    def load(kernel, types, device):
        made.types.append(types)
        record = record_of(kernel.py_func, types)
        function = FUNCTION + len(made.types)
        made.words[function] = [word for argument in record for word in argument["words"]]
        code = KernelCode(
            kernel.__name__, "sm_90", b"", record, made.cooperative, made.resources, made.blocks, made.least_shared
        )
        return SimpleNamespace(code=code, function=function, device=device, limits=DeviceLimits.of_cc(90))

    monkeypatch.setattr(configured, "load", load)
    monkeypatch.setattr(launching, "_launch_function", lambda: made)
    gpu.driver.context = 100  # of device 0
    for kernel in (add, scale):
        kernel.configure.cache_clear()
    return made


@nd.jit
def add(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


@nd.jit
def scale(x, factor):
    x[cuda.grid(1)] *= factor


def array(gpu, package="torch", shape=(6,), element=dtypes.float32, **how):
    return gpu.array(np.zeros(shape), package, element=element, **how)


def words(x, itemsize=4):
    """As Numba passes a C-ordered array."""
    strides = [itemsize * int(np.prod(x.shape[i + 1 :])) for i in range(len(x.shape))]
    ptr = x.data_ptr() if hasattr(x, "data_ptr") else x.data.ptr
    return [0, 0, int(np.prod(x.shape)), itemsize, ptr, *x.shape, *strides]


# -- configurations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("configuration", "grid", "block", "stream", "shared"),
    [
        ((4, 32), (4, 1, 1), (32, 1, 1), 0, 0),
        (((4, 3), (32, 2)), (4, 3, 1), (32, 2, 1), 0, 0),
        (((4, 3, 2), (8, 8, 4), 0, 1024), (4, 3, 2), (8, 8, 4), 0, 1024),
        (([4, 3], [32], 71), (4, 3, 1), (32, 1, 1), 71, 0),
        ((np.int64(4), np.int32(32), None, np.int64(8)), (4, 1, 1), (32, 1, 1), 0, 8),
    ],
)
def test_configurations(gpu, launches, configuration, grid, block, stream, shared):
    x = array(gpu, "cupy")
    add[configuration](x, x, x)
    (launch,) = launches
    assert (launch.grid, launch.block, launch.stream, launch.shared) == (grid, block, stream, shared)
    assert launch.values == words(x) * 3
    assert launch.attributes == []


@pytest.mark.parametrize("configuration", [4, (4,), (1, 2, 3, 4, 5), "ab"])
def test_no_configuration(launches, configuration):
    with pytest.raises((InvalidArgumentError, ArgumentTypeError), match=r"\[grid, block\]|grid:"):
        add[configuration]


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        ((0, 32), "grid: 0"), ((4, (32, -1)), r"block: \(32, -1\)"), ((4, (1, 1, 1, 1)), "block: .*one to three"),
        ((4.5, 32), "grid: 4.5"), ((4, 32, 0, -8), "shared: -8 is negative"), ((4, 32, 0, 1.5), "shared: 1.5"),
    ],
)  # fmt: skip
def test_impossible_configurations(launches, configuration, words):
    with pytest.raises((InvalidArgumentError, ArgumentTypeError), match=words):
        add[configuration]


def test_a_kernel_has_to_be_configured(launches):
    with pytest.raises(InvalidArgumentError, match=r"add\[grid, block\]"):
        add(1, 2, 3)


def test_cooperative_kernels_say_so(gpu, launches):
    launches.cooperative = True
    add[1, 32](*[array(gpu)] * 3)
    assert launches[0].attributes == [(2, 1)]


# -- arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["torch", "cupy", "dlpack"])
def test_arrays_of_any_library_go_in_place(gpu, launches, package):
    arrays = [array(gpu, package) for _ in range(3)]
    for _ in range(3):
        add[1, 32](*arrays)
    pointers = [gpu.operand(x).view.ptr for x in arrays]
    for launch in launches:
        assert [launch.values[4], launch.values[11], launch.values[18]] == pointers
    kind = types.Array(types.float32, 1, "C")
    assert launches.types == [(kind, kind, kind)]


@pytest.mark.parametrize(
    ("how", "layout", "strides"),
    [
        ({}, "C", (16, 4)),
        ({"order": "F"}, "F", (4, 12)),
        ({"gaps": (0, 2)}, "A", (24, 4)),
        ({"steps": (1, 2)}, "A", (32, 8)),
    ],
)
def test_layouts(gpu, launches, how, layout, strides):
    x = array(gpu, "torch", (3, 4), **how)
    scale[1, 32](x, 1.0)
    assert launches.types[0][0] == types.Array(types.float32, 2, layout)
    assert launches[0].values[5:9] == [3, 4, *strides]


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (1, 1)])
def test_axes_of_extent_1_have_the_strides_of_a_compact_array(gpu, launches, shape):
    scale[1, 32](array(gpu, "torch", shape), 1.0)
    assert launches.types[0][0].layout == "C"
    assert launches[0].values[5:9] == [*shape, 4 * shape[1], 4]


@pytest.mark.parametrize(
    ("element", "numba_type"),
    [
        (dtypes.bfloat16, types.bfloat16), (dtypes.float8_e4m3fn, types.uint8), (dtypes.float16, types.float16),
        (dtypes.int8, types.int8), (dtypes.float64, types.float64), (dtypes.int32, types.int32),
    ],
)  # fmt: skip
def test_element_types(gpu, launches, element, numba_type):
    scale[1, 32](array(gpu, "torch", element=element), 1.0)
    assert launches.types[0][0] == types.Array(numba_type, 1, "C")
    assert launches[0].values[3] == element.itemsize


def test_complex_arrays(gpu, launches):
    x = gpu.array(np.zeros(5, np.complex64), "cupy", element=dtypes.float32)
    scale[1, 32](x, 2 + 1j)
    assert launches.types == [(types.Array(types.complex64, 1, "C"), types.complex128)]
    assert launches[0].values[7:] == [2.0, 1.0]


Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    ("value", "kind", "flat"),
    [
        (3, types.int64, [3]), (-(2**63), types.int64, [-(2**63)]), (2**63, types.uint64, [2**63]),
        (2.5, types.float64, [2.5]),
        (True, types.boolean, [True]), (np.float32(0.5), types.float32, [0.5]), (np.int32(-7), types.int32, [-7]),
        (np.float16(1.5), types.float16, [0x3E00]), (1 - 2j, types.complex128, [1.0, -2.0]),
        (np.complex64(3j), types.complex64, [0.0, 3.0]),
        ((1, 2.5), types.Tuple((types.int64, types.float64)), [1, 2.5]),
        (Pair(1, 2), types.NamedUniTuple(types.int64, 2, Pair), [1, 2]),
    ],
    ids=repr,
)  # fmt: skip
def test_numbers_and_tuples(gpu, launches, value, kind, flat):
    x = array(gpu)
    for _ in range(3):
        scale[1, 32](x, value)
    assert launches.types == [(types.Array(types.float32, 1, "C"), kind)]
    assert [launch.values[7:] for launch in launches] == [flat] * 3


def test_other_values_of_the_same_kind_reach_the_kernel(gpu, launches):
    x, y = array(gpu), array(gpu)
    for array_, number in ((x, 1), (y, 2), (x, -(2**63)), (y, 5)):
        scale[1, 32](array_, number)
        assert launches[-1].values == [*words(array_), number]
    assert len(launches.types) == 1


def test_another_kind_of_value_is_another_kernel(gpu, launches):
    x = array(gpu)
    for number in (1, 1.0, True, 2**63, np.int32(1), 1):
        scale[1, 32](x, number)
        assert launches[-1].values[7] == number
    assert [t[1] for t in launches.types] == [
        types.int64, types.float64, types.boolean, types.uint64, types.int32
    ]  # fmt: skip


def test_other_shapes_are_the_same_kernel(gpu, launches):
    for shape in ((6,), (9,), (6,), (1,), (100,)):
        x = array(gpu, shape=shape)
        scale[1, 32](x, 1.0)
        assert launches[-1].values[:7] == words(x)
    assert len(launches.types) == 1


@pytest.mark.parametrize(("package", "current"), [("torch", TORCH_STREAM), ("cupy", CUPY_STREAM)])
def test_arrays_like_the_last_ones_are_not_read_again(gpu, launches, monkeypatch, package, current):
    kinds = [{}, {"element": dtypes.float64}, {"shape": (2, 3)}, {"shape": (7,)}]
    arrays = [[array(gpu, package, **kind) for _ in range(6)] for kind in kinds]
    for six in arrays:
        add[1, 32, current](*six[:3])
    monkeypatch.setattr(configured, "read_argument", lambda *arguments: pytest.fail("read"))
    for six in arrays:
        add[1, 32, current](*six[3:])
        itemsize = 8 if six is arrays[1] else 4
        assert launches[-1].values == [word for x in six[3:] for word in words(x, itemsize)]


def test_host_arrays_are_refused_with_a_way_out(launches):
    with pytest.raises(ArgumentTypeError, match=r"^a: a numpy array in CPU memory.*to_device.*cuda\.In\(x\)"):
        add[1, 32](np.zeros(3), 1, 2)
    assert not launches


@pytest.mark.parametrize("wrong", ["text", None, [1, 2], {}, object(), lambda: 0])
def test_what_no_kernel_takes(gpu, launches, wrong):
    with pytest.raises(ArgumentTypeError, match="factor: kernels take no"):
        scale[1, 32](array(gpu), wrong)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_number_of_arguments(gpu, launches, count):
    with pytest.raises(ArgumentTypeError, match=rf"scale takes 2 arguments \(x, factor\); got {count}"):
        scale[1, 32](*[array(gpu)] * count)


def test_lazy_conjugates_are_refused(gpu, launches):
    x = gpu.array(np.zeros(5, np.complex64), "torch", element=dtypes.float32)
    x.conj = True
    view = gpu.operand(x).view._replace(conjugated=True)
    with pytest.raises(InvalidArgumentError, match="x: the tensor is conjugated lazily"):
        scale[1, 32](gpu.wrap(view, "torch"), 1)


# -- signatures ---------------------------------------------------------------------------------------------


def test_a_signature_fixes_the_types(gpu, launches):
    kernel = nd.jit("void(float32[:], int32)")(scale.py_func)
    x = array(gpu, gaps=(3,))
    kernel[1, 32](x, 7)
    kernel[1, 32](array(gpu), 8.0)
    assert launches.types == [(types.Array(types.float32, 1, "A"), types.int32)]
    assert [launch.values[7] for launch in launches] == [7, 8]
    assert kernel.signatures == [(types.Array(types.float32, 1, "A"), types.int32)]
    for wrong in (array(gpu, element=dtypes.float64), array(gpu, shape=(2, 3)), 3):
        with pytest.raises(ArgumentTypeError, match=r"x: the kernel's signature says array\(float32, 1d, A\)"):
            kernel[1, 32](wrong, 7)


@pytest.mark.parametrize(
    ("declared", "value", "passed"),
    [("int64", np.float64(3), 3), ("int64", 3.0, 3), ("int32", np.int64(7), 7), ("float32", np.float64(0.5), 0.5)],
)
def test_a_declared_type_holds_for_every_launch(gpu, launches, declared, value, passed):
    kernel = nd.jit(f"void(float32[::1], {declared})")(scale.py_func)
    for _ in range(3):
        kernel[1, 32](array(gpu, "dlpack"), value)
        kernel[1, 32, TORCH_STREAM](array(gpu), value)
    assert [launch.values[7] for launch in launches] == [passed] * 6


def test_spans_of_time_are_passed_in_their_unit_each_time(gpu, launches):
    x = array(gpu)
    for count in (5, 6, 7):
        scale[1, 32, TORCH_STREAM](x, np.timedelta64(count, "ms"))
    assert [launch.values[7] for launch in launches] == [5, 6, 7]


# -- devices and streams ------------------------------------------------------------------------------------


def test_the_current_device_has_to_be_the_arrays(gpu, launches):
    x = array(gpu)
    view = gpu.operand(x).view
    elsewhere = gpu.wrap(view._replace(device=view.device._replace(index=1)), "cupy")
    with pytest.raises(InvalidArgumentError, match="b: the array is on cuda:1, and the current device is cuda:0"):
        add[1, 32](x, elsewhere, x)


def test_without_a_current_device_it_is_the_first(gpu, launches):
    gpu.driver.context = 0
    add[1, 32](*[array(gpu, "dlpack")] * 3)
    assert len(launches) == 1
    assert gpu.driver.context


@pytest.mark.parametrize(("package", "current"), [("torch", TORCH_STREAM), ("cupy", CUPY_STREAM)])
def test_the_current_stream_of_an_arrays_library_is_waited_for(gpu, launches, package, current):
    x = array(gpu, package)
    for _ in range(2):
        gpu.driver.calls.clear()
        add[1, 32, 55](x, x, x)
        assert [c for c in gpu.driver.calls if c[0] in ("record", "wait")] == [
            ("record", gpu.driver.events, current), ("wait", 55, gpu.driver.events, 0),
        ]  # fmt: skip
    gpu.driver.calls.clear()
    for _ in range(3):
        add[1, 32, current](x, x, x)
    assert not gpu.driver.calls
    assert {launch.stream for launch in launches[-3:]} == {current}


@pytest.mark.parametrize(
    "stream", [0, None, 9, np.int64(9), fakes.class_in("users.own", "Stream", __cuda_stream__=(0, 9))()]
)
def test_streams_of_any_library(gpu, launches, stream):
    add[1, 32, stream](*[array(gpu, "dlpack")] * 3)
    assert launches[0].stream == (9 if stream not in (0, None) else 0)


# -- limits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("configuration", "words"),
    [((1, 1025), "1025|1,025"), ((1, 32, 0, 227 * 1024 + 16), "232,464.*232,448"), ((1, (1, 1, 65)), "65.*64")],
)
def test_what_cannot_fit_is_refused_before_the_launch(gpu, launches, configuration, words):
    with pytest.raises(LaunchError, match=f"(?s)add.*({words})|({words}).*add"):
        add[configuration](*[array(gpu)] * 3)
    assert not launches


def test_static_shared_memory_counts(gpu, launches):
    launches.resources = Resources(
        registers=32, static_shared_bytes=4096, local_bytes=0, max_threads=1024, constant_bytes=0, parameter_bytes=0
    )
    add[1, 32, 0, 227 * 1024 - 4096](*[array(gpu)] * 3)
    with pytest.raises(LaunchError):
        add[1, 32, 0, 227 * 1024 - 4095](*[array(gpu)] * 3)
    assert len(launches) == 1


@pytest.mark.parametrize(
    ("wanted", "exact", "block", "fits"),
    [
        ((128, 1, 1), False, (128,), True), ((128, 1, 1), False, (16, 8), True), ((128, 1, 1), False, (64,), False),
        ((128, 1, 1), False, (256,), False), ((16, 8, 1), True, (16, 8), True), ((16, 8, 1), True, (128,), False),
    ],
)  # fmt: skip
def test_a_block_that_is_not_the_descriptors_is_noticed(gpu, launches, wanted, exact, block, fits):
    launches.blocks = ({"block_dim": list(wanted), "exact": exact},)
    if fits:
        add[1, block](*[array(gpu)] * 3)
        return
    with pytest.raises(LaunchError, match=r"(?s)add cannot.*needs (128 threads|a block of \(16, 8, 1\))"):
        add[1, block](*[array(gpu)] * 3)
    assert not launches


def test_too_little_memory_for_a_layout_is_noticed(gpu, launches):
    launches.least_shared = 1040
    add[1, 32, 0, 1040](*[array(gpu)] * 3)
    with pytest.raises(LaunchError, match=r"(?s)add cannot.*1,040"):
        add[1, 32, 0, 1039](*[array(gpu)] * 3)
    assert len(launches) == 1


# -- bound --------------------------------------------------------------------------------------------------


def test_a_bound_launch(gpu, launches):
    a, b, out, other = (array(gpu, "cupy") for _ in range(4))
    launch = add[2, 64].bind(a, b, out)
    assert not launches
    launch()
    launch()
    launch(a, other, out)
    launch()
    assert [x.values for x in launches] == [words(a) + words(b) + words(out)] * 2 + [
        words(a) + words(other) + words(out)
    ] * 2
    assert {(x.grid, x.block) for x in launches} == {((2, 1, 1), (64, 1, 1))}


def test_bound_launches_do_not_share_their_parameters(gpu, launches):
    x, y = array(gpu), array(gpu)
    configured_ = scale[1, 32]
    first, second = configured_.bind(x, 1), configured_.bind(y, 2)
    configured_(x, 3)
    first()
    second()
    assert [launch.values[4:5] + launch.values[7:] for launch in launches] == [
        [x.data_ptr(), 3], [x.data_ptr(), 1], [y.data_ptr(), 2]
    ]  # fmt: skip


def test_bound_launches_take_addresses_and_numbers(gpu, launches):
    x = array(gpu, "dlpack")
    launch = scale.bind(x, 1.5, grid=3, block=32, stream=71, shared=16)
    launch(0x1000, 2.5)
    (only,) = launches
    assert (only.grid, only.stream, only.shared) == ((3, 1, 1), 71, 16)
    assert only.values == [0, 0, 6, 4, 0x1000, 6, 4, 2.5]


def test_what_is_not_like_the_bound_argument_changes_nothing(gpu, launches):
    x, other = array(gpu), array(gpu)
    launch = scale[1, 32].bind(x, 1)
    for wrong in (array(gpu, shape=(7,)), array(gpu, element=dtypes.float64), array(gpu, "cupy"), np.zeros(6)):
        with pytest.raises(
            InvalidArgumentError, match=r"x: a \w+ that is not like what was bound, array\(float32, 1d, C\)"
        ):
            launch(wrong, 2)
    with pytest.raises(InvalidArgumentError, match=r"factor: a float that is not like what was bound, int64"):
        launch(other, 2.0)
    with pytest.raises(ArgumentTypeError, match=r"bound to 2 arguments \(x, factor\); got 1"):
        launch(other)
    assert not launches
    launch()
    assert launches[0].values == [*words(x), 1]


def test_kernels_that_go_through_numba_cannot_be_bound(gpu, launches, monkeypatch):
    kernel = nd.jit(debug=True, opt=False)(scale.py_func)
    monkeypatch.setattr(type(kernel), "plain", {((1, 1, 1), (32, 1, 1), 0, 0): "numba's"})
    with pytest.raises(InvalidStateError, match=r"goes through numba\.cuda\.jit"):
        kernel[1, 32].bind(array(gpu), 1)


# -- failures and threads -----------------------------------------------------------------------------------


def test_a_refusal_of_the_driver_is_an_error_each_time(gpu, launches, monkeypatch):
    monkeypatch.setattr(
        launching, "failure", lambda name, status: DriverError(f"{name} failed: {status}", status=status)
    )
    arrays = [array(gpu, "dlpack")] * 3
    add[1, 32](*arrays)
    launches.status = 1
    for _ in range(2):
        with pytest.raises(DriverError, match="cuLaunchKernelEx failed"):
            add[1, 32](*arrays)
    launch = add[1, 32].bind(*arrays)
    with pytest.raises(NvmathDeviceError):
        launch()


def test_threads_do_not_mix_their_arguments(gpu, launches):
    arrays = [array(gpu, "dlpack") for _ in range(8)]
    pointers = [gpu.operand(x).view.ptr for x in arrays]
    configured_ = scale[1, 32]
    configured_(arrays[0], 0)

    def work(i):
        for _ in range(50):
            configured_(arrays[i], i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(launches) == 401
    assert all(pointers[launch.values[7]] == launch.values[4] for launch in launches)


def test_bfloat16_numbers_are_rounded_to_nearest(gpu, launches):
    rng = np.random.default_rng(5)
    for value in (*rng.normal(size=50).astype(np.float32), np.float32(1 + 2**-8), np.float32(3.4e38)):
        from nvmath_device.numba_backend.kernel_arguments import _words_of_number

        want = int(np.asarray(value).astype(ml_dtypes.bfloat16).view(np.uint16))
        assert _words_of_number(types.bfloat16, value) == (want,)
