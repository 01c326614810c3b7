# SPDX-License-Identifier: Apache-2.0
"""The reducer: gradients are averaged in buckets while the backward pass still runs."""
import array
import collections
import contextlib
import ctypes
import functools
import inspect
import math
import sys
import weakref
import zlib
from ctypes import byref, c_double, c_int, c_size_t, c_void_p, sizeof

from cddp._abi import DDP_FIND_UNUSED, DDP_JOIN, DDP_JOIN_ACTIVE, DDP_NO_BROADCAST, DDP_STATIC_GRAPH, DDP_SUM, DDP_WEIGHTED, DdpOptions, \
    DdpStats, Dtype, Error, Param, Status, check, experimental, lib
from cddp._arrays import View, like, memory_order, nbytes

_COMM_DTYPES = {None: 0, 'float16': Dtype.FLOAT16, 'bfloat16': Dtype.BFLOAT16, 'float32': Dtype.FLOAT32}


Stats = collections.namedtuple('Stats', [name for name, _ in DdpStats._fields_ if name != 'size'])


class _Reducer:
    """The cddp_ddp and the parameters that it uses: gone with the last gradient that points into it."""

    def __init__(self, handle, views):
        self.handle = handle
        self.views = views
        self._destroy = lib().cddp_ddp_destroy

    def __del__(self):
        self._destroy(self.handle)
        for view in self.views:
            view.release()


def _number_of(which, numbers, n, complaint, hint=''):
    """Of what is called `which`, a name or already a number: there are n, and `numbers` has those of the names."""
    if isinstance(which, str):
        try:
            return numbers[which]
        except KeyError:
            raise ValueError(f"{complaint} '{which}'{hint}") from None
    if not 0 <= which < n:
        raise ValueError(f'{complaint} {which}; there are {n}')
    return which


def _named(params):
    if hasattr(params, 'items'):
        params = params.items()
    for i, item in enumerate(params):
        yield item if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) else (str(i), item)


def _again(named, method):
    """A function that reads a module's tensors anew, since it may replace them; None for what names no module."""
    if hasattr(named, method):
        return getattr(named, method)
    torch = sys.modules.get('torch')
    if torch is not None and inspect.isgenerator(named) and inspect.getgeneratorstate(named) == inspect.GEN_CREATED:
        for call in ('named_parameters', 'parameters', 'named_buffers', 'buffers'):
            if named.gi_code is getattr(torch.nn.Module, call).__code__:
                return functools.partial(getattr(torch.nn.Module, call), **named.gi_frame.f_locals)
    return None


@contextlib.contextmanager
def _brought(known, again=None):
    """Within it, the memory that libcddp knows has the values of the tensors in use; after it, they have the memory's."""
    now = {} if again is None else dict(_named(again()))
    moved = [(n, now.get(n, t), memory) for n, t, memory in known if now.get(n, t).data_ptr() != memory.data_ptr()]
    for n, t, memory in moved:
        if (t.shape, t.dtype) != (memory.shape, memory.dtype):
            raise RuntimeError(f"DDP: '{n}' was {memory.dtype} {list(memory.shape)} when the DDP was made, and is {t.dtype} "
                               f'{list(t.shape)} now; make a new DDP')
        memory.copy_(t.detach())
    yield
    for _, t, memory in moved:
        t.detach().copy_(memory)


def _is_frozen(param):
    torch = sys.modules.get('torch')
    return torch is not None and isinstance(param, torch.nn.Parameter) and not param.requires_grad


def _key(name, param):
    """Equal for two names of one tensor that autograd knows (tied weights): it has one .grad, and is reduced once."""
    return id(param) if getattr(param, 'requires_grad', False) else name


def _in_memory_order(param):
    """The same memory as an array that is contiguous, if the parameter is dense in another order."""
    order = memory_order(param)
    return param if order is None else param.detach().permute(order)


def _with_an_element(param, view):
    """libcddp knows no parameter without elements: one element stands in, so that its use is still known."""
    if view.items > 0:
        return view
    view = View(like(param, view, (1,)), 'DDP')
    ctypes.memset(view.address, 0, nbytes(view))
    return view


def _describe(views):
    """An array of cddp_param for (name, view) pairs."""
    described = (Param * max(1, len(views)))()
    for at, (name, view) in zip(described, views):
        at.size = sizeof(Param)
        at.name = name.encode()
        at.data = view.address
        at.count = view.items
        at.dtype = view.dtype
        if view.kind != 'c' and view.shape:  # a complex element counts twice
            at.n_dims = len(view.shape)
            at.shape = (c_size_t * len(view.shape))(*view.shape)
    return described


_STEP_IS_OVER = (Status.NONFINITE, Status.MISMATCH)  # of CDDP_NAN_CHECK and CDDP_CHECK_REPLICAS: the next step may begin


class DDP:
    """Averages the gradients of one model over all ranks, in buckets, while they are being made.

        ddp = cddp.DDP(comm, {'w': w, 'b': b})     # a collective; rank 0's values are broadcast
        for step in ...:
            ddp.grad('b')[:] = ...                 # the backward pass, last layer first
            ddp.ready('b')
            ddp.grad('w')[:] = ...
            ddp.ready('w')
            ddp.wait()                             # every gradient is now the mean over all ranks

    For PyTorch's autograd attach() does what stands between the first line and wait().

    params            the parameters in forward order: a PyTorch module, a dict, (name, array) pairs such as
                      model.named_parameters(), or arrays alone. Floating-point, in host memory, contiguous or (PyTorch)
                      dense, such as channels_last; they stay where they are. A torch.nn.Parameter that requires no gradient
                      is broadcast, and has no number and no gradient here; one with two names (tied weights) has one number
    buffers           likewise, of any type, such as model.named_buffers(): for sync_buffers(). None: those of the module
    average           False: the sum instead of the mean
    broadcast         False: every rank has loaded the same values
    find_unused       not every gradient is made in every step: those that no ready() reported count as zeros
    static_graph      the same gradients are made in every step
    join              True: ranks may have different numbers of steps (join()); 'active': then the mean is over the ranks
                      that still train
    weighted          the mean may have weights: set_weight()
    bucket_bytes, first_bucket_bytes   a bucket closes when it reaches this; 0: 25 MiB, 1 MiB
    comm_dtype        'float16' or 'bfloat16': float32 gradients are sent in that type; 'float32': those of 16 bits are
                      summed in float32; None: as they are
    name              of the model, for error messages

    Names, types and shapes are compared between the ranks. Raises Error, TypeError, ValueError.
    """

    _all = weakref.WeakSet()  # those with attach()
    _optim_create = 'cddp_optim_create'

    def __init__(self, comm, params, *, buffers=None, average=True, broadcast=True, find_unused=False, static_graph=False, join=False,
                 weighted=False, bucket_bytes=0, first_bucket_bytes=0, comm_dtype=None, name=None):
        buffers = params if buffers is None and hasattr(params, 'named_buffers') else buffers
        self._again, self._buffers_again = _again(params, 'named_parameters'), _again(buffers, 'named_buffers')
        pairs = list(_named(self._again() if self._again else params))
        buffers = list(_named(self._buffers_again() if self._buffers_again else buffers or ()))
        if comm_dtype not in _COMM_DTYPES:
            raise ValueError(f"DDP: comm_dtype {comm_dtype!r} is unknown; it is 'float16', 'bfloat16', 'float32' or None")
        if join not in (False, True, 'active'):
            raise ValueError(f"DDP: join {join!r} is unknown; it is False, True or 'active'")
        if len({n for n, _ in pairs}) != len(pairs):
            raise ValueError('DDP: two parameters have the same name')
        self._frozen = [pair for pair in pairs if _is_frozen(pair[1])]
        pairs = [pair for pair in pairs if not _is_frozen(pair[1])]
        unique = {}
        for pair in pairs:
            unique.setdefault(_key(*pair), pair)
        numbers = {key: i for i, key in enumerate(unique)}
        self._index = {n: numbers[_key(n, p)] for n, p in pairs}
        pairs = list(unique.values())
        self._names = [n for n, _ in pairs]
        self._params = [p for _, p in pairs]
        self._find_unused = find_unused
        views = []
        for n, p in pairs:
            views.append(View(_in_memory_order(p), 'DDP', f"parameter '{n}'"))
            if views[-1].kind not in ('f', 'bf'):
                raise TypeError(f"DDP: parameter '{n}' is not of a floating-point type")
        reduced = [_with_an_element(p, view) for p, view in zip(self._params, views)]
        copied = [(n, View(_in_memory_order(b), 'DDP', f"buffer '{n}'")) for n, b in buffers]
        copied = [(n, view) for n, view in copied if view.items > 0]
        options = DdpOptions(size=sizeof(DdpOptions), comm_dtype=_COMM_DTYPES[comm_dtype], bucket_bytes=bucket_bytes,
                             first_bucket_bytes=first_bucket_bytes, name=None if name is None else name.encode(),
                             buffers=_describe(copied), n_buffers=len(copied))
        options.flags = ((0 if broadcast else DDP_NO_BROADCAST) | (0 if average else DDP_SUM) |
                         (DDP_FIND_UNUSED if find_unused else 0) | (DDP_STATIC_GRAPH if static_graph else 0) |
                         (DDP_JOIN if join else 0) | (DDP_JOIN_ACTIVE if join == 'active' else 0) |
                         (DDP_WEIGHTED if weighted else 0))
        handle = c_void_p()
        check(lib().cddp_ddp_create(byref(handle), comm.handle, _describe(list(zip(self._names, reduced))), len(pairs), byref(options)))
        self._reducer = _Reducer(handle, reduced + [view for _, view in copied])
        self._grads = [self._make_grad(i, view) for i, view in enumerate(views)]
        if broadcast:
            self._broadcast_frozen(comm)
        self._known, self._known_buffers = ([(n, t, t.detach()) for n, t in some if hasattr(t, 'data_ptr') and t.numel() > 0]
                                            for some in (pairs, buffers))
        self._attached = False
        self._optim = None
        self._syncs = True
        self._made = set()      # gradients that were made since the last step, and
        self._reported = set()  # those that ready() knows of

    def _make_grad(self, i, view):
        param = _in_memory_order(self._params[i])
        memory = None
        if view.items > 0:
            memory = (ctypes.c_char * nbytes(view)).from_address(lib().cddp_ddp_grad(self._reducer.handle, i))
            memory.owner = self._reducer  # every array over this memory keeps it
        grad = like(param, view, view.shape, memory)
        order = memory_order(self._params[i])
        return grad if order is None else grad.permute([order.index(d) for d in range(len(order))])

    def _broadcast_frozen(self, comm):
        """Broadcasts what has no gradient, once the ranks know that they agree on it."""
        views = [View(_in_memory_order(p), 'DDP', f"parameter '{n}'") for n, p in self._frozen]
        kinds = repr([(n, view.shape, view.dtype) for (n, _), view in zip(self._frozen, views)])
        hashes = comm.all_gather(array.array('q', [zlib.crc32(kinds.encode())])).tolist()
        other = next((rank for rank, (h,) in enumerate(hashes) if h != hashes[0][0]), None)
        if other is not None:
            raise Error(Status.MISMATCH, f'DDP: the parameters that require no gradient differ between rank 0 and rank {other} in number, '
                                         f'name, type or shape; this rank has {", ".join(n for n, _ in self._frozen) or "none"}')
        for _, p in self._frozen:
            comm.broadcast(_in_memory_order(p))

    @property
    def handle(self):
        """The cddp_ddp *, as a ctypes.c_void_p."""
        if self._reducer is None:
            raise RuntimeError('the reducer is closed')
        return self._reducer.handle

    def _number(self, which):
        return _number_of(which, self._index, len(self._params), 'DDP has no parameter')

    def __len__(self):
        return len(self._params)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def grad(self, which):
        """The gradient of a parameter, by name or number: an array as the parameter, with its shape, at a fixed place.

        The backward pass writes it anew in every step. Between ready() and wait() it must not be touched. numpy
        parameters have numpy gradients, PyTorch's have tensors, others have a memoryview.
        """
        self.handle  # pylint: disable=pointless-statement
        return self._grads[self._number(which)]

    def ready(self, which):
        """The gradient of this parameter is complete for this step; its bucket starts when it is full. Never blocks."""
        check(lib().cddp_ddp_grad_ready(self.handle, self._number(which)))

    def set_weight(self, weight):
        """Sets this rank's weight in the mean of the next step, such as its number of samples; before its first ready().

        Needs weighted=True. A rank that sets none counts as 1, if another sets one. The ready() that fills the first
        bucket waits until every rank has begun the step. A sum of 0 raises Error with Status.INVALID in wait().
        """
        check(lib().cddp_ddp_set_weight(self.handle, weight))

    def wait(self):
        """Blocks until every gradient of this step is the mean over all ranks. Once per step."""
        self._close_step()
        self._end_step(lib().cddp_ddp_wait(self.handle))

    def wait_param(self, which):
        """Blocks until the gradient of this one parameter is the mean; wait() is still to be called."""
        check(lib().cddp_ddp_wait_param(self.handle, self._number(which)))

    def was_used(self, which):
        """Whether any rank reported this gradient in the last step; every rank gets the same answer. Between two steps.

        Without find_unused and static_graph all are used. With attach() and find_unused, a parameter whose .grad is not
        None at wait() counts as used, too: zero_grad() sets it to None.
        """
        used = c_int()
        check(lib().cddp_ddp_was_used(self.handle, self._number(which), byref(used)))
        return used.value != 0

    def sync_buffers(self):
        """Copies rank 0's buffers to every rank. A collective: before the first forward pass of a step, as in PyTorch.

        With join they are those of the highest rank that still trains; then every step begins with this call.
        """
        with _brought(self._known_buffers, self._buffers_again):
            check(lib().cddp_ddp_sync_buffers(self.handle))

    def join(self):
        """Takes part in the steps of the other ranks until none has samples left; a rank calls it after its last step.

        Then all ranks have the parameters and buffers of the one that trained longest. Needs DDP(join=True).
        """
        self._keep_grads()
        self._made.clear()
        with _brought(self._known, self._again), _brought(self._known_buffers, self._buffers_again):
            check(lib().cddp_ddp_join(self.handle))

    def grad_norm(self, norm_type=2.0):
        """Returns the norm of all gradients as one vector: norm_type 2 or infinity. Between wait() and the next step.

        With an Optim, call it before its step().
        """
        if self._optim is not None:
            self._close_step()
        norm = c_double()
        check(lib().cddp_ddp_grad_norm(self.handle, norm_type, byref(norm)))
        return norm.value

    def clip_grad_norm(self, max_norm, norm_type=2.0, error_if_nonfinite=False):
        """Scales the gradients so that their norm is max_norm at most, and returns the norm from before.

        With error_if_nonfinite a NaN or infinity raises Error with Status.NONFINITE on every rank, and nothing changes.
        """
        if self._optim is not None:
            self._close_step()
        norm = c_double(math.nan)
        check(lib().cddp_ddp_clip_grad_norm(self.handle, max_norm, norm_type, error_if_nonfinite, byref(norm)))
        return norm.value

    def get_stats(self):
        """Returns where the time of the steps went, on this rank: a named tuple with the members of cddp_ddp_stats.

        Sums over `steps` steps, in ns: step_ns, and its parts forward_ns, backward_ns, comm_ns, exposed_ns, hidden_ns,
        thread_ns, late_ns, waiting_ns, transfer_ns; last_step_ns and so on are those of the last step. slowest_rank and last_slowest_rank are the
        rank that this one has waited for longest, or None. Experimental: members may change. It waits for no rank.
        """
        stats = DdpStats(size=sizeof(DdpStats))
        check(experimental('cddp_ddp_get_stats')(self.handle, byref(stats)))
        values = {name: getattr(stats, name) for name in Stats._fields}
        for name in ('slowest_rank', 'last_slowest_rank'):
            values[name] = values[name] if values[name] >= 0 else None
        return Stats(**values)

    def attach(self):
        """Lets PyTorch's backward() write the gradients and report them, so that a step is

            loss.backward()
            ddp.wait()
            optimizer.step()
            optimizer.zero_grad()

        After wait() every .grad is what PyTorch's DistributedDataParallel leaves there with gradient_as_bucket_view: the
        mean over all ranks. With find_unused or static_graph, that of a parameter that no rank used stays as it is, also
        None. Until the first backward() no .grad is touched. An older DDP of these parameters ends. Returns self.
        """
        for n, p in zip(self._names, self._params):
            if not getattr(p, 'requires_grad', False):
                raise TypeError(f"DDP.attach: parameter '{n}' is not a PyTorch tensor that requires a gradient")
        for other in list(DDP._all):
            if not {id(p) for p in other._params}.isdisjoint(map(id, self._params)):
                other._detach()
        ddp = weakref.ref(self)  # parameters must not keep the DDP
        hooks = [p.register_post_accumulate_grad_hook(lambda p, i=i: ddp()._on_grad(i, p)) for i, p in enumerate(self._params)]
        self._detach = weakref.finalize(self, lambda: [hook.remove() for hook in hooks])
        DDP._all.add(self)
        self._attached = True
        return self

    @contextlib.contextmanager
    def no_sync(self):
        """Within it, backward() only adds to .grad, and nothing is sent: for all passes of a step but the last.

            with ddp.no_sync():
                loss(model(first)).backward()
            loss(model(second)).backward()
            ddp.wait()
        """
        if not self._attached:
            raise RuntimeError('DDP.no_sync is for attach(); without it, add to the gradients, and call ready() after the last pass')
        before, self._syncs = self._syncs, False
        try:
            yield self
        finally:
            self._syncs = before

    def _on_grad(self, i, p):
        self._made.add(i)
        if self._syncs:
            self._report(i, p)

    def _report(self, i, p):
        """Brings .grad into the reducer's memory, where it stays, and reports it."""
        if p.grad is not None and p.grad.is_sparse:
            raise TypeError(f"DDP: parameter '{self._names[i]}' has a sparse gradient; make it dense (sparse=False)")
        again = i in self._reported
        self._copy_in(i, p)
        p.grad = self._grads[i]
        self._reported.add(i)
        try:
            self.ready(i)
        except Error as error:
            if not again or error.status is not Status.STATE:
                raise
            end = 'wait()' if self._optim is None else 'Optim.step()'
            raise Error(Status.STATE, f"the gradient of parameter '{self._names[i]}' was made again in this step: call {end} after backward(), "
                                      'or make all passes of a step but the last within no_sync()') from error

    def _copy_in(self, i, p):
        if p.grad is None:  # zero_grad() after a pass within no_sync()
            self._grads[i].zero_()
        elif not self._is_here(i, p):
            self._grads[i].copy_(p.grad.detach())

    def _is_here(self, i, p):
        return p.grad is not None and p.grad.data_ptr() == self._grads[i].data_ptr()

    def _is_due(self, i, p):
        """Whether a gradient that the last pass did not make is to be sent nevertheless: its .grad has a value of before."""
        return i in self._made or (self._find_unused and p.grad is not None)

    def _close_step(self):
        """Reports, before the end of a step, gradients of passes within no_sync(), and those that were not set to None."""
        if not self._attached:
            return
        if not self._syncs:
            raise RuntimeError('the step cannot end within DDP.no_sync: nothing has been sent; leave it before the last backward()')
        if not self._detach.alive:
            raise RuntimeError('DDP: another DDP was attached to these parameters after this one; use that one')
        for n, p in self._frozen:
            if p.requires_grad:
                raise RuntimeError(f"parameter '{n}' did not require a gradient when the DDP was made, so no rank averages its gradient; "
                                   f'make a new DDP')
        known = {id(p) for p in (*self._params, *(p for _, p in self._frozen))}
        for n, p in _named(self._again() if self._again else ()):
            if p.grad is not None and id(p) not in known:
                raise RuntimeError(f"parameter '{n}' is another tensor than when the DDP was made, or a new one, so no rank averages its "
                                   f'gradient; make a new DDP')
        for i, p in enumerate(self._params):
            if i not in self._reported and self._is_due(i, p):
                self._report(i, p)

    _close_skipped = _close_step

    def _end_step(self, status):
        """Takes the status of what ended a step."""
        try:
            check(status)
        except Error as error:
            if error.status in _STEP_IS_OVER or (error.status is Status.INVALID and self._is_between_steps()):
                self._settle()
            raise
        self._settle()

    def _is_between_steps(self):
        """Whether the step is over: it is if its weights were all 0, and goes on if an argument was wrong."""
        return lib().cddp_ddp_was_used(self.handle, 0, byref(c_int())) == Status.OK

    def _settle(self):
        """Gives a parameter that only other ranks used its gradient. One that no rank used keeps what it has."""
        for i, p in enumerate(self._params if self._attached else ()):
            if self._optim is not None:
                p.grad = None  # what the reducer's memory holds now is of no use
            elif i not in self._reported and self.was_used(i):
                p.grad = self._grads[i]
            elif i not in self._reported and not self._is_here(i, p):
                self._grads[i].zero_()  # grad_norm() counts no gradient of an earlier step
        self._made.clear()
        self._reported.clear()

    def _keep_grads(self):
        """Takes each .grad out of the reducer's memory, which the steps of other ranks are going to use."""
        for i, p in enumerate(self._params if self._attached else ()):
            if self._is_here(i, p):
                p.grad = p.grad.clone()

    def close(self):
        """Ends the reducer; local, before or after the communicator's end.

        Gradients of grad() that are still held keep their memory, and with it the reducer.
        """
        if self._attached:
            self._detach()
        self._attached = False
        self._grads = []
        self._reducer = None
