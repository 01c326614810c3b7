# SPDX-License-Identifier: Apache-2.0
"""libcddp as its headers declare it: statuses, types, structs, functions. Nothing here is part of the interface."""
import ctypes
import enum
import functools
import os
from ctypes import POINTER, Structure, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

SONAME = 'libcddp.so.0'


class Status(enum.IntEnum):
    """What a function of libcddp returns. cddp/status.h says which of them leave a communicator usable."""
    OK = 0
    IN_PROGRESS = 1
    INVALID = -1
    NOMEM = -2
    TIMEOUT = -3
    IO = -4
    CLOSED = -5
    PROTOCOL = -6
    LIMIT = -7
    NOT_FOUND = -8
    EXISTS = -9
    MISMATCH = -10
    PEER = -11
    ABORTED = -12
    STATE = -13
    UNSUPPORTED = -14
    SYSTEM = -15
    VERSION = -16
    DENIED = -17
    NONFINITE = -18
    REMOTE = -19


class Dtype(enum.IntEnum):
    """The element types of libcddp."""
    INT8 = 1
    UINT8 = 2
    INT32 = 3
    UINT32 = 4
    INT64 = 5
    UINT64 = 6
    FLOAT16 = 7
    FLOAT32 = 8
    FLOAT64 = 9
    BFLOAT16 = 10
    FLOAT8_E4M3 = 11
    FLOAT8_E5M2 = 12
    INT16 = 64
    UINT16 = 65


class Redop(enum.IntEnum):
    """The reductions of libcddp."""
    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4
    BAND = 64
    BOR = 65
    BXOR = 66


class OptimKind(enum.IntEnum):
    """The rules of the divided optimizer."""
    SGD = 1
    ADAM = 2
    ADAMW = 3


INIT_HOST_STORE = 1
DDP_NO_BROADCAST = 1
DDP_SUM = 2
DDP_FIND_UNUSED = 4
DDP_STATIC_GRAPH = 8
DDP_JOIN = 16
DDP_JOIN_ACTIVE = 32
DDP_WEIGHTED = 1024
OPTIM_NESTEROV = 1
OPTIM_GROUP_FROZEN = 1
OPTIM_SKIP_NONFINITE = 1
FSDP_KEEP = 1

# The times of a step, whose sums and last values cddp_ddp_stats has.
DDP_TIMES = ('step', 'forward', 'backward', 'comm', 'exposed', 'hidden', 'thread', 'late')

INTERRUPTED = ctypes.CFUNCTYPE(c_int, c_void_p)


class ErrorInfo(Structure):
    _fields_ = [('size', c_size_t), ('status', c_int), ('rank', c_int32), ('os_error', c_int32), ('device_error', c_int32),
                ('message', c_char * 1024)]


class UniqueId(Structure):
    _fields_ = [('bytes', ctypes.c_ubyte * 256)]


class InitOptions(Structure):
    _fields_ = [('size', c_size_t), ('backend', c_char_p), ('device', c_char_p), ('join_timeout_ms', c_int),
                ('timeout_ms', c_int), ('name', c_char_p), ('flags', c_uint32), ('world_size', c_int), ('rank', c_int),
                ('port', c_int), ('host', c_char_p), ('id', POINTER(UniqueId)), ('mpi_comm', c_void_p),
                ('interrupted', INTERRUPTED), ('arg', c_void_p)]


class SplitOptions(Structure):
    _fields_ = [('size', c_size_t), ('flags', c_uint32), ('timeout_ms', c_int), ('name', c_char_p), ('backend', c_char_p)]


class Param(Structure):
    _fields_ = [('size', c_size_t), ('name', c_char_p), ('data', c_void_p), ('count', c_size_t), ('dtype', c_int),
                ('grad_dtype', c_int), ('grad', c_void_p), ('shape', POINTER(c_size_t)), ('n_dims', c_size_t),
                ('flags', c_uint32), ('zero', c_uint32), ('user', c_void_p)]


class DdpOptions(Structure):
    _fields_ = [('size', c_size_t), ('flags', c_uint32), ('comm_dtype', c_int), ('bucket_bytes', c_size_t),
                ('first_bucket_bytes', c_size_t), ('last_bucket_bytes', c_size_t), ('stream', c_void_p),
                ('buffers', POINTER(Param)), ('n_buffers', c_size_t), ('name', c_char_p)]


class DdpStats(Structure):
    _fields_ = [('size', c_size_t), ('steps', c_uint64),
                *((f'{name}_ns', c_int64) for name in DDP_TIMES), ('bytes', c_uint64),
                *((f'last_{name}_ns', c_int64) for name in DDP_TIMES), ('last_bytes', c_uint64),
                ('slowest_steps', c_uint64), ('slowest_rank', c_int32), ('last_slowest_rank', c_int32),
                ('n_buckets', c_size_t), ('bucket_bytes', c_size_t), ('largest_bucket_bytes', c_size_t), ('rebuilds', c_uint64),
                *((name, c_int64) for name in ('waiting_ns', 'transfer_ns', 'last_waiting_ns', 'last_transfer_ns'))]


class OptimGroup(Structure):
    _fields_ = [('size', c_size_t), ('params', POINTER(c_size_t)), ('n_params', c_size_t), ('lr_factor', c_double),
                ('weight_decay', c_double), ('flags', c_uint64)]


class OptimOptions(Structure):
    _fields_ = [('size', c_size_t), ('kind', c_int), ('flags', c_uint32), ('groups', POINTER(OptimGroup)), ('n_groups', c_size_t),
                *((name, c_double) for name in ('lr', 'weight_decay', 'momentum', 'dampening', 'beta1', 'beta2', 'eps'))]


class OptimStepArgs(Structure):
    _fields_ = [('size', c_size_t), ('flags', c_uint64), ('lr', c_double), ('grad_scale', c_double), ('max_norm', c_double)]


class FsdpUnit(Structure):
    _fields_ = [('size', c_size_t), ('name', c_char_p), ('params', POINTER(Param)), ('n_params', c_size_t), ('flags', c_uint64)]


FILL = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t, POINTER(c_void_p))


class FsdpOptions(Structure):
    _fields_ = [('size', c_size_t), ('stage', c_int), ('flags', c_uint32), ('max_live_units', c_size_t),
                ('max_live_gradients', c_size_t), ('fill', FILL), ('arg', c_void_p), ('stream', c_void_p),
                ('replicas', c_void_p)]


class FsdpShardInfo(Structure):
    _fields_ = [('size', c_size_t), ('begin', c_size_t), ('count', c_size_t), ('param', c_void_p), ('grad', c_void_p)]


# Their names in C, for the test that compares the two.
STRUCTS = {'cddp_error_info': ErrorInfo, 'cddp_unique_id': UniqueId, 'cddp_init_options': InitOptions,
           'cddp_split_options': SplitOptions, 'cddp_param': Param, 'cddp_ddp_options': DdpOptions,
           'cddp_ddp_stats': DdpStats, 'cddp_optim_group': OptimGroup, 'cddp_optim_options': OptimOptions,
           'cddp_optim_step_args': OptimStepArgs, 'cddp_fsdp_unit': FsdpUnit, 'cddp_fsdp_options': FsdpOptions,
           'cddp_fsdp_shard_info': FsdpShardInfo}

_DATA = [c_void_p, c_void_p, c_void_p, c_size_t, c_int]  # comm, in, out, count, dtype
_FUNCTIONS = {
    # name: (result, arguments)
    'cddp_last_error_info': (None, [POINTER(ErrorInfo)]),
    'cddp_version': (c_char_p, []),
    'cddp_unique_id_create': (c_int, [POINTER(UniqueId)]),
    'cddp_init': (c_int, [POINTER(c_void_p), POINTER(InitOptions)]),
    'cddp_finalize': (c_int, [c_void_p]),
    'cddp_comm_error': (c_int, [c_void_p, POINTER(ErrorInfo)]),
    'cddp_comm_split': (c_int, [POINTER(c_void_p), c_void_p, c_int, c_int, POINTER(SplitOptions)]),
    'cddp_abort': (None, [c_void_p, c_char_p]),
    'cddp_log': (None, [c_void_p, c_int, c_int, c_char_p]),
    'cddp_rank': (c_int, [c_void_p]),
    'cddp_world_size': (c_int, [c_void_p]),
    'cddp_local_rank': (c_int, [c_void_p]),
    'cddp_local_world_size': (c_int, [c_void_p]),
    'cddp_node_rank': (c_int, [c_void_p]),
    'cddp_restart_count': (c_int, [c_void_p]),
    'cddp_stop_requested': (c_int, [c_void_p]),
    'cddp_should_stop': (c_int, [c_void_p, POINTER(c_int)]),
    'cddp_request_stop': (c_int, [c_void_p]),
    'cddp_backend_name': (c_char_p, [c_void_p]),
    'cddp_all_reduce': (c_int, [*_DATA, c_int]),
    'cddp_broadcast': (c_int, [c_void_p, c_void_p, c_size_t, c_int, c_int]),
    'cddp_all_gather': (c_int, _DATA),
    'cddp_reduce_scatter': (c_int, [*_DATA, c_int]),
    'cddp_barrier': (c_int, [c_void_p]),
    'cddp_ddp_create': (c_int, [POINTER(c_void_p), c_void_p, POINTER(Param), c_size_t, POINTER(DdpOptions)]),
    'cddp_ddp_grad': (c_void_p, [c_void_p, c_size_t]),
    'cddp_ddp_grad_ready': (c_int, [c_void_p, c_size_t]),
    'cddp_ddp_set_weight': (c_int, [c_void_p, c_double]),
    'cddp_ddp_wait_param': (c_int, [c_void_p, c_size_t]),
    'cddp_ddp_wait': (c_int, [c_void_p]),
    'cddp_ddp_was_used': (c_int, [c_void_p, c_size_t, POINTER(c_int)]),
    'cddp_ddp_sync_buffers': (c_int, [c_void_p]),
    'cddp_ddp_join': (c_int, [c_void_p]),
    'cddp_ddp_grad_norm': (c_int, [c_void_p, c_double, POINTER(c_double)]),
    'cddp_ddp_clip_grad_norm': (c_int, [c_void_p, c_double, c_double, c_int, POINTER(c_double)]),
    'cddp_ddp_destroy': (None, [c_void_p]),
}
# Of include/cddp/experimental: another libcddp may lack them, or have another struct.
_EXPERIMENTAL = {
    'cddp_ddp_get_stats': (c_int, [c_void_p, POINTER(DdpStats)]),
    'cddp_optim_defaults': (None, [POINTER(OptimOptions), c_size_t, c_int]),
    'cddp_optim_create': (c_int, [POINTER(c_void_p), c_void_p, POINTER(OptimOptions)]),
    'cddp_optim_step': (c_int, [c_void_p, POINTER(OptimStepArgs)]),
    'cddp_optim_skip': (c_int, [c_void_p]),
    'cddp_optim_set_lr': (c_int, [c_void_p, c_double]),
    'cddp_optim_set_grad_scale': (c_int, [c_void_p, c_double]),
    'cddp_optim_skipped': (c_int, [c_void_p, POINTER(c_uint64)]),
    'cddp_optim_state_bytes': (c_size_t, [c_void_p]),
    'cddp_optim_destroy': (None, [c_void_p]),
    'cddp_fsdp_create': (c_int, [POINTER(c_void_p), c_void_p, POINTER(FsdpUnit), c_size_t, POINTER(FsdpOptions)]),
    'cddp_fsdp_gather': (c_int, [c_void_p, c_size_t]),
    'cddp_fsdp_wait_unit': (c_int, [c_void_p, c_size_t]),
    'cddp_fsdp_param': (c_void_p, [c_void_p, c_size_t, c_size_t]),
    'cddp_fsdp_release': (c_int, [c_void_p, c_size_t]),
    'cddp_fsdp_grad': (c_void_p, [c_void_p, c_size_t, c_size_t]),
    'cddp_fsdp_grads_ready': (c_int, [c_void_p, c_size_t]),
    'cddp_optim_create_sharded': (c_int, [POINTER(c_void_p), c_void_p, POINTER(OptimOptions)]),
    'cddp_fsdp_end_step': (c_int, [c_void_p]),
    'cddp_fsdp_shard': (c_int, [c_void_p, c_size_t, c_size_t, POINTER(FsdpShardInfo)]),
    'cddp_fsdp_bytes': (c_size_t, [c_void_p]),
    'cddp_fsdp_destroy': (None, [c_void_p]),
}


@functools.lru_cache(maxsize=None)
def lib():
    """libcddp, loaded once: $CDDP_LIBRARY, else the one of this package, else the one that the loader finds."""
    path = os.environ.get('CDDP_LIBRARY', '')
    if not path:
        own = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib', SONAME)
        path = own if os.path.exists(own) else SONAME
    try:
        library = ctypes.CDLL(path)  # which releases the interpreter's lock during every call
    except OSError as error:
        raise ImportError(f'cannot load libcddp ({error}); install the wheel of cddprun, or set CDDP_LIBRARY to the path '
                          f'of {SONAME}') from None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


@functools.lru_cache(maxsize=None)
def experimental(name):
    """An experimental function of libcddp. Raises Error with Status.UNSUPPORTED if this libcddp has none of this name."""
    function = getattr(lib(), name, None)
    if function is None:
        raise Error(Status.UNSUPPORTED, f'this libcddp ({lib().cddp_version().decode()}) has no {name}, which is experimental')
    function.restype, function.argtypes = _EXPERIMENTAL[name]
    return function


class Error(RuntimeError):
    """A function of libcddp has failed.

    status        a cddp.Status, such as Status.PEER: another rank died
    message       the error message, which names the object or the rank, and where possible what to do
    rank          the rank, in the world, that caused the error (it died, aborted, arrived late, or failed in what it
                  did for all); None if that is unknown, or this rank's own mistake
    os_error      errno; 0: none
    """

    def __init__(self, status, message, rank=None, os_error=0):
        super().__init__(message)
        self.status = status
        self.message = message
        self.rank = rank
        self.os_error = os_error

    def __reduce__(self):  # so that it passes between processes
        return type(self), (self.status, self.message, self.rank, self.os_error)


def status_of(number):
    try:
        return Status(number)
    except ValueError:  # of a later libcddp
        return number


def error_of(info):
    message = info.message.decode(errors='replace').replace(
        'call cddp_ddp_grad_ready for every parameter before',
        'pass find_unused=True to DDP if not every step makes all of them, or call ready() for each before')
    return Error(status_of(info.status), message, info.rank if info.rank >= 0 else None, info.os_error)


def check(status):
    """Raises the calling thread's last error unless status is CDDP_OK."""
    if status != Status.OK:
        info = ErrorInfo(size=ctypes.sizeof(ErrorInfo))
        lib().cddp_last_error_info(ctypes.byref(info))
        raise error_of(info)
