# SPDX-License-Identifier: Apache-2.0
"""Communicators and collectives."""
import ctypes
import threading
from ctypes import byref, c_int, c_void_p, sizeof

from cddp._abi import INIT_HOST_STORE, INTERRUPTED, ErrorInfo, InitOptions, Redop, SplitOptions, Status, UniqueId, check, \
    error_of, lib
from cddp._arrays import View, like

_OPS = {'sum': Redop.SUM, 'avg': Redop.AVG, 'mean': Redop.AVG, 'max': Redop.MAX, 'min': Redop.MIN, 'prod': Redop.PROD,
        'band': Redop.BAND, 'bor': Redop.BOR, 'bxor': Redop.BXOR}
_SCOPES = {'rank0': 0, 'node': 1, 'all': 2}
_LEVELS = {'debug': 0, 'info': 1, 'warning': 2, 'error': 3}
_OF_COMPLEX = (Redop.SUM, Redop.AVG)  # each part for itself gives the result
_OF_BOOL = (Redop.MAX, Redop.MIN, Redop.BAND, Redop.BOR, Redop.BXOR)


def _text(value):
    return None if value is None else value.encode()


def _ms(seconds):
    """0 stands for the default of libcddp."""
    if seconds is None:
        return 0
    if not 0 < seconds <= 2147483:
        raise ValueError(f'a timeout of {seconds} s; between 0 and 2147483 s are possible')
    return max(1, round(seconds * 1000))


def _op(op, view, call):
    try:
        number = _OPS[op]
    except (KeyError, TypeError):
        raise ValueError(f'{call}: op {op!r} is unknown; it is one of {", ".join(_OPS)}') from None
    if view.kind == 'c' and number not in _OF_COMPLEX:
        raise TypeError(f"{call}: op '{op}' of complex numbers is not defined; 'sum' and 'avg' are")
    if view.kind == 'b' and number not in _OF_BOOL:
        raise TypeError(f"{call}: op '{op}' of bool is not defined; 'max' is any, 'min' is all")
    return number


def _same(a, b, call, items):
    if a.dtype != b.dtype or a.kind != b.kind:
        raise TypeError(f'{call}: array and out have different types ({a.dtype.name.lower()}, {b.dtype.name.lower()})')
    if b.items != items:
        raise ValueError(f'{call}: out has {b.items} elements, {items} are needed')


def unique_id():
    """Returns 256 bytes by which the ranks of a job find one another: pass them to every rank, and to init(id=...).

    Starts a store in this process. Anybody who has the bytes can join the job.
    """
    made = UniqueId()
    check(lib().cddp_unique_id_create(byref(made)))
    return bytes(made.bytes)


def _signals(raised):
    """Python runs the handlers of signals between two of its instructions: here, about ten times a second.

    A generator, since a function could not catch what a handler raises before its first instruction.
    """
    value = 0
    while True:
        try:
            yield value
        except GeneratorExit:
            return
        except BaseException as error:  # pylint: disable=broad-except
            raised.append(error)
            value = 1


def init(backend=None, *, timeout=None, join_timeout=None, name=None, world_size=None, rank=None, host=None, port=None,
         host_store=False, id=None):
    """Joins the job and returns its Comm, once every rank has joined.

    Without world_size the environment describes the job, as cddprun, torchrun, mpirun and srun set it; without a
    launcher the program is a world of one.

    backend        'auto', 'cpu', 'nccl' or 'mpi'; None: $CDDP_BACKEND, else 'auto'. Arrays are host memory in each case
    timeout        seconds that a collective waits for another rank; None: $CDDP_TIMEOUT, else 600
    join_timeout   seconds until every rank is present; None: $CDDP_JOIN_TIMEOUT, else 300
    name           of the communicator, for error messages
    world_size, rank   the job without a launcher; then also
    host, port     where its store is; with host_store=True rank 0 hosts it there; or
    id             the bytes of unique_id()

    Raises Error (with status TIMEOUT its message names the ranks that are missing), ValueError, and what a signal
    handler raises meanwhile, such as KeyboardInterrupt. A process is in one job of the environment at a time.
    """
    options = InitOptions(size=sizeof(InitOptions), backend=_text(backend), name=_text(name), timeout_ms=_ms(timeout),
                          join_timeout_ms=_ms(join_timeout), world_size=world_size or 0, rank=rank or 0, port=port or 0,
                          host=_text(host), flags=INIT_HOST_STORE if host_store else 0)
    if world_size is None and not (rank is None and host is None and port is None and id is None and not host_store):
        raise ValueError('init: rank, host, port, host_store and id need world_size')
    if id is not None:
        if len(id) != sizeof(UniqueId):
            raise ValueError(f'init: id has {len(id)} bytes; unique_id() returns {sizeof(UniqueId)}')
        options.id = ctypes.pointer(UniqueId.from_buffer_copy(id))
    raised = []
    if threading.current_thread() is threading.main_thread():
        watch = _signals(raised)
        next(watch)
        options.interrupted = INTERRUPTED(watch.send)
    handle = c_void_p()
    status = lib().cddp_init(byref(handle), byref(options))
    if raised:
        if status == Status.OK:
            lib().cddp_finalize(handle)
        raise raised[0]
    check(status)
    return Comm(handle)


class Comm:
    """A group of ranks that reduce together: what init() returns. As a context manager it leaves the job at the end.

    Every rank calls the same collectives in the same order, with the same number of elements, type and operation. An
    array is numpy's, a PyTorch tensor in host memory, or any object with the buffer protocol or DLPack: contiguous, and
    used where it lies, without a copy. Collectives block, raise Error, and release Python's lock while they wait.
    Errors that end the communicator (another rank died, timed out or aborted) are raised by every later call, too.
    """

    def __init__(self, handle):
        self._handle = handle

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        """Leaves the job. After an exception of this rank's own the others' calls fail with its text; sys.exit(0) is none."""
        if kind is None or (kind is SystemExit and error.code in (None, 0)):
            self.finalize()
        elif self._handle is not None:
            if lib().cddp_comm_error(self._handle, None) == Status.OK:
                self.abort(f'{kind.__name__}: {error}')
            handle, self._handle = self._handle, None
            lib().cddp_finalize(handle)

    def __repr__(self):
        if self._handle is None:
            return '<cddp.Comm, finalized>'
        return f'<cddp.Comm: rank {self.rank} of {self.size}, {self.backend}>'

    @property
    def handle(self):
        """The cddp_comm *, as a ctypes.c_void_p, for calls of libcddp by ctypes."""
        if self._handle is None:
            raise RuntimeError('the communicator is finalized')
        return self._handle

    @property
    def rank(self):
        """This process's rank, from 0."""
        return lib().cddp_rank(self.handle)

    @property
    def size(self):
        """How many ranks there are."""
        return lib().cddp_world_size(self.handle)

    @property
    def local_rank(self):
        """This rank among those of its node, from 0."""
        return lib().cddp_local_rank(self.handle)

    @property
    def local_size(self):
        """How many ranks there are on this node."""
        return lib().cddp_local_world_size(self.handle)

    @property
    def node_rank(self):
        """Which node this is, from 0."""
        return lib().cddp_node_rank(self.handle)

    @property
    def restart_count(self):
        """How often the launcher has restarted the job."""
        return lib().cddp_restart_count(self.handle)

    @property
    def backend(self):
        """'cpu', 'nccl' or 'mpi'."""
        return lib().cddp_backend_name(self.handle).decode()

    @property
    def stop_requested(self):
        """True, on all ranks, after cddprun was asked to end the job. Ranks see it at different moments."""
        return bool(lib().cddp_stop_requested(self.handle))

    def should_stop(self):
        """Returns True on all ranks, in the same call, if the job is to stop: then save and leave. A collective.

        Call it between two steps. From the first call on, a request to stop (SIGTERM, a signal of --stop_signals) does
        not end the process. The answer becomes True after a request to cddprun, to a rank, or by request_stop().
        """
        stop = c_int()
        check(lib().cddp_should_stop(self.handle, byref(stop)))
        return stop.value != 0

    def request_stop(self):
        """Requests that all ranks stop: should_stop() soon returns True on every rank. Does not communicate."""
        check(lib().cddp_request_stop(self.handle))

    @property
    def error(self):
        """The Error that has ended this communicator, or None. Does not block."""
        info = ErrorInfo(size=sizeof(ErrorInfo))
        return None if lib().cddp_comm_error(self.handle, byref(info)) == Status.OK else error_of(info)

    def all_reduce(self, array, op='sum', out=None):
        """Reduces array over all ranks, element by element, in place or into out, and returns where the result is.

        op: 'sum', 'avg' (the mean; floating-point types), 'max', 'min', 'prod', or 'band', 'bor', 'bxor' of integers.
        Every rank gets the same bits. Sums are made in the order of the ranks.
        """
        call = 'all_reduce'
        with View(array, call, write=out is None) as a:
            number = _op(op, a, call)
            if out is None:
                check(lib().cddp_all_reduce(self.handle, a.address, a.address, a.items, a.dtype, number))
                return array
            with View(out, call, 'out') as b:
                _same(a, b, call, a.items)
                check(lib().cddp_all_reduce(self.handle, a.address, b.address, a.items, a.dtype, number))
        return out

    def broadcast(self, array, root=0):
        """Copies rank root's array into the array of every rank, and returns array."""
        # On the root it is only read, but may not be what ranks differ in.
        with View(array, 'broadcast', write=self.rank != root) as a:
            check(lib().cddp_broadcast(self.handle, a.address, a.items, a.dtype, root))
        return array

    def all_gather(self, array, out=None):
        """Collects the arrays of all ranks in out, in the order of the ranks, and returns out.

        Without out a new array is made, of shape (size, *array.shape). array may be this rank's own part of out.
        """
        call = 'all_gather'
        with View(array, call, write=False) as a:
            if out is None:
                out = like(array, a, (self.size, *a.shape))
            with View(out, call, 'out') as b:
                _same(a, b, call, a.items * self.size)
                check(lib().cddp_all_gather(self.handle, a.address, b.address, a.items, a.dtype))
        return out

    def reduce_scatter(self, array, op='sum', out=None):
        """Reduces array over all ranks and gives block r of the result, of size equal ones, to rank r. Returns it.

        Without out a new array is made: the block's rows, where the first dimension can be divided by size, else flat.
        """
        call = 'reduce_scatter'
        size = self.size
        with View(array, call, write=False) as a:
            number = _op(op, a, call)
            each = 2 if a.kind == 'c' else 1
            if a.items // each % size != 0:
                raise ValueError(f'{call}: {a.items // each} elements cannot be divided among {size} ranks')
            if out is None:
                whole = len(a.shape) > 0 and a.shape[0] % size == 0
                out = like(array, a, (a.shape[0] // size, *a.shape[1:]) if whole else (a.items // each // size,))
            with View(out, call, 'out') as b:
                _same(a, b, call, a.items // size)
                check(lib().cddp_reduce_scatter(self.handle, a.address, b.address, b.items, a.dtype, number))
        return out

    def barrier(self):
        """Returns once every rank has called it."""
        check(lib().cddp_barrier(self.handle))

    def split(self, color, key=0, *, name=None, timeout=None):
        """Returns a Comm of the ranks that give the same color, ordered by key, then by rank; None for a negative color.

        A collective of all ranks. Release the result with finalize(), before or after this communicator.
        """
        options = SplitOptions(size=sizeof(SplitOptions), name=_text(name), timeout_ms=_ms(timeout))
        handle = c_void_p()
        check(lib().cddp_comm_split(byref(handle), self.handle, color, key, byref(options)))
        return Comm(handle) if handle.value is not None else None

    def abort(self, why=None):
        """Ends the waits of all ranks on this communicator, with Status.ABORTED; why becomes part of their messages."""
        lib().cddp_abort(self.handle, _text(why))

    def log(self, text, level='info', scope='rank0'):
        """Prints a line "[rank 3, step 17] text" on stderr, whole, with control characters escaped.

        level          'debug', 'info', 'warning' or 'error'; lines below $CDDP_LOG_LEVEL are dropped
        scope          'rank0', 'node' (one rank of each node) or 'all': the ranks that print it
        """
        if level not in _LEVELS or scope not in _SCOPES:
            raise ValueError(f'log: level {level!r}, scope {scope!r}; levels are {", ".join(_LEVELS)}; scopes are '
                             f'{", ".join(_SCOPES)}')
        lib().cddp_log(self.handle, _SCOPES[scope], _LEVELS[level], str(text).encode(errors='backslashreplace'))

    def finalize(self):
        """Leaves the job. Raises the communicator's error if there is one. Does nothing when called again."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            check(lib().cddp_finalize(handle))
