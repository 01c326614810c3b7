# SPDX-License-Identifier: Apache-2.0
"""One rank of a job in which cddp.FSDP trains a copy of a PyTorch module, and this process alone another one, on the
batches of all ranks. Arguments: names of cases; none: all but BY_NAME.

Each class below is a case. Both have the same losses and at the end the same parameters. Then the case runs again with
a part of FSDP broken in the way that the case names, and must fail.
"""
import contextlib
import copy
import os
import sys
import warnings

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import cddp
from cddp._fsdp_torch import Hooks

STEPS = 3


class Block(nn.Module):
    """Of a transformer."""

    def __init__(self, width, heads=2):
        super().__init__()
        self.heads = heads
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm[0](x)).chunk(3, 2))
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm[1](x))


class Transformer(nn.Module):
    """Embeddings are tied to the head, so they are the root's."""

    def __init__(self, words=11, width=8, blocks=4, tied=True):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.randn(6, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def run(self, block, x):
        return block(x)

    def forward(self, tokens):
        x = nn.functional.embedding(tokens, self.words.weight) + self.places[:tokens.shape[1]]
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(self.norm(x))


class Checkpointed(Transformer):
    """Of a block nothing is saved but its input."""

    def run(self, block, x):
        return checkpoint(block, x, use_reentrant=False)


class CheckpointedReentrant(Transformer):
    def run(self, block, x):
        return checkpoint(block, x, use_reentrant=True)


class CheckpointedPairs(Transformer):
    """A checkpoint is around several units."""

    def forward(self, tokens):
        x = self.words(tokens) + self.places[:tokens.shape[1]]
        for i in range(0, len(self.blocks), 2):
            x = checkpoint(lambda x, i=i: self.blocks[i + 1](self.blocks[i](x)), x, use_reentrant=False)
        return self.head(self.norm(x))


class CheckpointedInside(Block):
    def __init__(self, width, use_reentrant):
        super().__init__(width)
        self.whole = self.mlp.forward
        self.mlp.forward = lambda x: checkpoint(self.whole, x, use_reentrant=use_reentrant)


class Case:
    dtype = torch.float64
    options = {}
    optim = ('adamw', {'lr': 0.01, 'weight_decay': 0.1, 'eps': 1e-3})
    breaks = ()  # (object, name, what it becomes) each
    steps = STEPS
    limit = None  # of differences; None: 1e-9, or 1e-5 with float32

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def units(self, model):
        return model.blocks

    def model(self):
        return Transformer()

    def batch(self, step, rank):
        made = torch.Generator().manual_seed(1000 * step + rank)
        return torch.randint(11, (2, 6), generator=made), torch.randint(11, (2, 6), generator=made)

    def loss(self, model, step, rank):
        x, y = self.batch(step, rank)
        return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())

    def alone(self, model):
        return train_alone(self, model)

    def passes(self, step):
        """The batches of a step, as steps: with several the last one is sent."""
        return [step]

    def prepare(self, model):
        """Returns more options for the module that is going to be divided."""
        return {}

    def optimizer(self, fsdp):
        return cddp.Optim(fsdp, self.optim[0], **self.optim[1])

    def before(self, model, fsdp, step):
        """Before a step of the divided module."""

    def backward(self, model, fsdp, step):
        total = 0.0
        *first, last = self.passes(step)
        for part in first:
            with fsdp.no_sync():
                loss = self.loss(model, part, self.rank)
                loss.backward()
                total += loss.item()
        loss = self.loss(model, last, self.rank)
        loss.backward()
        return total + loss.item()


class TransformerOfBlocks(Case):
    def broken_report(self, u):
        self._fsdp.grads(u)
        self._fsdp.grads_ready(u)

    breaks = [(Hooks, '_report', broken_report)]  # gradients of another unit


class Float32(Case):
    dtype = torch.float32


class OneLiveUnit(Case):
    options = {'max_live_units': 1, 'max_live_gradients': 1}


class Stage2(Case):
    options = {'stage': 2}


class KeptBlock(Case):
    options = {'keep': ['blocks.1']}


class EachModule(Case):
    """By a function."""

    def model(self):
        return Transformer(tied=False)

    def units(self, model):
        return lambda m: isinstance(m, (Block, nn.LayerNorm, nn.Linear)) and not any(
            m is not b and m in set(b.modules()) for b in model.blocks)


class WholeModule(Case):
    def units(self, model):
        return [model]


class Mlp(Case):
    """By a type. The blocks' inputs need no gradient at first, so the first unit has no output whose input has one."""

    def model(self):
        return nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(5)), nn.Linear(6, 3))

    def units(self, model):
        return nn.Linear

    def loss(self, model, step, rank):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1000 * step + rank), dtype=self.dtype)
        return model(x).pow(2).mean()


class Momentum(Mlp):
    optim = ('sgd', {'lr': 0.05, 'momentum': 0.9})


class OnShards:
    """Momentum, by an optimizer of PyTorch's kind on this rank's parts."""

    def __init__(self, fsdp, rule):
        self.fsdp, self.rule, self.state = fsdp, rule, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def step(self):
        self.fsdp.end_step()
        for n in self.fsdp._numbers:
            begin, part, grad = self.fsdp.shard(n)
            assert len(part) == len(grad) and begin >= 0
            part.sub_(self.state.setdefault(n, torch.zeros_like(part)).mul_(self.rule['momentum']).add_(grad), alpha=self.rule['lr'])


class OwnOptimizer(Momentum):
    def optimizer(self, fsdp):
        return OnShards(fsdp, self.optim[1])


class Twice(Case):
    """Each block is used twice in a step, in two slots of the pool."""

    breaks = [(Hooks, '_pack', lambda self, outer, tensor: (tensor, tensor._version)),  # autograd saves what is in a slot
              (Hooks, '_after_backward', lambda self, u, use, grad: None)]  # more units are held than there are slots

    def loss(self, model, step, rank):
        return super().loss(model, step, rank) + super().loss(model, step + 500, rank)


class CalledTwice(Mlp):
    def model(self):
        block = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        return nn.Sequential(block, nn.Linear(6, 6), block, nn.Linear(6, 6), block)


class Siamese(Mlp):
    """Two uses of each unit are in the backward pass at the same time."""

    def loss(self, model, step, rank):
        made = torch.Generator().manual_seed(1000 * step + rank)
        a, b = (torch.randn(4, 6, generator=made, dtype=self.dtype) for _ in range(2))
        for layer in model:
            a, b = layer(a), layer(b)
        return (a - b).pow(2).mean()


class Library(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 4, num_layers=2, batch_first=True)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(4, 2, 7, 0.0, batch_first=True)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        x = self.lstm(x[None])[0]
        return self.norm(self.layer(self.attention(x, x, x, need_weights=False)[0])[0])


class LibraryModules(Mlp):
    """Modules of PyTorch that keep or check their parameters in other ways, and outputs and inputs that are not one tensor."""

    def model(self):
        return Library()

    def units(self, model):
        return list(model.children())


class RootOnly(Case):
    def units(self, model):
        return []


class Checkpoints(Case):
    # A unit keeps what a checkpoint around it would not.
    breaks = [(torch._C._autograd, '_top_saved_tensors_default_hooks', lambda ignore_is_tracing: None)]

    def model(self):
        return Checkpointed()

    def backward(self, model, fsdp, step):
        calls = []
        handle = model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1) and None)
        total = super().backward(model, fsdp, step)
        handle.remove()
        assert len(calls) == 2, 'the block was not computed again'
        return total


class ReentrantCheckpoints(Case):
    """A backward pass within a backward pass."""

    def model(self):
        return CheckpointedReentrant()


class CheckpointsOfPairs(Case):
    def model(self):
        return CheckpointedPairs()


class CheckpointsInside(Case):
    use_reentrant = False
    breaks = [(Hooks, '_before_backward', lambda self, u, use, grad: None)]  # the second computation has no parameters

    def model(self):
        model = Transformer()
        model.blocks = nn.ModuleList(CheckpointedInside(8, self.use_reentrant) for _ in range(3))
        return model


class ReentrantCheckpointsInside(CheckpointsInside):
    use_reentrant = True


class Accumulation(Case):
    breaks = [(Hooks, 'no_sync', lambda self: contextlib.nullcontext())]  # a part of the gradients

    def passes(self, step):
        return [step, step + 100, step + 200]


class Views(nn.Module):
    """Views of all kinds in the memory of parameters, and parameters in other orders and types."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 4, 3).permute(2, 0, 1))
        self.scale = nn.Parameter(torch.ones(()))
        self.conv = nn.Conv1d(3, 3, 2).to(torch.float64)

    def forward(self, x):
        y = torch.einsum('abc,xb->xac', self.w, x) * self.scale
        return y + self.conv(y.double().repeat(1, 1, 2)).to(y.dtype)[..., :4] * self.w[1, 2:3, 1:2].exp()


class ViewsOfParameters(Mlp):
    def model(self):
        return nn.Sequential(nn.Linear(6, 6), Views(), nn.Flatten(), nn.Linear(12, 6), Views(), nn.Flatten(), nn.Linear(12, 2))

    def units(self, model):
        return [model[0], model[1], model[3], model[4]]


class ChannelsLast(Case):
    def model(self):
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 2, 3)).to(memory_format=torch.channels_last)

    def units(self, model):
        return [model[0], model[2]]

    def loss(self, model, step, rank):
        x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(1000 * step + rank), dtype=self.dtype)
        return model(x.to(memory_format=torch.channels_last)).pow(2).mean()


class Evaluation(Case):
    """A forward pass of another kind before each step, and before its end."""

    def before(self, model, fsdp, step):
        with torch.no_grad():
            self.loss(model, step + 50, self.rank)

    def backward(self, model, fsdp, step):
        total = super().backward(model, fsdp, step)
        with torch.inference_mode():
            self.loss(model, step + 50, self.rank)
        return total


class Filled(Case):
    """No rank has the module's values before they are divided."""

    def prepare(self, model):
        values = {n: p.detach().clone() for n, p in model.named_parameters()}
        model.to_empty(device='cpu')

        def fill(unit, params):
            for n, p in params.items():
                assert unit == 'root' or n.startswith(unit + '.')
                p.copy_(values[n])

        return {'fill': fill}


class Failing(nn.Module):
    def forward(self, x):
        if Failing.on:
            raise KeyError('planted')
        return x

    on = False


class FailsInForward(Case):
    """After an exception in a unit, in the forward or backward pass, the step begins again."""

    options = {'max_live_units': 1}
    breaks = [(Hooks, '_leave_broken_pass', lambda self: None)]  # the pass that has failed holds a unit

    def model(self):
        model = Transformer()
        model.blocks[2].mlp.append(Failing())
        return model

    def before(self, model, fsdp, step):
        Failing.on = True
        try:
            self.loss(model, step, self.rank)
        except KeyError:
            Failing.on = False
        assert not Failing.on and not any(unit.holds for unit in fsdp._hooks._units if unit.name != 'root')
        assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None

        def fails(grad):
            raise KeyError('planted')

        x, y = self.batch(step, self.rank)
        model.blocks[1].register_forward_hook(lambda m, args, out: out.register_hook(fails) and None)
        handle = list(model.blocks[1]._forward_hooks)[-1]
        try:
            nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        except KeyError:
            del model.blocks[1]._forward_hooks[handle]
        with torch.no_grad():
            model(x)
        fsdp._test_optim.skip()  # which ends a step of which a part was sent


class Parts(Case):
    """Parts of the module are called alone."""

    def loss(self, model, step, rank):
        x, y = self.batch(step, rank)
        h = model.words(x) + model.words.weight[:6]
        for block in model.blocks:
            h = block(h)
        return nn.functional.cross_entropy(model.head(model.norm(h)).flatten(0, 1), y.flatten())

    def model(self):
        model = Transformer()
        del model.places
        return model


class FullyShard(Case):
    """Beside PyTorch's fully_shard over gloo, with its AdamW: on the same ranks, and each rank on its batches alone."""

    optim = ('adamw', {'lr': 0.01, 'weight_decay': 0.1})
    breaks = [*TransformerOfBlocks.breaks, (Case, 'optimizer', lambda self, fsdp: cddp.Optim(fsdp, 'adamw', lr=0.01001))]
    steps = 10

    def alone(self, model):
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard
        seen = {}
        if not dist.is_initialized():  # a second group would find the first one's keys in the store
            dist.init_process_group('gloo')
        mesh = dist.init_device_mesh('cpu', (self.size,))
        for part in (*self.units(model), model):
            fully_shard(part, mesh=mesh)
        optim = torch.optim.AdamW(model.parameters(), **self.optim[1])
        for step in range(self.steps):
            loss = self.loss(model, step, self.rank)
            loss.backward()
            optim.step()
            optim.zero_grad()
            seen[f'step {step}, loss'] = loss.detach()
        seen.update({n: p.full_tensor().detach() for n, p in model.named_parameters()})
        return seen


class FullyShardFloat32(FullyShard):
    dtype = torch.float32
    optim = Case.optim  # a smaller eps makes noise of the gradient of the keys' bias, which is 0 but for rounding


class FullyShard200(FullyShardFloat32):
    """The losses of a transformer that learns a few batches by heart."""

    optim = ('adamw', {**Case.optim[1], 'lr': 0.001})
    breaks = TransformerOfBlocks.breaks
    steps = 200
    limit = 1e-3

    def model(self):
        return Transformer(width=64)

    def alone(self, model):
        return {n: x for n, x in super().alone(model).items() if n.endswith('loss')}

    def batch(self, step, rank):
        return super().batch(step % 4, rank)


def adamw(model, state, rule):
    """torch.optim.AdamW, whose import takes seconds."""
    for name, p in model.named_parameters():
        s = state.setdefault(name, {'steps': 0, 'm': torch.zeros_like(p), 'v': torch.zeros_like(p)})
        s['steps'] += 1
        s['m'].mul_(0.9).add_(p.grad, alpha=0.1)
        s['v'].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
        root = s['v'].sqrt() / (1 - 0.999 ** s['steps']) ** 0.5 + rule['eps']
        p.data.mul_(1 - rule['lr'] * rule['weight_decay']).addcdiv_(s['m'], root, value=-rule['lr'] / (1 - 0.9 ** s['steps']))


def sgd(model, state, rule):
    for name, p in model.named_parameters():
        m = state.setdefault(name, torch.zeros_like(p))
        m.mul_(rule['momentum']).add_(p.grad)
        p.data.add_(m, alpha=-rule['lr'])


def train_alone(case, model):
    """On the batches of all ranks. Returns what there is after each step, by name."""
    seen, state = {}, {}
    for step in range(case.steps):
        for rank in range(case.size):
            loss = sum(case.loss(model, part, rank) for part in case.passes(step))
            (loss / case.size).backward()
            if rank == case.rank:
                seen[f'step {step}, loss'] = loss.detach()
        {'adamw': adamw, 'sgd': sgd}[case.optim[0]](model, state, case.optim[1])
        model.zero_grad()
    seen.update(model.named_parameters())
    return seen


def train_divided(case, model, comm):
    seen, more = {}, case.prepare(model)
    with cddp.FSDP(comm, model, units=case.units(model), **case.options, **more) as fsdp, case.optimizer(fsdp) as optim:
        fsdp._test_optim = optim
        for step in range(case.steps):
            case.before(model, fsdp, step)
            seen[f'step {step}, loss'] = torch.tensor(case.backward(model, fsdp, step), dtype=torch.float64)
            optim.step()
            assert all(p.grad is None for p in model.parameters())
        seen.update({n: p.clone() for n, p in fsdp.named_parameters()})
    return seen


def differences(case, alone, divided):
    limit = case.limit or (1e-9 if case.dtype == torch.float64 else 1e-5)
    for name, a in alone.items():
        b = divided[name].to(a.dtype)
        if not torch.allclose(a, b, rtol=limit, atol=limit):
            yield f'{name} differs by {(a - b).abs().max().item():.3g}'


def compare(kind, comm):
    """Returns what is wrong with a case."""
    case = kind(comm.rank, comm.size)

    def made():
        torch.manual_seed(0)
        return case.model().to(case.dtype)

    alone = case.alone(made())

    def found(part):
        model = made()
        if comm.rank > 0:
            for p in model.parameters():
                p.data.add_(1)  # rank 0's values count
        try:
            return list(differences(case, alone, train_divided(case, model, part)))
        except (ValueError, RuntimeError, AssertionError) as error:
            return [f'{type(error).__name__}: {error}']

    def anywhere(wrong):
        return comm.all_reduce(torch.tensor([len(wrong)], dtype=torch.int64), 'max').item() > 0

    wrong = found(comm)
    if anywhere(wrong):
        return wrong[:3] or ['another rank']
    for where, name, broken in case.breaks:
        whole = getattr(where, name)
        setattr(where, name, broken)
        wrong = found(comm.split(0, timeout=20))  # an error may end it
        setattr(where, name, whole)
        if not anywhere(wrong):
            return [f'nothing was found with a broken {name}']
    return []


CASES = [TransformerOfBlocks, Float32, OneLiveUnit, Stage2, KeptBlock, EachModule, WholeModule, Mlp, Momentum, OwnOptimizer, Twice, CalledTwice, Siamese, LibraryModules, RootOnly, Checkpoints,
         CheckpointsOfPairs, ReentrantCheckpoints, CheckpointsInside, ReentrantCheckpointsInside, Accumulation, ViewsOfParameters, ChannelsLast, Evaluation, Filled, FailsInForward, Parts]
BY_NAME = [FullyShard, FullyShardFloat32, FullyShard200]


def raises(kind, parts, call, *args, **named):
    """The call raises this, and the message has all the parts; for cddp.Error kind may be its status."""
    try:
        call(*args, **named)
    except (cddp.Error if isinstance(kind, cddp.Status) else kind) as error:
        for part in parts:
            assert part in str(error), (part, str(error))
        assert not isinstance(kind, cddp.Status) or error.status is kind, error.status
        return
    raise AssertionError(f'no {kind} with {parts}')


def refused(comm):
    """Modules and units that cannot be divided; nothing is broken."""
    def create(model, units):
        return cddp.FSDP(comm, model, units=units)

    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 3), nn.ModuleList([nn.Linear(3, 3)]))
    raises(cddp.Status.UNSUPPORTED, ["unit '0.0' is within unit '0'", 'cannot be nested'], create, model, [model[0], model[0][0]])
    raises(cddp.Status.UNSUPPORTED, ["unit '0' is within unit 'root'"], create, model, [model, model[0]])
    raises(cddp.Status.UNSUPPORTED, ["unit '2' is a ModuleList, which has no forward()"], create, model, [model[2]])
    raises(ValueError, ['a unit (Linear) is not a part of the module'], create, model, [nn.Linear(3, 3)])
    raises(TypeError, ['module is a Tensor'], create, torch.zeros(3), [])
    model[2][0].weight = model[1].weight
    raises(cddp.Status.UNSUPPORTED, ["parameter '1.weight' is used in unit '1' and '2.0'"], create, model, nn.Linear)
    raises(cddp.Status.UNSUPPORTED, ["parameter '1.weight' is used in unit '1' and outside of it"], create, model, [model[1]])
    model[0][0].bias.requires_grad_(False)
    raises(cddp.Status.UNSUPPORTED, ["parameter '0.0.bias' requires no gradient"], create, model, [model[0]])
    raises(cddp.Status.UNSUPPORTED, ["'weight' is on meta", 'to_empty'], create, nn.Linear(3, 3, device='meta'), [])
    raises(TypeError, ["parameter 'weight' is not of a floating-point type"], create, nn.Linear(3, 3, dtype=torch.complex64), [])
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    if comm.size > 1:
        raises(cddp.Status.MISMATCH, ['unit 0 has another name'], create, model, [model[0]] if comm.rank == 0 else [model[1]])
    with create(model, [model[0]]):
        raises(cddp.Status.STATE, ['is not here'], create, model, [model[0]])
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._state_dict_pre_hooks for m in model.modules())
    assert not any(p._backward_hooks or p._post_accumulate_grad_hooks for p in model.parameters())


class Places(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, 3))
        self.one = nn.Parameter(torch.ones(1))
        self.copies = True

    def forward(self, n):
        return self.w[:n] * 2 + self.one if self.copies else self.w[:n]


class First(nn.Sequential):
    used = True

    def forward(self, x):
        return super().forward(x) if self.used else self[0](x)


class Parted(nn.Module):
    def __init__(self):
        super().__init__()
        self.places = Places()
        self.first = First(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
        self.rows = nn.Embedding(5, 3)

    def forward(self, x):
        return self.first(self.rows(x) + self.places(len(x)))


def wrong_use(comm):
    """Each error names what is wrong; then the step goes on, and the next ones have the mean of the gradients."""
    x = torch.arange(4)

    def step(change=lambda: None):
        model(x).sum().backward()
        change()
        optim.step()

    model = Parted()
    with cddp.FSDP(comm, model, units=[model.first, model.places]) as fsdp, cddp.Optim(fsdp, 'sgd', lr=0.1) as optim:
        for _ in range(2):
            raises(cddp.Status.STATE, ["no gradient of parameter 'places.w' and 6 more", 'Optim.skip()'], optim.step)
            with fsdp.no_sync():
                raises(RuntimeError, ['within FSDP.no_sync'], optim.step)
                model(x).sum().backward()
            optim.skip()
        model.places.copies = False
        raises(cddp.Status.UNSUPPORTED, ["the output of unit 'places' is in the memory of parameter 'places.w'"], model, x)
        model.places.copies = True
        model.first.used = False
        loss = model(x).sum()
        loss.backward()
        raises(cddp.Status.STATE, ["no gradient of parameter 'first.2.weight' and 1 more"], optim.step)
        model.first.used = True
        optim.skip()
        step()
        absent = ["parameter 'first.0.weight' of unit 'first' is not here", 'named_parameters()']
        w = model.first[0].weight
        raises(cddp.Status.STATE, ["FSDP: detach: parameter 'places.w' of unit 'places' is not here"], model.state_dict)
        for use in (model.first[0].state_dict, lambda: model.first[0](torch.ones(3, 3)), lambda: model.first(torch.ones(1, 3)) + w,
                    lambda: model.first.forward(torch.ones(3, 3)), lambda: w.data, lambda: w + 1, lambda: w.shape, w.norm, w.detach, w.zero_,
                    lambda: torch.cat([torch.ones(3, 3), w]), lambda: [p.pow(2) for p in model.first.parameters()],
                    lambda: model.first.load_state_dict({'0.weight': torch.ones(3, 3)})):
            raises(cddp.Status.STATE, absent, use)
        raises(cddp.Status.UNSUPPORTED, ['cannot be copied or pickled'], copy.deepcopy, model)
        assert repr(w) == "<parameter 'first.0.weight' of unit 'first' of a divided module>" and not any(p.grad for p in model.parameters())
        optim.skip()
        late = model(x).sum()
        used = (model.rows(x) * model.rows.weight[:4]).sum()
        optim.skip()
        raises(cddp.Status.STATE, ["backward() needs the parameters of unit 'first' of a step that is over"], late.backward)
        raises(RuntimeError, ['modified by an inplace operation'], used.backward)
        step()
        h = []
        handle = model.first[1].register_forward_hook(lambda m, args, out: h.append(out))
        late = model(x).sum()
        handle.remove()
        h[0].data.mul_(1)
        with torch.no_grad():
            h[0].mul_(2)
        raises(RuntimeError, ['modified by an inplace operation'], late.backward)
        optim.skip()
        with fsdp.no_sync():
            model(x).sum().backward()
            with warnings.catch_warnings():
                warnings.simplefilter('ignore')  # of PyTorch, about create_graph
                raises(cddp.Status.UNSUPPORTED, ['create_graph=True'], lambda: model(x).pow(2).sum().backward(create_graph=True))
        optim.skip()
        model(x).sum().backward()
        raises(cddp.Status.STATE, ["the gradients of unit 'first' were made again in this step", 'no_sync()'], lambda: model(x).sum().backward())
        optim.skip()
        model.extra = nn.Parameter(torch.ones(1))
        model.extra.grad = torch.ones(1)
        raises(RuntimeError, ["parameter 'extra' is another tensor"], step)
        del model.extra
        optim.skip()
        before = {n: p.clone() for n, p in fsdp.named_parameters()}
        (model(x) * (comm.rank + 1)).sum().backward()
        optim.step()
        alone = Parted()
        alone.load_state_dict(before)
        (alone(x) * (comm.size + 1) / 2).sum().backward()
        for n, p in fsdp.named_parameters():
            want = before[n] - 0.1 * dict(alone.named_parameters())[n].grad
            assert torch.allclose(p, want, atol=1e-6), n
        comm.barrier()
    raises(RuntimeError, ['closed'], fsdp.gather, 0)
    layers = nn.Sequential(*(First(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)) for _ in range(4)))
    with cddp.FSDP(comm, layers, units=layers, max_live_units=2) as fsdp:
        for layer in layers:
            layer.used = False
        raises(cddp.Status.STATE, ["needs unit '1', but 2 others still wait for gradients, such as that of '3.2.weight'", 'max_live_units'],
               sum(layer(torch.ones(1, 3)) for layer in layers).sum().backward)
        layers(torch.ones(1, 3)).sum().backward()
        raises(cddp.Status.STATE, ["no gradient of parameter '0.2.weight' and 7 more"], fsdp.end_step)
    model = Parted()
    model.rows.sparse = True
    with cddp.FSDP(comm, model, units=[model.first]) as fsdp:
        raises(cddp.Status.UNSUPPORTED, ["parameter 'rows.weight' has a sparse gradient"], model(x).sum().backward)


def same_bits(comm):
    """As cddp.DDP with whole parameters, and cddp.Optim."""
    def made():
        torch.manual_seed(3)
        return Transformer()

    seen = []
    for kind in (lambda m: cddp.DDP(comm, m).attach(), lambda m: cddp.FSDP(comm, m, units=m.blocks)):
        model, case = made(), Case(comm.rank, comm.size)
        with kind(model) as divided, cddp.Optim(divided, 'adamw', lr=0.01) as optim:
            for step in range(4):
                case.loss(model, step, comm.rank).backward()
                optim.step()
            seen.append({n: p.detach().clone() for n, p in (divided if isinstance(divided, cddp.FSDP) else model).named_parameters()})
    assert all(torch.equal(p, seen[1][n]) for n, p in seen[0].items()) and len(seen[0]) == len(seen[1])


def main():
    torch.set_num_threads(1)
    names = sys.argv[1:]
    with cddp.init() as comm:
        for kind in CASES + BY_NAME:
            if kind.__name__ not in names and (names or kind in BY_NAME):
                continue
            wrong = compare(kind, comm)
            os.write(1, f'rank {comm.rank}: {kind.__name__}: {"; ".join(wrong) or "as alone"}\n'.encode())
        for part in (refused, wrong_use, same_bits):
            if not names or part.__name__ in names:
                part(comm)
        os.write(1, f'rank {comm.rank}: done\n'.encode())
    os._exit(0)  # PyTorch's threads abort now and then while Python ends


if __name__ == '__main__':
    main()
