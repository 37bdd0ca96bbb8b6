# SPDX-License-Identifier: Apache-2.0
"""Reading arrays in place. Where NumPy holds the memory, NumPy reads back what a view says and must find the same."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvmath_device import bfloat16, float8_e4m3fn, float8_e5m2, float16, float32, float64, int8, int64, uint16
from nvmath_device.errors import ArgumentTypeError, InvalidArgumentError, NoDeviceError
from nvmath_device.host import array_protocols
from nvmath_device.host.array_view import CPU, Device
from nvmath_device.host.arrays import as_numpy, view
from tests.host import fakes

TYPES = {
    np.float16: (float16, False),
    np.float32: (float32, False),
    np.float64: (float64, False),
    np.complex64: (float32, True),
    np.complex128: (float64, True),
    np.int8: (int8, False),
    np.int64: (int64, False),
    np.uint16: (uint16, False),
    ml_dtypes.bfloat16: (bfloat16, False),
    ml_dtypes.float8_e4m3fn: (float8_e4m3fn, False),
    ml_dtypes.float8_e5m2: (float8_e5m2, False),
}


class Speaking:
    """A NumPy array behind one protocol."""

    def __init__(self, array, protocol):
        self.array = array
        if protocol == "dlpack":
            self.__class__ = type("DL", (Speaking,), {"__dlpack__": Speaking.dl, "__dlpack_device__": Speaking.dev})
        else:
            self.__class__ = type("AI", (Speaking,), {"__array_interface__": array.__array_interface__})

    def dl(self, **arguments):
        return self.array.__dlpack__(**arguments)

    def dev(self):
        return self.array.__dlpack_device__()


# -- NumPy --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.__name__)
def test_numpy_types(dtype):
    x = np.arange(12).reshape(3, 4).astype(dtype)
    operand = view(x)
    assert (operand.element, operand.is_complex) == TYPES[dtype]
    assert (operand.shape, operand.strides, operand.itemsize) == ((3, 4), (4, 1), x.itemsize)
    assert (operand.ptr, operand.package, operand.device) == (x.ctypes.data, "numpy", CPU)
    assert (operand.readonly, operand.conjugated, operand.owner is x) == (False, False, True)
    assert as_numpy(operand).dtype == x.dtype
    assert np.array_equal(as_numpy(operand), x)


@st.composite
def slices_of_something(draw, dtypes=tuple(TYPES)):
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    dtype = draw(st.sampled_from(dtypes))
    x = (np.arange(math.prod(shape)) % 100).reshape(shape).astype(dtype)
    x = x.transpose(draw(st.permutations(range(x.ndim))))
    for axis in range(x.ndim):
        cut = slice(draw(st.integers(0, 2)), None, draw(st.sampled_from([1, 2, 3, -1, -2])))
        x = x[(slice(None),) * axis + (cut,)]
    if draw(st.booleans()):
        x = x[..., None]
    if draw(st.booleans()):
        x = np.broadcast_to(x, (draw(st.integers(0, 3)), *x.shape))
    return x


def check_strides(operand, x):
    """Canonical: as NumPy's, and 0 where they have no meaning."""
    if x.size == 0:
        assert operand.strides == (0,) * x.ndim
    else:
        wanted = [0 if n == 1 else s // x.itemsize for n, s in zip(x.shape, x.strides, strict=True)]
        assert operand.strides == tuple(wanted)


@given(slices_of_something())
def test_r093_r094_numpy_views_are_read_in_place(x):
    operand = view(x)
    check_strides(operand, x)
    assert operand.shape == x.shape
    assert operand.size == x.size
    assert operand.readonly == (not x.flags.writeable)
    assert np.array_equal(as_numpy(operand), x)
    low, high = operand.extent_bytes
    assert (low, high) == (np.lib.array_utils.byte_bounds(x) if x.size else (operand.ptr,) * 2)


@given(slices_of_something([np.float32, np.int8, np.complex128]), st.sampled_from(["dlpack", "interface"]))
def test_r093_r094_protocols_give_what_numpy_gives(x, protocol):
    operand = view(Speaking(x, protocol))
    assert operand.package == "generic"
    if x.size or protocol == "interface":
        assert operand.signature == view(x).signature
    assert (operand.shape, operand.readonly) == (x.shape, not x.flags.writeable)
    check_strides(operand, x)
    assert np.array_equal(as_numpy(operand), x)


@pytest.mark.parametrize("stride", [0, 1, 77, 10**6, 13, -4])
def test_r095_strides_of_extent_one_are_not_read(stride):
    x = np.lib.stride_tricks.as_strided(np.ones(5, np.float32), (1, 5), (stride, 4))
    assert view(x).strides == (0, 1)
    assert view(fakes.DLPackArray(shape=(1, 5), strides=(stride, 1))).strides == (0, 1)


def test_numpy_subclasses_are_numpy_arrays():
    class Named(np.ndarray):
        pass

    x = np.arange(6.0).reshape(2, 3)
    for other in (x.view(Named), x.view(np.recarray)):
        operand = view(other)
        assert (operand.package, operand.owner is other) == ("numpy", True)
        assert np.array_equal(as_numpy(operand), x)


def test_memmap_is_read_only_if_opened_so(tmp_path):
    np.arange(6.0).tofile(tmp_path / "x")
    x = np.memmap(tmp_path / "x", np.float64, "r", shape=(2, 3))
    operand = view(x)
    assert operand.readonly
    assert not as_numpy(operand).flags.writeable
    assert np.array_equal(as_numpy(operand), np.arange(6.0).reshape(2, 3))


def test_real_part_of_a_complex_array_has_stride_two():
    z = np.arange(6).astype(np.complex64) * (1 + 2j)
    operand = view(z.imag)
    assert (operand.strides, operand.element, operand.is_complex) == ((2,), float32, False)
    assert np.array_equal(as_numpy(operand), z.imag)


def test_alignment_is_flagged():
    x = np.zeros(65, np.int8)
    shift = -x.ctypes.data % 64
    odd = x[shift + 1 :][:32].view(np.float32)
    assert not view(odd).is_aligned
    assert view(odd).alignment == 1
    halfway = view(np.zeros(4, np.complex64))._replace(ptr=0x1004)
    assert (halfway.is_aligned, halfway.alignment) == (False, 4)
    assert halfway._replace(ptr=0x1008).is_aligned
    assert halfway._replace(ptr=0x10000).alignment == 256
    assert halfway._replace(ptr=0).alignment == 256


def test_signature_tells_operands_apart():
    x = np.zeros((4, 4), np.float32)
    base = view(x)
    assert base.signature == view(x).signature
    assert hash(base.signature) == hash(view(x).signature)
    changes = [
        {"shape": (4, 3)}, {"strides": (1, 4)}, {"element": bfloat16}, {"is_complex": True}, {"conjugated": True},
        {"device": Device("cuda", 1)}, {"ptr": base.ptr + 4},
    ]  # fmt: skip
    signatures = [base._replace(**c).signature for c in changes] + [base.signature]
    assert len(set(signatures)) == len(signatures)


def test_views_compare_by_identity():
    x = np.zeros((2, 2))
    one, two = view(x), view(x)
    assert one != two
    assert one == one
    assert len({one, two}) == 2


def test_a_view_keeps_the_memory_alive():
    x = np.arange(5.0)
    died = weakref.ref(x)
    operand = view(Speaking(x, "dlpack"))
    del x
    gc.collect()
    assert as_numpy(operand).tolist() == [0, 1, 2, 3, 4]
    back = as_numpy(operand)
    del operand
    gc.collect()
    assert back.tolist() == [0, 1, 2, 3, 4]
    del back
    gc.collect()
    assert died() is None


# -- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "x",
    [[1.0, 2.0], (1, 2), 3.0, 1j, "text", None, memoryview(b"abcd"), bytearray(8), np.float32(3), object()],
    ids=lambda x: type(x).__name__,
)
def test_what_is_no_array_is_refused_in_words(x):
    with pytest.raises(ArgumentTypeError, match=r"^bias: a .*is not an array; accepted are arrays of NumPy, CuPy") as e:
        view(x, "bias")
    assert type(x).__name__ in str(e.value)


@pytest.mark.parametrize(
    "dtype",
    ["?", "O", "U3", "M8[s]", "V4", "longdouble", [("x", "f4")], ml_dtypes.float8_e4m3fnuz, ml_dtypes.int4],
    ids=str,
)
def test_element_types_that_are_not_accepted(dtype):
    with pytest.raises(ArgumentTypeError, match=r"^a: elements of type .* accepted are float8_e5m2, .*bfloat16"):
        view(np.empty(3, dtype), "a")


def test_foreign_byte_order_is_refused():
    foreign = np.zeros(3, np.dtype("f4").newbyteorder("S"))
    with pytest.raises(ArgumentTypeError, match=r"^a: .*byte order of another machine.*astype"):
        view(foreign, "a")


def test_masked_arrays_are_refused():
    with pytest.raises(ArgumentTypeError, match=r"^a: masked .*filled"):
        view(np.ma.masked_array([1.0, 2.0], [False, True]), "a")


def test_strides_that_are_not_whole_elements_are_refused():
    record = np.zeros((3, 2), [("tag", "i1"), ("x", "f4")])
    with pytest.raises(InvalidArgumentError, match=r"^a: strides of \(10, 5\) bytes .* 4 bytes .*contiguous copy"):
        view(record["x"], "a")
    assert view(record["x"][:1, :1], "a").strides == (0, 0)


def test_as_numpy_follows_the_numbers_not_the_owner():
    x = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(as_numpy(view(x)._replace(shape=(3, 2), strides=(1, 3))), x.T)


def test_as_numpy_is_for_cpu_memory():
    with pytest.raises(InvalidArgumentError, match=r"^b: .*cuda:0"):
        as_numpy(view(fakes.DLPackArray()), "b")


def test_reading_imports_no_library():
    code = (
        "import sys, numpy as np; from nvmath_device.host import arrays, array_results, array_overlap, streams\n"
        "arrays.view(np.zeros(3)); arrays.package_of([])\n"
        "print([m for m in ('numba', 'cupy', 'torch', 'jax', 'cuda', 'ml_dtypes') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- DLPack -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(1, 0), (1, 3), None])
@pytest.mark.parametrize("device", [(2, 0), (2, 3), (13, 1)])
def test_dlpack_of_a_gpu(version, device):
    x = fakes.DLPackArray(
        version=version, device=device, ptr=0x1000, byte_offset=16, code_bits=(4, 16), strides=(1, -3)
    )
    operand = view(x, stream=77)
    assert operand.device == Device("cuda", device[1])
    assert (operand.ptr, operand.shape, operand.strides, operand.element) == (0x1010, (3, 4), (1, -3), bfloat16)
    assert (operand.package, operand.readonly, operand.owner is x) == ("generic", False, True)
    assert x.calls[-1].get("stream") == 77


@pytest.mark.parametrize(
    ("code_bits", "element", "is_complex"),
    [
        ((0, 8), int8, False), ((1, 16), uint16, False), ((2, 16), float16, False), ((4, 16), bfloat16, False),
        ((10, 8), float8_e4m3fn, False), ((12, 8), float8_e5m2, False), ((5, 32), float16, True),
        ((5, 64), float32, True), ((5, 128), float64, True),
    ],
)  # fmt: skip
def test_dlpack_types(code_bits, element, is_complex):
    operand = view(fakes.DLPackArray(code_bits=code_bits))
    assert (operand.element, operand.is_complex) == (element, is_complex)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"code_bits": (6, 8)}, "type bool of 8 bits"),
        ({"code_bits": (2, 128)}, "type float of 128 bits"),
        ({"code_bits": (17, 4)}, "code 17"),
        ({"lanes": 4}, "vectors of 4"),
        ({"device": (10, 0)}, "device of DLPack kind 10"),
        ({"version": (2, 0)}, "version 2.0 is not known"),
    ],
)
def test_dlpack_refusals(fields, words):
    with pytest.raises(ArgumentTypeError, match=f"^c: .*{words}"):
        view(fakes.DLPackArray(**fields), "c")


def test_dlpack_streams_as_the_protocol_has_them():
    gpu, cpu = fakes.DLPackArray(), fakes.DLPackArray(device=(1, 0))
    for stream, passed in ((None, 1), (0, 1), (1, 1), (2, 2), (99, 99)):
        view(gpu, stream=stream)
        assert gpu.calls[-1]["stream"] == passed
        view(cpu, stream=stream)
        assert "stream" not in cpu.calls[-1]


def test_dlpack_without_strides_is_compact():
    assert view(fakes.DLPackArray(shape=(2, 3, 4), strides=None)).strides == (12, 4, 1)
    assert view(fakes.DLPackArray(shape=(), strides=None)).strides == ()


@pytest.mark.parametrize("flags", [1, 2])
def test_dlpack_copies_and_read_only_arrays_are_not_for_writing(flags):
    assert view(fakes.DLPackArray(flags=flags)).readonly


def test_pinned_memory_is_cpu_memory():
    assert view(fakes.DLPackArray(device=(3, 0))).device == CPU


def test_a_producer_that_refuses_is_quoted_or_asked_otherwise(monkeypatch):
    x = fakes.DLPackArray(refuses=BufferError("not today"))
    with pytest.raises(ArgumentTypeError, match=r"^a: the .*DLPackArray does not .*not today") as e:
        view(x, "a")
    assert isinstance(e.value.__cause__, BufferError)
    monkeypatch.setattr(array_protocols, "device_of_pointer", lambda ptr, argument: Device("cuda", 2))
    x.__cuda_array_interface__ = fakes.CaiArray().__cuda_array_interface__
    assert view(x, "a").device == Device("cuda", 2)


# -- CUDA Array Interface -----------------------------------------------------------------------------------


@pytest.fixture
def on_gpu_2(monkeypatch):
    monkeypatch.setattr(array_protocols, "device_of_pointer", lambda ptr, argument: Device("cuda", 2))


@pytest.mark.usefixtures("on_gpu_2")
@pytest.mark.parametrize("version", [2, 3])
def test_cuda_array_interface(version):
    x = fakes.CaiArray(version=version, typestr="<c8", strides=(8, 24), data=(0x2000, True), stream=5)
    operand = view(x)
    assert (operand.ptr, operand.shape, operand.strides) == (0x2000, (3, 4), (1, 3))
    assert (operand.element, operand.is_complex, operand.readonly) == (float32, True, True)
    assert (operand.device, operand.producer_stream) == (Device("cuda", 2), 5)
    plain = view(fakes.CaiArray(version=version))
    assert (plain.strides, plain.producer_stream) == ((4, 1), None)


@pytest.mark.usefixtures("on_gpu_2")
@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"version": 1}, "version 1; known are 2 and 3"),
        ({"version": 4}, "version 4; known are 2 and 3"),
        ({"mask": object()}, "masked"),
        ({"typestr": "<V2"}, "no name for bfloat16 and fp8. Pass the array itself or through DLPack"),
        ({"typestr": ">f4"}, "byte order"),
        ({"typestr": "|b1"}, "type bool"),
        ({"strides": (18, 4)}, "not multiples of the 4 bytes"),
        ({"stream": 0}, "stream 0"),
    ],
)
def test_r099_cuda_array_interface_refusals(entries, words):
    with pytest.raises((ArgumentTypeError, InvalidArgumentError), match=f"^a: .*{words}"):
        view(fakes.CaiArray(**entries), "a")


def test_r098_the_device_of_an_address_is_the_drivers_to_say(monkeypatch):
    class Driver(fakes.FakeDriver):
        class CUresult:
            CUDA_SUCCESS, CUDA_ERROR_NOT_INITIALIZED = 0, 3

        class CUpointer_attribute:
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9

        initialised = False

        def cuInit(self, flags):
            self.initialised = True

        def cuPointerGetAttribute(self, attribute, ptr):
            assert attribute == 9
            if not self.initialised:
                return fakes.Status(3), None
            return (fakes.Status(0), ptr >> 16) if ptr < 0x90000 else (fakes.Status(1), None)

        def cuCtxGetDevice(self):
            return 0, 6

    monkeypatch.setattr(array_protocols, "bindings", Driver)
    assert view(fakes.CaiArray(data=(0x30000, False))).device == Device("cuda", 3)
    assert view(fakes.CaiArray(data=(0, False), shape=(0, 4))).device == Device("cuda", 6)
    with pytest.raises(ArgumentTypeError, match=r"^a: .*0x90000, which CUDA does not know"):
        view(fakes.CaiArray(data=(0x90000, False)), "a")


def test_without_a_driver_there_is_no_device(monkeypatch):
    class Driver:
        def __getattr__(self, name):
            raise RuntimeError("no libcuda")

    monkeypatch.setattr(array_protocols, "bindings", Driver)
    with pytest.raises(NoDeviceError, match=r"^a: .*no libcuda"):
        view(fakes.CaiArray(), "a")
