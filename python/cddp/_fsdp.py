# SPDX-License-Identifier: Apache-2.0
"""Models whose parameters no rank holds as a whole."""
import collections
import contextlib
import ctypes
import sys
from ctypes import byref, c_size_t, c_void_p, sizeof

from cddp._abi import FILL, FSDP_KEEP, Error, FsdpOptions, FsdpShardInfo, FsdpUnit, Status, check, experimental
from cddp._arrays import View, like, memory_order, nbytes
from cddp._ddp import _STEP_IS_OVER, _describe, _in_memory_order, _named, _number_of

LIVE_UNITS = 3  # libcddp's default

Shard = collections.namedtuple('Shard', ('begin', 'param', 'grad'))


class _Model:
    """The cddp_fsdp: gone with the last array that points into it."""

    def __init__(self, handle):
        self.handle = handle
        self._destroy = experimental('cddp_fsdp_destroy')

    def __del__(self):
        self._destroy(self.handle)


class _Parameter:
    """What a parameter is, without its memory."""

    def __init__(self, name, array):
        self.name = name
        self.order = memory_order(array)
        self.view = View(_in_memory_order(array), 'FSDP', f"parameter '{name}'", write=False)
        if self.view.kind not in ('f', 'bf'):
            raise TypeError(f"FSDP: parameter '{name}' is not of a floating-point type")
        if self.view.items == 0:
            raise Error(Status.UNSUPPORTED, f"FSDP: parameter '{name}' has no elements: leave it out of the units")
        self.nothing = like(array, self.view, (0,))
        self._seen = {}

    def forget(self):
        """Lets go of the program's array, once libcddp has its values."""
        self.view.release()
        self._seen.clear()

    def at(self, address, owner, write):
        """The array at an address of libcddp's memory, which keeps its owner."""
        if (address, write) not in self._seen:
            array = self._part(address, owner, write, self.view.shape, nbytes(self.view))
            if self.order is not None:
                array = array.permute([self.order.index(d) for d in range(len(self.order))])
            self._seen[address, write] = array
        return self._seen[address, write]

    def part(self, address, owner, count):
        """An array of `count` of its elements, in the order of its memory."""
        return self._part(address, owner, True, (count,), nbytes(self.view) // self.view.items * count) if count > 0 else self.nothing

    def _part(self, address, owner, write, shape, size):
        memory = (ctypes.c_char * size).from_address(address)
        memory.owner = owner
        if not write and not hasattr(self.nothing, 'data_ptr'):  # PyTorch has no tensors that are read-only
            memory = memoryview(memory).toreadonly()
        return like(self.nothing, self.view, shape, memory)


class _Unit:
    def __init__(self, name, params):
        self.name = name
        self.params = params  # name -> _Parameter
        self.is_reported = False


class FSDP:
    """Divides parameters, gradients and optimizer states of a model among the ranks. Experimental.

    The model consists of units, such as the blocks of a transformer. Each rank keeps an equal part of every unit, which is
    whole only while it computes.

        fsdp = cddp.FSDP(comm, units=[('first', {'w': w, 'b': b}), ...])   # a collective; rank 0's values count
        optim = cddp.Optim(fsdp, 'adamw', lr=1e-3)
        for step in ...:
            for u in ('first', ...):                   # the forward pass
                with fsdp.unit(u) as params:
                    ... params['w'] ...
            for u in (..., 'first'):                   # the backward pass
                with fsdp.unit(u) as params:
                    fsdp.grads(u)['w'][:] = ...
                fsdp.grads_ready(u)                    # averaged, and divided
            optim.step()

    Every rank makes these calls in the same order, from one thread. A PyTorch module on the CPU needs no such calls:

        fsdp = cddp.FSDP(comm, model, units=model.blocks)
        optim = cddp.Optim(fsdp, 'adamw', lr=1e-3)
        for x, y in batches:
            loss_function(model(x), y).backward()
            optim.step()

    Its parameters are whole in their unit's forward pass and in its part of the backward pass; any other use is an Error. Those
    in no unit form the unit 'root', which is kept. Every parameter must be used in every step.

    module         a PyTorch module, or None. Its buffers are broadcast
    units          (name, parameters) pairs or a dict, in forward order. Parameters are a dict, (name, array) pairs or arrays
                   alone: floating-point, in host memory, contiguous. They are not used after this call. With a module: modules in
                   it, a class of modules, or a function that returns whether a module is a unit. None is within another
    stage          3: parameters, gradients and states are divided; 2: parameters stay whole between the steps' ends
    keep           names of units that stay whole until the parameters change: for small ones
    fill           a function that makes a unit's values, so that no rank needs them all: called as fill(name, {name: array}),
                   once for each unit, it writes to the arrays. Then the values of `units`, or of the module, are not read
    max_live_units, max_live_gradients   units whose parameters, or gradients, are whole at a time; 0: 3 and 2

    Units are compared between the ranks. Raises Error, with Status.UNSUPPORTED for modules and units that cannot be divided,
    TypeError, ValueError.
    """

    _optim_create = 'cddp_optim_create_sharded'
    _known = ()  # nothing that Optim would write to

    def __init__(self, comm, module=None, *, units, stage=3, keep=(), fill=None, max_live_units=0, max_live_gradients=0):
        if comm.backend == 'nccl':
            raise Error(Status.UNSUPPORTED, "FSDP: the communicator is of backend 'nccl', whose memory is the GPU's; use init('cpu')")
        if module is None:
            self._units = [_Unit(name, {n: _Parameter(f'{name}.{n}', array) for n, array in _named(params)})
                           for name, params in (units.items() if hasattr(units, 'items') else units)]
        else:
            torch = sys.modules.get('torch')
            if torch is None or not isinstance(module, torch.nn.Module):
                raise TypeError(f'FSDP: module is a {type(module).__name__}; pass a PyTorch module, or units alone')
            from cddp import _fsdp_torch  # it imports PyTorch
            described = _fsdp_torch.describe(module, units)
            self._units = [_Unit(name, {n: _Parameter(n, p) for n, p in params.items()}) for name, _, params in described]
            keep = {*keep, *(name for name, unit, _ in described if unit is None)}
        self._names = {unit.name: u for u, unit in enumerate(self._units)}
        if len(self._names) != len(self._units):
            raise ValueError('FSDP: two units have the same name')
        self._numbers = {p.name: i for i, p in enumerate(p for unit in self._units for p in unit.params.values())}
        unknown = set(keep) - set(self._names)
        if unknown:
            raise ValueError(f'FSDP: keep names {sorted(unknown)}, which are not units')
        self._optim = None
        self._model = None
        self._hooks = None
        self._create(comm, fill, FsdpOptions(size=sizeof(FsdpOptions), stage=stage, max_live_units=max_live_units,
                                             max_live_gradients=max_live_gradients), keep)
        if module is not None:
            for _, buffer in module.named_buffers():
                if buffer.numel() > 0:
                    comm.broadcast(_in_memory_order(buffer))
            self._hooks = _fsdp_torch.Hooks(self, module, described, self._names if stage == 2 else keep, max_live_units or LIVE_UNITS)

    def _create(self, comm, fill, options, keep):
        described = (FsdpUnit * max(1, len(self._units)))()
        for at, unit in zip(described, self._units):
            at.size = sizeof(FsdpUnit)
            at.name = unit.name.encode()
            at.params = _describe([(p.name, p.view) for p in unit.params.values()])
            at.n_params = len(unit.params)
            at.flags = FSDP_KEEP if unit.name in keep else 0
        memories, raised = [], []

        def call_fill(_, u, data):
            try:
                unit = self._units[u]
                memories.append(_Owner())
                fill(unit.name, {n: p.at(data[i], memories[-1], True) for i, (n, p) in enumerate(unit.params.items())})
            except BaseException as error:  # pylint: disable=broad-except
                raised.append(error)
                return Status.INVALID
            return Status.OK

        if fill is not None:
            options.fill = FILL(call_fill)
        handle = c_void_p()
        status = experimental('cddp_fsdp_create')(byref(handle), comm.handle, described, len(self._units), byref(options))
        if raised:
            raise raised[0]
        check(status)
        self._model = _Model(handle)
        for memory in memories:
            memory.model = self._model
        for unit in self._units:
            for p in unit.params.values():
                p.forget()

    @property
    def handle(self):
        """The cddp_fsdp *, as a ctypes.c_void_p."""
        if self._model is None:
            raise RuntimeError('the sharded model is closed')
        return self._model.handle

    def _unit_number(self, which):
        return _number_of(which, self._names, len(self._units), 'FSDP has no unit')

    def _number(self, which):
        """Of a parameter, through all units: as the groups of Optim count."""
        return _number_of(which, self._numbers, len(self._numbers), 'FSDP has no parameter', '; it is called UNIT.PARAMETER')

    def __len__(self):
        return len(self._units)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def gather(self, which):
        """Begins to gather a unit, by name or number, and holds it until release(). Those that followed in the last step follow."""
        check(experimental('cddp_fsdp_gather')(self.handle, self._unit_number(which)))

    def wait(self, which):
        """Blocks until the unit is here."""
        check(experimental('cddp_fsdp_wait_unit')(self.handle, self._unit_number(which)))

    def params(self, which):
        """Waits for a unit that is held, and returns its parameters, whole: name -> array, read-only, until release().

        The memory is used again for other units: keep no array beyond release(). PyTorch's tensors must not be written to.
        """
        u = self._unit_number(which)
        self.wait(u)
        at = experimental('cddp_fsdp_param')
        return {n: p.at(at(self.handle, u, i), self._model, False) for i, (n, p) in enumerate(self._units[u].params.items())}

    def release(self, which):
        """Ends a hold of gather()."""
        check(experimental('cddp_fsdp_release')(self.handle, self._unit_number(which)))

    @contextlib.contextmanager
    def unit(self, which):
        """Within it, the unit is held: gather(), params(), and release() at the end."""
        self.gather(which)
        try:
            yield self.params(which)
        finally:
            self.release(which)

    def named_parameters(self):
        """Yields the name UNIT.PARAMETER and the whole array of each parameter, which is valid until the next one. A collective.

        For saving, evaluation or comparison: {n: a.copy() for n, a in fsdp.named_parameters()}.
        """
        for u, unit in enumerate(self._units):
            with self.unit(u) as params:
                for n, array in params.items():
                    yield unit.params[n].name, array

    def grads(self, which):
        """Returns where the gradients of a unit belong, name -> array: write every element, then call grads_ready().

        Their content before is unspecified. The first call for a unit in a step may wait for the gradients of another.
        """
        u = self._unit_number(which)
        return {n: self._grad(u, i, p) for i, (n, p) in enumerate(self._units[u].params.items())}

    def _grad(self, u, i, p):
        address = experimental('cddp_fsdp_grad')(self.handle, u, i)
        if address is None:
            check(Status.INVALID)  # raises the thread's last error
        return p.at(address, self._model, True)

    def grads_ready(self, which):
        """Reports the gradients of a unit as complete: once per unit and step. Never blocks."""
        u = self._unit_number(which)
        check(experimental('cddp_fsdp_grads_ready')(self.handle, u))
        self._units[u].is_reported = True

    def end_step(self):
        """Ends a step without an Optim: waits until shard() has the means of all gradients.

        Then the program updates shard()'s parameters, before the next gather() or forward pass.
        """
        self.handle  # pylint: disable=pointless-statement
        self._close_step()
        self._end_step(experimental('cddp_fsdp_end_step')(self.handle))

    def shard(self, which):
        """Returns this rank's part of a parameter, by the name UNIT.PARAMETER or number: (begin, param, grad).

        param and grad are flat arrays of its elements [begin, begin + their length), writable, which may be none. grad is the
        mean, from the end of a step to the next grads_ready() of the unit.
        """
        n = self._number(which)
        info = FsdpShardInfo(size=sizeof(FsdpShardInfo))
        u = 0
        while n >= len(self._units[u].params):
            n -= len(self._units[u].params)
            u += 1
        check(experimental('cddp_fsdp_shard')(self.handle, u, n, byref(info)))
        p = list(self._units[u].params.values())[n]
        return Shard(info.begin, *(p.part(address, self._model, info.count) for address in (info.param, info.grad)))

    def no_sync(self):
        """Within it, a module's backward() only adds to .grad, and nothing is sent: for all passes of a step but the last.

        Each rank then has whole gradients of all units.
        """
        if self._hooks is None:
            raise RuntimeError('FSDP.no_sync is for modules; without one, add to the gradients, and call grads_ready() after the last pass')
        return self._hooks.no_sync()

    @property
    def bytes(self):
        """The bytes that this rank holds, without optimizers."""
        return experimental('cddp_fsdp_bytes')(self.handle)

    def _close_step(self):
        """Checks, before the end of a step, that no gradient is missing: libcddp would end the job."""
        if self._hooks is not None:
            self._hooks.close_step(False)
        missing = [unit.name for unit in self._units if not unit.is_reported]
        if missing:
            raise Error(Status.STATE, f'FSDP: no gradients of {len(missing)} of {len(self._units)} units in this step, first of '
                                      f"'{missing[0]}': write grads() and call grads_ready() for each before the step's end")

    def _close_skipped(self):
        """Reports units without gradients before the end of a step that changes nothing."""
        if self._hooks is not None:
            self._hooks.close_step(True)
        for u, unit in enumerate(self._units):
            if not unit.is_reported:
                self.grads(u)
                self.grads_ready(u)

    def _end_step(self, status):
        """Takes the status of what ended a step."""
        try:
            check(status)
        except Error as error:
            if error.status in _STEP_IS_OVER:
                self._settle()
            raise
        self._settle()

    def _settle(self):
        if self._hooks is not None:
            self._hooks.settle()
        for unit in self._units:
            unit.is_reported = False

    def close(self):
        """Frees the model; local, before or after the communicator's end. Arrays that are still held keep its memory."""
        if self._hooks is not None:
            self._hooks.remove()
        for unit in self._units:
            for p in unit.params.values():
                p.forget()
        self._model = self._hooks = None


class _Owner:
    """Of memory that fill() writes to, before there is a model that can keep it."""

    model = None
