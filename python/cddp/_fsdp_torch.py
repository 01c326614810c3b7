# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules whose parameters are divided: hooks gather a unit before it computes, and report its gradients.

A parameter keeps its identity. Its .data is libcddp's memory while its unit is held; otherwise any use is an error. The
same unit may be elsewhere in the backward pass, so nothing that autograd saves in a unit's forward pass points to that
memory: pack() notes which parameter it was, and unpack() looks where it is now. (FSDP2 has a separate storage for each
parameter, which it resizes, and copies into: FSDPParam.free_unsharded_param.)
"""
import contextlib
import dataclasses
import functools

import torch

from cddp._abi import Error, Status
from cddp._ddp import _in_memory_order

ROOT = 'root'  # the unit of all parameters that belong to no other


def _unsupported(text):
    return Error(Status.UNSUPPORTED, f'FSDP: {text}')


def _chosen(module, units):
    """The units' names and modules. None is within another."""
    names = {}
    for name, m in module.named_modules():
        names.setdefault(m, name)
    if isinstance(units, type):
        chosen = [m for m in names if isinstance(m, units)]
    elif hasattr(units, '__iter__'):
        chosen = list(dict.fromkeys(units))
    else:
        chosen = [m for m in names if units(m)]
    for m in chosen:
        if m not in names:
            raise ValueError(f'FSDP: a unit ({type(m).__name__}) is not a part of the module')
        if isinstance(m, (torch.nn.ModuleList, torch.nn.ModuleDict)):
            raise _unsupported(f"unit '{names[m]}' is a {type(m).__name__}, which has no forward(): make units of its elements")
        outer = next((n for n in chosen if n is not m and m in set(n.modules())), None)
        if outer is not None:
            raise _unsupported(f"unit '{names[m]}' is within unit '{names[outer] or ROOT}', and units cannot be nested: choose one of them")
    return [(names[m] or ROOT, m) for m in chosen]


def describe(module, units):
    """Returns (name, module, {name: parameter}) for each unit, in the order of the module's parameters; the root's module is None."""
    chosen = _chosen(module, units)
    inside = {m for _, unit in chosen for m in unit.modules()}
    rest = [p for m in module.modules() if m not in inside for p in m.parameters(recurse=False)]
    owner = {}
    for name, params in [*((name, m.parameters()) for name, m in chosen), (None, rest)]:
        for p in params:
            if owner.setdefault(id(p), name) != name:
                where = f"and '{name}'" if name is not None else 'and outside of it'
                raise _unsupported(f"parameter '{next(n for n, q in module.named_parameters() if q is p)}' is used in unit '{owner[id(p)]}' "
                                   f'{where}: choose units that do not share parameters, or one that has both uses')
    found = {}
    for n, t in (*module.named_parameters(), *module.named_buffers()):
        if t.device.type != 'cpu':
            how = ": call module.to_empty(device='cpu'), and pass fill" if t.device.type == 'meta' else ''
            raise _unsupported(f"'{n}' is on {t.device}, and modules are divided on the CPU only{how}")
    for n, p in module.named_parameters():
        if not p.requires_grad:
            raise _unsupported(f"parameter '{n}' requires no gradient, but every parameter of a divided module is trained")
        found.setdefault(owner[id(p)], {})[n] = p
    modules = dict(chosen)
    return [(name or ROOT, modules.get(name), params) for name, params in found.items()]


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from _tensors(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensors(v)
    elif dataclasses.is_dataclass(value):
        yield from _tensors(vars(value))


def _address(tensor):
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided and tensor.device.type == 'cpu' else None


class _Absent(torch.nn.Parameter):
    """The class of a parameter while it is not here: any use of its elements raises Error."""

    _possible = {'grad', 'requires_grad', 'requires_grad_', 'is_leaf', 'grad_fn', 'dtype', 'device', 'layout', 'is_floating_point',
                 'is_complex', 'is_sparse', 'is_meta', 'is_cuda', 'register_hook', '_backward_hooks', '_post_accumulate_grad_hooks'}

    def __repr__(self):
        return f'<{self._cddp_what} of a divided module>'

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = func.__self__.__name__ if func.__name__ in ('__get__', '__set__') else func.__name__
        if name in cls._possible:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        what = next(t._cddp_what for t in _tensors([args, kwargs]) if isinstance(t, cls))
        raise Error(Status.STATE, f'FSDP: {name}: {what} is not here; it is whole in the forward pass of its unit alone: call the unit, or make '
                                  'units of its parts. fsdp.named_parameters() has all parameters')


class _Saved:
    """A tensor in a parameter's memory that autograd has saved."""

    def __init__(self, tensor, u, i, step):
        self.u, self.i, self.step, self.dtype = u, i, step, tensor.dtype
        self.where = tensor.storage_offset(), tensor.size(), tensor.stride()


class _Unit:
    """What hooks know of a unit."""

    def __init__(self, name, params, kept):
        self.name = name
        self.names = list(params)
        self.params = list(params.values())
        self.classes = [type(p) for p in self.params]
        self.nothing = [torch.empty(0, dtype=p.dtype) for p in self.params]
        self.kept = kept        # it is held until the step's end
        self.holds = 0          # forward passes that use it, and 1 for the backward pass
        self.back = False       # whether the backward pass holds it
        self.forwards = []      # the forward passes in progress
        self.uses = set()       # those whose backward pass has begun and not ended
        self.made = set()       # gradients that this backward pass has made
        self.here = []          # addresses of its parameters


class _Use:
    """One forward pass of a unit, and its backward pass."""

    def __init__(self):
        self.hooks = None       # of what autograd saves
        self.inputs = self.left = 0  # how many have a gradient, and how many of these are not made


class Hooks:
    """The hooks of one module."""

    def __init__(self, fsdp, module, described, keep, max_live):
        self._fsdp = fsdp
        self._module = module
        self._max_live = max_live
        self._units = [_Unit(name, params, unit is None or name in keep) for name, unit, params in described]
        self._where = {}    # address -> (unit, parameter), of the units that are held
        self._task = None   # the backward pass
        self._step = 0
        self._syncs = True
        self._handles = []
        for u, ((_, m, _), unit) in enumerate(zip(described, self._units)):
            if m is not None:
                self._handles += [m.register_forward_pre_hook(functools.partial(self._before_forward, u), prepend=True, with_kwargs=True),
                                  m.register_forward_hook(functools.partial(self._after_forward, u), always_call=True)]
            else:  # whichever part of the module is called, also alone
                owned = set(map(id, unit.params))
                self._handles += [part.register_forward_pre_hook(functools.partial(self._before_root, u), prepend=True)
                                  for part in module.modules() if part is module or not owned.isdisjoint(map(id, part.parameters(recurse=False)))]
            for i, (n, p) in enumerate(zip(unit.names, unit.params)):
                self._handles += [p.register_hook(functools.partial(self._before_grad, u)),
                                  p.register_post_accumulate_grad_hook(functools.partial(self._after_grad, u, i))]
                p._cddp_what = f"parameter '{n}' of unit '{unit.name}'"
                p.grad = None
            self._leave(unit)

    def __reduce__(self):  # a module refers to its hooks
        raise _unsupported('a divided module cannot be copied or pickled; fsdp.named_parameters() has its parameters')

    def remove(self):
        for handle in self._handles:
            handle.remove()

    # ------------------------------------------------------------------------------------------- holding units

    def _hold(self, u):
        unit = self._units[u]
        if unit.holds > 0 and unit.kept:
            return
        if unit.holds == 0:
            self._fsdp.gather(u)
            try:
                with torch.inference_mode(False):
                    here = list(self._fsdp.params(u).values())
            except BaseException:
                self._fsdp.release(u)
                raise
            for i, (p, kind, data) in enumerate(zip(unit.params, unit.classes, here)):
                p.__class__ = kind
                p.data = data
                unit.here.append(data.data_ptr())
                self._where[data.data_ptr()] = u, i
        unit.holds += 1

    @staticmethod
    def _leave(unit):
        for p, nothing in zip(unit.params, unit.nothing):
            p.data = nothing
            p.__class__ = _Absent

    def _drop(self, u, kept_too=False):
        unit = self._units[u]
        if unit.holds == 0 or (unit.kept and not kept_too):
            return
        unit.holds = 0 if unit.kept else unit.holds - 1
        if unit.holds == 0:
            self._leave(unit)
            for address in unit.here:
                del self._where[address]
            unit.here.clear()
            self._fsdp.release(u)

    def _hold_back(self, u):
        """Holds a unit for the backward pass, until its uses end, or all of its gradients are made, or the pass ends."""
        if not self._units[u].back:
            self._hold(u)
            self._units[u].back = True

    def _drop_back(self, u):
        if self._units[u].back:
            self._units[u].back = False
            self._drop(u)

    # ------------------------------------------------------------------------------------------- the forward pass

    def _before_root(self, u, *_):
        self._leave_broken_pass()
        self._hold(u)

    def _before_forward(self, u, _, args, kwargs):
        self._leave_broken_pass()
        self._hold(u)
        use = _Use()
        if torch.is_grad_enabled():
            # Activation checkpoints around the unit have hooks, too, which go on.
            outer = torch._C._autograd._top_saved_tensors_default_hooks(False)
            use.hooks = torch.autograd.graph.saved_tensors_hooks(functools.partial(self._pack, outer), functools.partial(self._unpack, outer))
            use.hooks.__enter__()
            for t in _tensors([args, kwargs]):
                if t.grad_fn is not None:
                    t.register_hook(functools.partial(self._after_backward, u, use))
                    use.inputs += 1
            use.left = use.inputs
        self._units[u].forwards.append(use)

    def _after_forward(self, u, module, args, out):
        """Also after an exception, even one of _before_forward."""
        unit = self._units[u]
        if not unit.forwards:
            return
        use = unit.forwards.pop()
        if use.hooks is not None:
            use.hooks.__exit__()
            use.hooks = None
        try:
            for t in _tensors(out):
                at, i = self._where.get(_address(t), (None, None))
                if at is not None and not self._units[at].kept:
                    raise _unsupported(f"the output of unit '{unit.name}' is in the memory of parameter '{self._units[at].names[i]}', which is "
                                       'used again: return a copy (clone())')
                if t.grad_fn is not None:
                    t.register_hook(functools.partial(self._before_backward, u, use))
        finally:
            self._drop(u)

    def _pack(self, outer, tensor):
        u, i = self._where.get(_address(tensor), (None, None))
        if u is not None:
            return _Saved(tensor, u, i, self._step)
        return (tensor, tensor._version) if outer is None else outer[0](tensor)

    def _unpack(self, outer, saved):
        if not isinstance(saved, _Saved):
            if outer is not None:
                return outer[1](saved)
            if saved[0]._version != saved[1]:  # as autograd does without hooks
                raise RuntimeError('one of the variables needed for gradient computation has been modified by an inplace operation: '
                                   f'{saved[0].type()} {list(saved[0].shape)} is at version {saved[0]._version}, not {saved[1]}')
            return saved[0]
        unit = self._units[saved.u]
        if saved.step != self._step:
            raise Error(Status.STATE, f"FSDP: backward() needs the parameters of unit '{unit.name}' of a step that is over: call it before "
                                      'the end of the step of its forward pass')
        if unit.holds == 0:
            self._begin_pass()
            self._hold_back(saved.u)
        offset, size, stride = saved.where
        return torch.empty(0, dtype=saved.dtype).set_(unit.params[saved.i].data.untyped_storage(), offset, size, stride)

    # ------------------------------------------------------------------------------------------- the backward pass

    def _begin_pass(self):
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._end_pass()
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._end_pass)

    def _end_pass(self):
        self._task = None
        for u, unit in enumerate(self._units):
            self._drop_back(u)
            unit.made.clear()
            unit.uses.clear()

    def _leave_broken_pass(self):
        """After an exception no callback ends a pass."""
        if self._task is not None and torch._C._current_graph_task_id() == -1:
            self._end_pass()

    def _before_backward(self, u, use, _):
        """An output of the unit has its gradient."""
        self._begin_pass()
        unit = self._units[u]
        unit.uses.add(use)
        if not unit.kept and not unit.back and len(unit.made) < len(unit.params):
            passing = [other for other in self._units if other.back and not other.kept]
            if unit.holds == 0 and len(passing) >= self._max_live:
                missing = next(n for i, n in enumerate(passing[-1].names) if i not in passing[-1].made)
                raise Error(Status.STATE, f"FSDP: backward() needs unit '{unit.name}', but {len(passing)} others still wait for gradients, such as "
                                          f"that of '{missing}': use every parameter in each pass, or give a larger max_live_units")
            self._hold_back(u)

    def _after_backward(self, u, use, _):
        """An input of the unit has its gradient; with the last one this use is over (FSDP2: RegisterPostBackwardFunction)."""
        use.left -= 1
        if use.left == 0:
            use.left = use.inputs  # for a graph that is retained
            self._units[u].uses.discard(use)
            if not self._units[u].uses:
                self._drop_back(u)

    def _before_grad(self, u, _):
        """A gradient is about to be added to .grad, which reads the parameter's layout."""
        self._begin_pass()
        self._hold_back(u)

    def _after_grad(self, u, i, p):
        unit = self._units[u]
        if p.grad.requires_grad:
            raise _unsupported(f"parameter '{unit.names[i]}' has a gradient of backward(create_graph=True)")
        if p.grad.is_sparse:
            raise _unsupported(f"parameter '{unit.names[i]}' has a sparse gradient; make it dense (sparse=False)")
        unit.made.add(i)
        if len(unit.made) == len(unit.params):
            self._drop_back(u)
            if self._syncs:
                self._report(u)

    def _report(self, u):
        """Gives libcddp the gradients of a unit."""
        unit = self._units[u]
        if self._fsdp._units[u].is_reported:
            raise Error(Status.STATE, f"FSDP: the gradients of unit '{unit.name}' were made again in this step: end the step after backward(), or "
                                      'make all passes of a step but the last within no_sync()')
        for p, memory in zip(unit.params, self._fsdp.grads(u).values()):
            memory.copy_(p.grad)
            p.grad = None
        self._fsdp.grads_ready(u)

    @contextlib.contextmanager
    def no_sync(self):
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    # ------------------------------------------------------------------------------------------- the end of a step

    def close_step(self, skip):
        """Reports gradients of passes within no_sync(), and releases units that were kept."""
        self._end_pass()
        if not self._syncs:
            raise RuntimeError('the step cannot end within FSDP.no_sync: nothing has been sent; leave it before the last backward()')
        known = {id(p) for unit in self._units for p in unit.params}
        for n, p in self._module.named_parameters():
            if p.grad is not None and id(p) not in known:
                raise RuntimeError(f"parameter '{n}' is another tensor than when the FSDP was made, or a new one, so no rank averages its "
                                   'gradient; make a new FSDP')
        due = [u for u, unit in enumerate(self._fsdp._units) if not unit.is_reported]
        missing = [n for u in due for n, p in zip(self._units[u].names, self._units[u].params) if p.grad is None]
        if missing and not skip:
            more = '' if len(missing) == 1 else f' and {len(missing) - 1} more'
            raise Error(Status.STATE, f"FSDP: no gradient of parameter '{missing[0]}'{more} in this step: every parameter must be used in it; "
                                      'leave out of the module what is not, or end the step with Optim.skip()')
        for u in reversed(due):
            if not skip:
                self._report(u)
        for u, _ in enumerate(self._units):
            self._drop(u, kept_too=True)

    def settle(self):
        """After the end of a step."""
        self._step += 1
        for unit in self._units:
            for p in unit.params:
                p.grad = None
                torch.autograd.graph.increment_version(p)  # a backward pass that comes too late is an error
