# SPDX-License-Identifier: Apache-2.0
"""The reducer: gradients are averaged in buckets while the backward pass still runs."""
import collections
import ctypes
import math
from ctypes import byref, c_double, c_size_t, c_void_p, sizeof

from cddp._abi import DDP_FIND_UNUSED, DDP_NO_BROADCAST, DDP_STATIC_GRAPH, DDP_SUM, DdpOptions, DdpStats, Dtype, Param, check, experimental, lib
from cddp._arrays import View, like, nbytes

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


def _named(params):
    if hasattr(params, 'items'):
        params = params.items()
    for i, item in enumerate(params):
        yield item if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) else (str(i), item)


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

    params            the parameters in forward order: a dict, (name, array) pairs such as model.named_parameters(), or
                      arrays alone. Floating-point, contiguous, in host memory; they stay where they are
    average           False: the sum instead of the mean
    broadcast         False: every rank has loaded the same values
    find_unused       not every gradient is made in every step: those that no ready() reported count as zeros
    static_graph      the same gradients are made in every step
    bucket_bytes, first_bucket_bytes   a bucket closes when it reaches this; 0: 25 MiB, 1 MiB
    comm_dtype        'float16' or 'bfloat16': float32 gradients are sent in that type; 'float32': those of 16 bits are
                      summed in float32; None: as they are
    name              of the model, for error messages

    Names, types and shapes are compared between the ranks. Raises Error, TypeError, ValueError.
    """

    def __init__(self, comm, params, *, average=True, broadcast=True, find_unused=False, static_graph=False, bucket_bytes=0,
                 first_bucket_bytes=0, comm_dtype=None, name=None):
        pairs = list(_named(params))
        if comm_dtype not in _COMM_DTYPES:
            raise ValueError(f"DDP: comm_dtype {comm_dtype!r} is unknown; it is 'float16', 'bfloat16', 'float32' or None")
        self._names = [n for n, _ in pairs]
        self._index = {n: i for i, n in enumerate(self._names)}
        if len(self._index) != len(pairs):
            raise ValueError('DDP: two parameters have the same name')
        self._params = [p for _, p in pairs]
        views = []
        for n, p in pairs:
            views.append(View(p, 'DDP', f"parameter '{n}'"))
            if views[-1].kind not in ('f', 'bf'):
                raise TypeError(f"DDP: parameter '{n}' is not of a floating-point type")
        array = (Param * len(pairs))()
        for at, n, view in zip(array, self._names, views):
            at.size = sizeof(Param)
            at.name = n.encode()
            at.data = view.address
            at.count = view.items
            at.dtype = view.dtype
            at.n_dims = len(view.shape)
            at.shape = (c_size_t * max(1, len(view.shape)))(*view.shape) if view.shape else None
        options = DdpOptions(size=sizeof(DdpOptions), comm_dtype=_COMM_DTYPES[comm_dtype], bucket_bytes=bucket_bytes,
                             first_bucket_bytes=first_bucket_bytes, name=None if name is None else name.encode())
        options.flags = ((0 if broadcast else DDP_NO_BROADCAST) | (0 if average else DDP_SUM) |
                         (DDP_FIND_UNUSED if find_unused else 0) | (DDP_STATIC_GRAPH if static_graph else 0))
        handle = c_void_p()
        check(lib().cddp_ddp_create(byref(handle), comm.handle, array, len(pairs), byref(options)))
        self._reducer = _Reducer(handle, views)
        self._grads = [self._make_grad(i) for i in range(len(pairs))]
        self._hooks = []

    def _make_grad(self, i):
        view = self._reducer.views[i]
        memory = (ctypes.c_char * nbytes(view)).from_address(lib().cddp_ddp_grad(self._reducer.handle, i))
        memory.owner = self._reducer  # every array over this memory keeps it
        return like(self._params[i], view, view.shape, memory)

    @property
    def handle(self):
        """The cddp_ddp *, as a ctypes.c_void_p."""
        if self._reducer is None:
            raise RuntimeError('the reducer is closed')
        return self._reducer.handle

    def _number(self, which):
        if isinstance(which, str):
            try:
                return self._index[which]
            except KeyError:
                raise ValueError(f"DDP: there is no parameter '{which}'") from None
        if not 0 <= which < len(self._params):
            raise ValueError(f'DDP: there is no parameter {which}; there are {len(self._params)}')
        return which

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

    def wait(self):
        """Blocks until every gradient of this step is the mean over all ranks. Once per step."""
        check(lib().cddp_ddp_wait(self.handle))

    def wait_param(self, which):
        """Blocks until the gradient of this one parameter is the mean; wait() is still to be called."""
        check(lib().cddp_ddp_wait_param(self.handle, self._number(which)))

    def grad_norm(self, norm_type=2.0):
        """Returns the norm of all gradients as one vector: norm_type 2 or infinity. Between wait() and the next step."""
        norm = c_double()
        check(lib().cddp_ddp_grad_norm(self.handle, norm_type, byref(norm)))
        return norm.value

    def clip_grad_norm(self, max_norm, norm_type=2.0, error_if_nonfinite=False):
        """Scales the gradients so that their norm is max_norm at most, and returns the norm from before.

        With error_if_nonfinite a NaN or infinity raises Error with Status.NONFINITE on every rank, and nothing changes.
        """
        norm = c_double(math.nan)
        check(lib().cddp_ddp_clip_grad_norm(self.handle, max_norm, norm_type, error_if_nonfinite, byref(norm)))
        return norm.value

    def get_stats(self):
        """Returns where the time of the steps went, on this rank: a named tuple with the members of cddp_ddp_stats.

        Sums over `steps` steps, in ns: step_ns, and its parts forward_ns, backward_ns, comm_ns, exposed_ns, hidden_ns,
        thread_ns, late_ns; last_step_ns and so on are those of the last step. slowest_rank and last_slowest_rank are the
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

        Every parameter has to require a gradient. After wait() each parameter's .grad is the mean. Returns self.
        """
        for n, p in zip(self._names, self._params):
            if not getattr(p, 'requires_grad', False):
                raise TypeError(f"DDP.attach: parameter '{n}' is not a PyTorch tensor that requires a gradient")
        for i, p in enumerate(self._params):
            p.grad = self._grads[i]
            self._hooks.append(p.register_post_accumulate_grad_hook(lambda p, i=i: self._on_grad(i, p)))
        return self

    def _on_grad(self, i, p):
        grad = self._grads[i]
        if p.grad.data_ptr() != grad.data_ptr():  # zero_grad() has set it to None
            grad.copy_(p.grad)
            p.grad = grad
        self.ready(i)

    def close(self):
        """Ends the reducer; local, before or after the communicator's end.

        Gradients of grad() that are still held keep their memory, and with it the reducer.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._grads = []
        self._reducer = None
