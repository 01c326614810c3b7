# SPDX-License-Identifier: Apache-2.0
"""The memory of arrays: by the buffer protocol (numpy, array, ctypes) or by DLPack (PyTorch and others). No copies."""
import ctypes
import struct
import sys
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_ssize_t, c_uint8, c_uint16, c_uint32, c_uint64, \
    c_void_p, py_object

from cddp._abi import Dtype

_BY_KIND = {
    ('i', 1): Dtype.INT8, ('i', 2): Dtype.INT16, ('i', 4): Dtype.INT32, ('i', 8): Dtype.INT64,
    ('u', 1): Dtype.UINT8, ('u', 2): Dtype.UINT16, ('u', 4): Dtype.UINT32, ('u', 8): Dtype.UINT64,
    ('f', 2): Dtype.FLOAT16, ('f', 4): Dtype.FLOAT32, ('f', 8): Dtype.FLOAT64, ('bf', 2): Dtype.BFLOAT16,
    ('b', 1): Dtype.UINT8, ('c', 8): Dtype.FLOAT32, ('c', 16): Dtype.FLOAT64,
}
_KINDS = {'?': 'b', **dict.fromkeys('bhilqn', 'i'), **dict.fromkeys('BHILQN', 'u'), **dict.fromkeys('efd', 'f')}
_DLPACK_KINDS = {0: 'i', 1: 'u', 2: 'f', 4: 'bf', 5: 'c', 6: 'b'}
_HOST = (1, 3)  # DLPack's devices that are host memory: kDLCPU, kDLCUDAHost
_NAMES = 'int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64, complex64, complex128 and bool'


class _Buffer(Structure):  # Py_buffer
    _fields_ = [('buf', c_void_p), ('obj', c_void_p), ('len', c_ssize_t), ('itemsize', c_ssize_t), ('readonly', c_int),
                ('ndim', c_int), ('format', c_char_p), ('shape', POINTER(c_ssize_t)), ('strides', POINTER(c_ssize_t)),
                ('suboffsets', POINTER(c_ssize_t)), ('internal', c_void_p)]


_RECORDS_RO = 0x001c  # PyBUF_STRIDES | PyBUF_FORMAT
_get_buffer = ctypes.PYFUNCTYPE(c_int, py_object, POINTER(_Buffer), c_int)(('PyObject_GetBuffer', ctypes.pythonapi))
_release_buffer = ctypes.PYFUNCTYPE(None, POINTER(_Buffer))(('PyBuffer_Release', ctypes.pythonapi))


class _Tensor(Structure):  # DLTensor
    _fields_ = [('data', c_void_p), ('device_type', c_int32), ('device_id', c_int32), ('ndim', c_int32), ('code', c_uint8),
                ('bits', c_uint8), ('lanes', c_uint16), ('shape', POINTER(c_int64)), ('strides', POINTER(c_int64)),
                ('byte_offset', c_uint64)]


class _Versioned(Structure):  # DLManagedTensorVersioned
    _fields_ = [('major', c_uint32), ('minor', c_uint32), ('context', c_void_p), ('deleter', c_void_p), ('flags', c_uint64),
                ('tensor', _Tensor)]


_READ_ONLY = 1  # of its flags
_capsule_pointer = ctypes.PYFUNCTYPE(c_void_p, py_object, c_char_p)(('PyCapsule_GetPointer', ctypes.pythonapi))
_capsule_valid = ctypes.PYFUNCTYPE(c_int, py_object, c_char_p)(('PyCapsule_IsValid', ctypes.pythonapi))


class View:
    """The memory of an array, held until release() or the end of the view.

    address, shape, dtype (a Dtype), items (how many of these there are), kind ('c': complex, two items each; 'b': bool)
    """

    def __init__(self, array, call, what='array', write=True):
        self._buffer = None
        self._capsule = None
        self._what = f'{call}: {what}'
        if not self._by_buffer(array) and not self._by_dlpack(array):
            raise TypeError(f'{self._what} is a {type(array).__name__}, which has neither the buffer protocol nor DLPack; '
                            f'pass a numpy array, a PyTorch CPU tensor or the like')
        if write and self.readonly:
            raise ValueError(f'{self._what} is read-only, but its values would be replaced')

    def _accept(self, kind, itemsize, name, shape, strides):
        """strides: in bytes, or None where they are those of a contiguous array."""
        if (kind, itemsize) not in _BY_KIND:
            raise TypeError(f'{self._what} has elements of type {name}; libcddp has {_NAMES}')
        dense = itemsize
        for n, stride in zip(reversed(shape), reversed(strides or ())):
            if n > 1 and stride != dense and 0 not in shape:
                raise ValueError(f'{self._what} is not contiguous in memory (shape {shape}, strides of {strides} bytes); '
                                 f'pass a contiguous copy: numpy.ascontiguousarray(a), tensor.contiguous()')
            dense *= n
        self.kind = kind
        self.dtype = _BY_KIND[kind, itemsize]
        self.shape = shape
        self.items = 2 if kind == 'c' else 1
        for n in shape:
            self.items *= n

    def _by_buffer(self, array):
        buffer = _Buffer()
        try:
            _get_buffer(array, ctypes.byref(buffer), _RECORDS_RO)
        except (TypeError, ValueError, BufferError):
            return False
        self._buffer = buffer
        self.address = buffer.buf
        self.readonly = bool(buffer.readonly)
        name = (buffer.format or b'B').decode()
        code = name.lstrip('@=<' if sys.byteorder == 'little' else '@=>!')
        kind = 'c' if code in ('Zf', 'Zd') else _KINDS.get(code, '')
        shape = tuple(buffer.shape[:buffer.ndim]) if buffer.ndim else ()
        strides = tuple(buffer.strides[:buffer.ndim]) if buffer.strides else None
        self._accept(kind, buffer.itemsize, getattr(array, 'dtype', f"'{name}'"), shape, strides)
        return True

    def _by_dlpack(self, array):
        if not hasattr(array, '__dlpack__'):
            return False
        device = array.__dlpack_device__()
        if int(device[0]) not in _HOST:
            raise TypeError(f'{self._what} is on a device ({getattr(array, "device", device)}); pass host memory')
        if getattr(array, 'requires_grad', False):
            array = array.detach()  # the same memory, which alone may be exported
        try:
            try:
                self._capsule = array.__dlpack__(max_version=(1, 0))
            except TypeError:  # of an older version
                self._capsule = array.__dlpack__()
        except Exception as error:  # whatever the array's own library raises
            raise TypeError(f'{self._what} does not give its memory: {error}') from error
        self.readonly = False
        if _capsule_valid(self._capsule, b'dltensor_versioned'):
            managed = _Versioned.from_address(_capsule_pointer(self._capsule, b'dltensor_versioned'))
            if managed.major != 1:
                raise TypeError(f'{self._what} has version {managed.major} of DLPack; version 1 is supported')
            self.readonly = bool(managed.flags & _READ_ONLY)
            tensor = managed.tensor
        else:
            tensor = _Tensor.from_address(_capsule_pointer(self._capsule, b'dltensor'))
        kind = _DLPACK_KINDS.get(tensor.code, '') if tensor.lanes == 1 else ''
        shape = tuple(tensor.shape[:tensor.ndim])
        strides = tuple(n * (tensor.bits // 8) for n in tensor.strides[:tensor.ndim]) if tensor.strides else None
        self.address = (tensor.data or 0) + tensor.byte_offset
        name = getattr(array, 'dtype', f'DLPack {tensor.code} of {tensor.bits} bits')
        self._accept(kind, tensor.bits // 8, name, shape, strides)
        return True

    def release(self):
        if self._buffer is not None:
            _release_buffer(ctypes.byref(self._buffer))
            self._buffer = None
        self._capsule = None  # whose destructor tells the array's library

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()

    def __del__(self):
        if getattr(self, '_buffer', None) is not None:
            self.release()


def memory_order(array):
    """The dimensions of a tensor in the order of its memory (as with channels_last); None: they are in that order."""
    if not callable(getattr(array, 'stride', None)) or array.is_contiguous():
        return None
    return sorted(range(array.dim()), key=array.stride, reverse=True)


_FORMATS = {'i': 'bhiq', 'u': 'BHIQ', 'f': ' efd', 'b': '?'}


def format_of(view):
    """The struct module's letter for the elements of view; None if there is none (bfloat16, complex)."""
    if view.kind not in _FORMATS:
        return None
    size = _itemsize(view.dtype)
    return _FORMATS[view.kind][size.bit_length() - 1]


def _itemsize(dtype):
    name = dtype.name.lower()
    return 1 if 'float8' in name else int(name.lstrip('buintfloa')) // 8


def nbytes(view):
    return view.items * _itemsize(view.dtype)


def like(array, view, shape, memory=None):
    """An array of this shape, of the library and with the type of `array`; in memory, or in new memory if it is None."""
    torch, numpy = sys.modules.get('torch'), sys.modules.get('numpy')
    if torch is not None and isinstance(array, torch.Tensor):
        if memory is None:
            return torch.empty(shape, dtype=array.dtype)
        return torch.frombuffer(memory, dtype=array.dtype).reshape(shape)
    if numpy is not None and isinstance(array, numpy.ndarray):
        if memory is None:
            return numpy.empty(shape, array.dtype)
        return numpy.frombuffer(memory, array.dtype).reshape(shape)
    letter = format_of(view)
    if letter is None:
        raise TypeError(f'cannot make a memoryview of {view.dtype.name.lower()} for a {type(array).__name__}; pass out=')
    if memory is None:
        n = 1
        for length in shape:
            n *= length
        memory = bytearray(n * struct.calcsize(letter))
    flat = memoryview(memory).cast('B')
    # A shape that is empty somewhere cannot be cast to.
    return flat.cast(letter, shape) if len(shape) > 0 and 0 not in shape else flat.cast(letter)
