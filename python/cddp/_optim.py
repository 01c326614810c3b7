# SPDX-License-Identifier: Apache-2.0
"""The optimizer whose state is divided among the ranks."""
from ctypes import byref, c_size_t, c_uint64, c_void_p, pointer, sizeof

from cddp._abi import OPTIM_GROUP_FROZEN, OPTIM_NESTEROV, OPTIM_SKIP_NONFINITE, OptimGroup, OptimKind, OptimOptions, OptimStepArgs, \
    check, experimental
from cddp._ddp import _brought

_KINDS = {'sgd': OptimKind.SGD, 'adam': OptimKind.ADAM, 'adamw': OptimKind.ADAMW}


class Optim:
    """Updates the parameters of a DDP or FSDP; each rank keeps the state of its share alone. Experimental.

        optim = cddp.Optim(ddp, 'adamw', lr=1e-3)   # a collective
        for x, y in batches:
            loss_function(model(x), y).backward()   # of ddp.attach(), or grad() and ready()
            optim.step()                            # in place of ddp.wait() and another optimizer

    kind           'sgd', 'adam' or 'adamw', as PyTorch's
    lr, weight_decay, momentum, dampening, betas, eps, nesterov   None: PyTorch's default
    groups         dicts with 'params' (names or numbers), and 'lr_factor' (1), 'weight_decay' (as above) or 'frozen': True

    step() leaves no gradients: with attach() every .grad is None after it. Raises Error, ValueError; with Status.UNSUPPORTED
    for DDP(join=True).
    """

    def __init__(self, ddp, kind, *, lr=None, weight_decay=None, momentum=None, dampening=None, betas=None, eps=None, nesterov=False,
                 groups=()):
        if kind not in _KINDS:
            raise ValueError(f"Optim: kind {kind!r} is unknown; it is one of {', '.join(_KINDS)}")
        options = OptimOptions()
        experimental('cddp_optim_defaults')(byref(options), sizeof(OptimOptions), _KINDS[kind])
        beta1, beta2 = betas or (None, None)
        for member, value in (('lr', lr), ('weight_decay', weight_decay), ('momentum', momentum), ('dampening', dampening),
                              ('beta1', beta1), ('beta2', beta2), ('eps', eps)):
            if value is not None:
                setattr(options, member, value)
        options.flags = OPTIM_NESTEROV if nesterov else 0
        groups = list(groups)
        described = (OptimGroup * max(1, len(groups)))()
        for at, group in zip(described, groups):
            unknown = set(group) - {'params', 'lr_factor', 'weight_decay', 'frozen'}
            if unknown:
                raise ValueError(f'Optim: a group has {sorted(unknown)}; it may have params, lr_factor, weight_decay and frozen')
            numbers = [ddp._number(which) for which in group['params']]
            at.size = sizeof(OptimGroup)
            at.params = (c_size_t * len(numbers))(*numbers)
            at.n_params = len(numbers)
            at.lr_factor = group.get('lr_factor', 1)
            at.weight_decay = group.get('weight_decay', options.weight_decay)
            at.flags = OPTIM_GROUP_FROZEN if group.get('frozen') else 0
        options.groups = described
        options.n_groups = len(groups)
        handle = c_void_p()
        check(experimental(ddp._optim_create)(byref(handle), ddp.handle, byref(options)))
        self._handle = handle
        self._destroy = experimental('cddp_optim_destroy')
        self._ddp = ddp
        ddp._optim = self  # so that both end together: ranks end an optimizer in the same step

    @property
    def handle(self):
        """The cddp_optim *, as a ctypes.c_void_p."""
        if self._handle is None:
            raise RuntimeError('the optimizer is closed')
        return self._handle

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def step(self, *, lr=0.0, grad_scale=0.0, max_norm=0.0, skip_nonfinite=False):
        """Updates every parameter by its mean gradient, and ends the step. Every rank passes the same.

        lr             of this step alone; 0: as set
        grad_scale     gradients are multiplied by it, such as 1/the loss's scale; 0: as set, or 1
        max_norm       gradients are clipped to this norm; 0: they are not
        skip_nonfinite a step with a NaN or an infinity in a gradient changes nothing, and raises Error with Status.NONFINITE
        """
        args = OptimStepArgs(size=sizeof(OptimStepArgs), flags=OPTIM_SKIP_NONFINITE if skip_nonfinite else 0, lr=lr,
                             grad_scale=grad_scale, max_norm=max_norm)
        handle = self.handle
        self._ddp._close_step()
        with _brought(self._ddp._known):
            self._ddp._end_step(experimental('cddp_optim_step')(handle, pointer(args)))

    def skip(self):
        """Ends the step without an update. An FSDP needs no more gradients for it."""
        handle = self.handle
        self._ddp._close_skipped()
        self._ddp._end_step(experimental('cddp_optim_skip')(handle))

    def set_lr(self, lr):
        """Sets the learning rate from the next step on, of all groups by their factors."""
        check(experimental('cddp_optim_set_lr')(self.handle, lr))

    def set_grad_scale(self, scale):
        """Sets what gradients are multiplied by from the next step on."""
        check(experimental('cddp_optim_set_grad_scale')(self.handle, scale))

    def skipped(self):
        """Returns how many steps skip_nonfinite has left out."""
        steps = c_uint64()
        check(experimental('cddp_optim_skipped')(self.handle, byref(steps)))
        return steps.value

    @property
    def state_bytes(self):
        """The bytes that this rank holds for its share."""
        return experimental('cddp_optim_state_bytes')(self.handle)

    def close(self):
        """Frees the optimizer; a DDP then averages whole gradients again. Every rank does so between the same steps."""
        if self._handle is not None:
            self._destroy(self._handle)
            self._handle = None
            self._ddp._optim = None

    def __del__(self):
        if getattr(self, '_handle', None) is not None:
            self.close()
