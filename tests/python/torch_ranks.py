# SPDX-License-Identifier: Apache-2.0
"""One rank of a job in which cddp.DDP.attach() and PyTorch's DistributedDataParallel (gloo) train copies of one model.

Each class below is a case. After every step the two copies have the same parameters, buffers and .grad, also where that is
None. Then the case runs again with a part of attach() broken in the way that the case names, and must fail.
"""
import contextlib
import copy
import os
import weakref

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import cddp
from cddp import _ddp, _optim

STEPS = 20
LIMIT = 1e-6
CLIPPED = 0.05  # the norm of the divided optimizer's gradients
EPS = 1e-3  # large enough that gradients which are nothing but rounding stay small


class Theirs:
    """PyTorch's."""

    def __init__(self, case, model, _comm):
        self.model, self.case = model, case
        self.ddp = DistributedDataParallel(model, **case.theirs)
        self.call, self.no_sync = self.ddp, self.ddp.no_sync

    def begin(self):
        pass

    def end(self):
        pass

    @contextlib.contextmanager
    def uneven(self):
        with self.ddp.join(divide_by_initial_world_size=self.case.ours['join'] is True):
            yield


class Ours:
    """libcddp's."""

    def __init__(self, case, model, comm):
        self.model, self.case = model, case
        self.ddp = cddp.DDP(comm, case.parameters(model), buffers=model.named_buffers(), bucket_bytes=64, first_bucket_bytes=64,
                            **case.ours).attach()  # a bucket for nearly each gradient, while the others are being made
        self.call, self.no_sync = model, self.ddp.no_sync
        self.optim = cddp.Optim(self.ddp, 'adamw', lr=0.01, weight_decay=0.1, eps=EPS) if case.divided else None

    def begin(self):
        self.ddp.sync_buffers()

    def end(self):
        if self.optim is None:
            self.ddp.wait()
        else:
            self.ddp.clip_grad_norm(CLIPPED)
            self.optim.step()

    @contextlib.contextmanager
    def uneven(self):
        yield
        self.ddp.join()


def adamw(model, state):
    """torch.optim.AdamW, whose import takes seconds. A parameter without a gradient stays as it is."""
    for name, p in model.named_parameters():
        if p.grad is None or not p.requires_grad:
            continue
        s = state.setdefault(name, {'steps': 0, 'm': torch.zeros_like(p), 'v': torch.zeros_like(p)})
        s['steps'] += 1
        s['m'].mul_(0.9).add_(p.grad, alpha=0.1)
        s['v'].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
        root = s['v'].sqrt() / (1 - 0.999 ** s['steps']) ** 0.5 + EPS
        p.data.mul_(1 - 0.01 * 0.1).addcdiv_(s['m'], root, value=-0.01 / (1 - 0.9 ** s['steps']))


class Case:
    theirs = {}
    ours = {}
    divided = False
    uneven = False
    zero = 'none'  # what zero_grad() makes of gradients; None: it is not called
    breaks = ()  # (object, name, what it becomes) each

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def parameters(self, model):
        return model.named_parameters()

    def batch(self, step, rows=4, width=6):
        return torch.randn(rows, width, generator=torch.Generator().manual_seed(100 * step + self.rank))

    def backward(self, side, step):
        side.call(self.batch(step)).pow(2).mean().backward()

    def between(self, model, step):
        """Before a step."""

    def steps(self):
        return STEPS

    def update(self, side, state):
        if self.divided and isinstance(side, Theirs):
            nn.utils.clip_grad_norm_(side.model.parameters(), CLIPPED)
        if isinstance(side, Theirs) or not self.divided:
            adamw(side.model, state)


class Branches(nn.Module):
    """The call names the branches that are used."""

    def __init__(self, n):
        super().__init__()
        self.trunk = nn.Linear(6, 6)
        self.branches = nn.ModuleList(nn.Linear(6, 6) for _ in range(n))
        self.never = nn.Parameter(torch.ones(3))

    def forward(self, x, *used):
        x = self.trunk(x)
        for i in used:
            x = x + self.branches[i](x)
        return x


class BranchesPerRank(Case):
    theirs = {'find_unused_parameters': True}
    ours = {'find_unused': True}
    breaks = [(cddp.DDP, 'was_used', lambda self, which: False)]  # each rank goes by its own hooks

    def model(self):
        return Branches(self.size + 2)

    def backward(self, side, step):
        side.call(self.batch(step), (self.rank + step) % (self.size + 2)).pow(2).mean().backward()


class Kept(BranchesPerRank):
    """Without zero_grad(): what a rank does not use in a step counts with its gradient of the step before."""

    zero = None
    breaks = [(cddp.DDP, '_is_due', lambda self, i, p: i in self._made)]  # it counts as zeros


class Zeroed(BranchesPerRank):
    zero = 'zeros'
    breaks = [(cddp.DDP, '_copy_in', lambda self, i, p: None)]  # a gradient that lies elsewhere is lost


class NeverUsed(BranchesPerRank):
    def broken_attach(self, whole=cddp.DDP.attach):
        whole(self)
        for i, p in enumerate(self._params):
            p.grad = self._grads[i]
        return self

    breaks = [(cddp.DDP, 'attach', broken_attach)]  # it sets .grad before there is a gradient

    def backward(self, side, step):
        side.call(self.batch(step), 0).pow(2).mean().backward()


class FrozenFromStart(Case):
    breaks = [(cddp.DDP, '_broadcast_frozen', lambda self, comm: None)]

    def model(self):
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        model[0].requires_grad_(False)
        return model


class FrozenLater(BranchesPerRank):
    def broken_settle(self):
        for i, p in enumerate(self._params):
            if i not in self._reported and self.was_used(i):
                p.grad = self._grads[i]
        self._made.clear()
        self._reported.clear()

    breaks = [(cddp.DDP, 'was_used', lambda self, which: True),  # a stale gradient comes back
              (cddp.DDP, '_settle', broken_settle)]              # it counts in the norm

    def between(self, model, step):
        model.branches[0].requires_grad_(not 8 <= step < 14)

    def backward(self, side, step):
        side.call(self.batch(step), 0, 1).pow(2).mean().backward()


class Tied(Case):
    breaks = [(_ddp, '_key', lambda name, param: name)]  # the norm counts it twice

    def parameters(self, model):
        return model.named_parameters(remove_duplicate=False)

    def model(self):
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        model[2].weight = model[0].weight
        return model


class Accumulation(BranchesPerRank):
    breaks = [(cddp.DDP, '_is_due', lambda self, i, p: False)]  # a use in the first pass alone is forgotten

    def backward(self, side, step):
        with side.no_sync():
            for k in range(2):
                side.call(self.batch(step + 50 * k), *([self.rank] if k == 0 else [])).pow(2).mean().backward()
        side.call(self.batch(step + 100), self.size).pow(2).mean().backward()


class Again(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh())

    def forward(self, x):
        x = x.requires_grad_()
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=True)
        return x


class ReentrantCheckpoint(Case):
    def broken_report(self, i, p):
        if i not in self._reported:
            self._copy_in(i, p)
        self._reported.add(i)
        self.ready(i)

    theirs = {'static_graph': True}
    ours = {'static_graph': True}
    breaks = [(cddp.DDP, '_report', broken_report)]  # the second use in a backward pass is lost

    def model(self):
        return Again()


class ChannelsLast(Case):
    breaks = [(_ddp, 'memory_order', lambda p: None)]  # nothing but C order

    def batch(self, step, **_):
        return super().batch(step, 2, 3 * 25).reshape(2, 3, 5, 5).to(memory_format=torch.channels_last)

    def model(self):
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)).to(memory_format=torch.channels_last)


class Empty(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.none = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x):
        return self.linear(x) + self.none.sum()


class ZeroElements(Case):
    breaks = [(_ddp, '_with_an_element', lambda param, view: view)]  # nothing stands in for it

    def model(self):
        return Empty()


class Bfloat16(Case):
    """Whole numbers, whose means and sums have no rounding that could differ."""

    def broken_init(self, *args, whole=cddp.DDP.__init__, **options):
        whole(self, *args, average=False, **options)

    breaks = [(cddp.DDP, '__init__', broken_init)]  # the sum in place of the mean

    def model(self):
        return nn.Linear(6, 1, bias=False).to(torch.bfloat16)

    def backward(self, side, step):
        if step == 0:
            side.model.weight.data.zero_()
        x = torch.arange(6).reshape(1, 6) % 3 - (self.rank + step) % 2
        side.call((6 * x).to(torch.bfloat16)).sum().backward()

    def update(self, side, state):
        side.model.weight.data -= 0.25 * side.model.weight.grad


class Buffers(Case):
    breaks = [(cddp.DDP, 'sync_buffers', lambda self: None)]

    def model(self):
        return nn.Sequential(nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 2))


class Counter(nn.Module):
    """Assigns its buffer, as pytorch#63916."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)
        self.register_buffer('total', torch.zeros(1))

    def forward(self, x):
        self.total = self.total + x.detach().mean()
        return self.linear(x) * (1 + self.total)


class AssignedBuffer(Case):
    breaks = [(_ddp, '_again', lambda named, method: None)]  # the tensors of the beginning

    def model(self):
        return Counter()


class ConvertedBuffer(AssignedBuffer, Buffers):
    """Module._apply makes new buffers, and load_state_dict(assign=True)."""

    breaks = AssignedBuffer.breaks

    def model(self):
        return Buffers.model(self)

    def between(self, model, step):
        for name in ('running_mean', 'running_var', 'num_batches_tracked'):
            setattr(model[1], name, getattr(model[1], name).clone())


class MovedParameters(Case):
    """p.data = ..., as some optimizers do; join() writes the parameters."""

    ours = {'join': True}
    uneven = True
    zero = None
    breaks = [(_ddp, '_brought', lambda *_: contextlib.nullcontext())]  # join() writes what was there at the beginning

    def model(self):
        return nn.Linear(6, 2)

    def between(self, model, step):
        for p in model.parameters():
            p.data = p.data.clone()

    def steps(self):
        return STEPS - 3 * self.rank


class MovedDivided(MovedParameters):
    """The same with cddp.Optim, which writes them in every step."""

    ours = {}
    uneven = False
    divided = True
    zero = 'none'
    breaks = [(_optim, *MovedParameters.breaks[0][1:])]

    def steps(self):
        return STEPS


class Weights(Case):
    """Rank r has r + 1 rows: the mean over all rows, in PyTorch by losses that are multiplied."""

    ours = {'weighted': True}
    breaks = [(cddp.DDP, 'set_weight', lambda self, weight: None)]  # the mean over ranks

    def model(self):
        return nn.Linear(6, 6)

    def backward(self, side, step):
        rows = self.rank + 1
        scale = 2 / (self.size + 1)
        if isinstance(side, Ours):
            side.ddp.set_weight(rows)
            scale = 1 / rows
        (side.call(self.batch(step, rows)).pow(2).sum() * scale).backward()


class Uneven(Case):
    """Rank r has 3 r steps fewer. The last gradients are there when it joins."""

    zero = None
    ours = {'join': True}
    uneven = True
    breaks = [(cddp.DDP, '_keep_grads', lambda self: None)]  # the steps of others end in this rank's .grad

    def model(self):
        return nn.Sequential(nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 2))

    def steps(self):
        return STEPS - 3 * self.rank


class UnevenActive(Uneven):
    """The mean is over the ranks that still train; not all of them use all parameters."""

    theirs = {'find_unused_parameters': True}
    ours = {'join': 'active', 'find_unused': True}
    breaks = [(cddp.DDP, 'join', lambda self, whole=cddp.DDP.join: (whole(self), self._params[0].data.zero_()))]  # another model

    def model(self):
        return Branches(self.size + 2)

    def backward(self, side, step):
        side.call(self.batch(step), (self.rank + step) % (self.size + 2)).pow(2).mean().backward()


class Divided(BranchesPerRank):
    """cddp.Optim, whose gradients are gone after a step."""

    def broken_settle(self):
        self._made.clear()
        self._reported.clear()

    divided = True
    breaks = [(cddp.DDP, '_settle', broken_settle)]  # the next pass adds to what is left in .grad


def snapshot(model, step):
    values = {f'step {step}, {n}': t.detach().clone() for n, t in (*model.named_parameters(), *model.named_buffers())}
    for n, p in model.named_parameters():
        values[f'step {step}, gradient of {n}'] = None if p.grad is None else p.grad.clone()
    return values


def norm(side):
    """Of all gradients together."""
    if isinstance(side, Ours):
        return torch.tensor(side.ddp.grad_norm() * (1 if side.case.ours.get('average', True) else side.case.size))
    return torch.tensor(sum(p.grad.double().pow(2).sum().item() for p in side.model.parameters() if p.grad is not None) ** 0.5)


def train(case, side):
    seen, state = {}, {}
    with side.uneven() if case.uneven else contextlib.nullcontext():
        for step in range(case.steps()):
            case.between(side.model, step)
            side.begin()
            case.backward(side, step)
            side.end()
            if not case.divided:
                seen[f'step {step}, norm'] = norm(side)
            case.update(side, state)
            seen.update(snapshot(side.model, step))
            if case.zero is not None:
                side.model.zero_grad(set_to_none=case.zero == 'none')
    seen.update(snapshot(side.model, 'last'))
    return seen


def differences(case, theirs, ours):
    for name, a in theirs.items():
        b = ours[name]
        a = None if case.divided and 'gradient' in name else a
        if (a is None) != (b is None):
            yield f'{name} is {"missing" if a is None else "there"} in PyTorch'
        elif a is not None and not torch.allclose(a, b, rtol=LIMIT, atol=LIMIT):
            yield f'{name} differs by {(a - b).abs().max().item():.3g}'


def compare(kind, comm, rank, size):
    """Returns what is wrong with a case."""
    case = kind(rank, size)
    torch.manual_seed(rank)
    model = case.model()
    theirs = train(case, Theirs(case, copy.deepcopy(model), comm))

    def found():
        try:
            return list(differences(case, theirs, train(case, Ours(case, copy.deepcopy(model), comm))))
        except (ValueError, cddp.Error) as error:
            return [f'{type(error).__name__}: {error}']

    def anywhere(wrong):
        return comm.all_reduce(torch.tensor([len(wrong)], dtype=torch.int64), 'max').item() > 0

    wrong = found()
    if anywhere(wrong):
        return wrong[:3] or ['another rank']
    for where, name, broken in case.breaks:
        whole = getattr(where, name)
        setattr(where, name, broken)
        wrong = found()
        setattr(where, name, whole)
        if not anywhere(wrong):
            return [f'nothing was found with a broken {name}']
    return []


CASES = [BranchesPerRank, Kept, Zeroed, NeverUsed, FrozenFromStart, FrozenLater, Tied, Accumulation, ReentrantCheckpoint, ChannelsLast,
         ZeroElements, Bfloat16, Buffers, AssignedBuffer, ConvertedBuffer, MovedParameters, MovedDivided, Weights, Uneven, UnevenActive, Divided]


def raises(kind, part, call, *args, **named):
    try:
        call(*args, **named)
    except kind as error:
        assert part in str(error), error
        return
    raise AssertionError(f'no {kind.__name__} with {part}')


def wrong_use(comm):
    """Errors that name what is wrong, and break nothing."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    if comm.rank == 1:
        model[0].bias = nn.Parameter(torch.zeros(3))
    raises(cddp.Error, "'0.bias' float32 [3] on rank 1", cddp.DDP, comm, list(model.named_parameters()))
    model[0].bias.requires_grad_(False)
    if comm.rank == 1:
        model[0].bias = nn.Parameter(torch.zeros(4), requires_grad=False)
    raises(cddp.Error, 'require no gradient differ between rank 0 and rank 1', cddp.DDP, comm, list(model.named_parameters()))
    with cddp.DDP(comm, list(model[1].named_parameters())) as ddp:
        raises(RuntimeError, 'no_sync is for attach()', ddp.no_sync().__enter__)
        ddp.attach()
        with ddp.no_sync():
            model[1](torch.ones(1, 3)).sum().backward()
            raises(RuntimeError, 'within DDP.no_sync', ddp.wait)
        model[1](torch.ones(1, 3)).sum().backward()
        ddp.wait()
        assert ddp.was_used('weight') and (model[1].weight.grad == 2).all()
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    with cddp.DDP(comm, list(model.named_parameters())).attach() as ddp:
        model[0].weight.requires_grad_(True)
        model(torch.ones(1, 3)).sum().backward()
        raises(RuntimeError, "'0.weight' did not require a gradient", ddp.wait)
        model[0].weight.requires_grad_(False)
        ddp.wait()
    with cddp.DDP(comm, list(model[1].named_parameters()), weighted=True).attach() as ddp:
        ddp.set_weight(0)
        model[1](torch.ones(1, 3)).sum().backward()
        raises(cddp.Error, 'every rank that trained had weight 0', ddp.wait)
        with ddp.no_sync():  # that step is over
            model[1](torch.ones(1, 3)).sum().backward()
        ddp.wait()
        assert (model[1].weight.grad == 1).all()
    branches = Branches(1)
    part = comm.split(0, comm.rank)  # which the error ends
    ddp = cddp.DDP(part, branches).attach()
    branches(torch.ones(1, 6)).sum().backward()
    raises(cddp.Error, "'branches.0.weight', 'branches.0.bias'; pass find_unused=True", ddp.wait)
    rows = nn.Embedding(4, 2, sparse=True)
    with cddp.DDP(comm, list(rows.named_parameters())).attach() as ddp:
        raises(TypeError, "'weight' has a sparse gradient", rows(torch.tensor([1])).sum().backward)
    with cddp.DDP(comm.split(0), list(model[1].named_parameters())).attach() as ddp:
        model[1](torch.ones(1, 3)).sum().backward()
        raises(cddp.Error, 'call wait() after backward(), or make all passes of a step but the last within no_sync()',
               model[1](torch.ones(1, 3)).sum().backward)


def replaced(comm):
    """Parameters that the module has replaced, or got later."""
    def again(model):
        model.load_state_dict({n: t.clone() for n, t in model.state_dict().items()}, assign=True)

    def submodule(model):
        model[1] = nn.Linear(3, 1)

    def more(model):
        model.append(nn.Linear(1, 1))

    for replace in (again, submodule, more):
        for source in (nn.Module.named_parameters, nn.Module.parameters, lambda model: model):
            model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
            with cddp.DDP(comm, source(model), find_unused=replace is not more).attach() as ddp:
                model(torch.ones(1, 3)).sum().backward()
                ddp.wait()
                replace(model)
                model(torch.ones(1, 3)).sum().backward()
                raises(RuntimeError, 'is another tensor than when the DDP was made, or a new one', ddp.wait)
    model = nn.BatchNorm1d(3)
    with cddp.DDP(comm, model).attach() as ddp:
        model.running_mean = torch.zeros(3, dtype=torch.float64)
        raises(RuntimeError, "'running_mean' was torch.float32 [3] when the DDP was made, and is torch.float64 [3]", ddp.sync_buffers)


def wrapped_again(comm):
    """The DDP that was attached last averages; an older one is gone with its last reference, or ends."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))

    def step(ddp):
        model.zero_grad()
        model(torch.full((1, 3), comm.rank + 1.)).sum().backward()
        ddp.wait()
        assert torch.allclose(model[1].bias.grad, torch.ones(1))

    first = cddp.DDP(comm, model).attach()
    step(first)
    second = cddp.DDP(comm, model).attach()
    for _ in range(2):
        step(second)
    raises(RuntimeError, 'another DDP was attached', first.wait)
    del first
    step(second.attach())
    gone = weakref.ref(second)
    del second
    assert gone() is None
    for p in model[0].parameters():
        p.requires_grad_(False)
    third = cddp.DDP(comm, model).attach()
    for _ in range(2):
        step(third)
    third.close()
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def main():
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo')
    with cddp.init() as comm:
        for kind in CASES:
            wrong = compare(kind, comm, comm.rank, comm.size)
            os.write(1, f'rank {comm.rank}: {kind.__name__}: {"; ".join(wrong) or "as PyTorch"}\n'.encode())
        replaced(comm)
        wrapped_again(comm)
        wrong_use(comm)
        os.write(1, f'rank {comm.rank}: done\n'.encode())
    os._exit(0)  # PyTorch's threads abort now and then while Python ends


if __name__ == '__main__':
    main()
