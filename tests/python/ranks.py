# SPDX-License-Identifier: Apache-2.0
"""One rank of a job that uses the module cddp.

ranks.py MODE    each function below is a mode; it ends with an exception if something is wrong
"""
import array
import functools
import math
import os
import signal
import sys
import time

import cddp


def say(*words):
    os.write(1, (' '.join(map(str, words)) + '\n').encode())


def raises(kind, parts, call, *args, **named):
    """The call raises exactly this, and the message has all the parts."""
    try:
        call(*args, **named)
    except Exception as error:
        assert type(error) is kind, (type(error), error)
        for part in parts:
            assert part in str(error), (part, str(error))
        return error
    raise AssertionError(f'no {kind.__name__} with {parts}')


def plain():
    """Without numpy: arrays of the standard library."""
    with cddp.init() as comm:
        a = array.array('f', [comm.rank, 1.5])
        assert comm.all_reduce(a) is a and list(a) == [1.0, 3.0], a
        out = comm.all_gather(array.array('q', [comm.rank, 7]))
        assert out.tolist() == [[0, 7], [1, 7]] and out.format == 'q', out.tolist()
        b = bytearray([comm.rank + 1] * 3)
        assert comm.broadcast(b, root=1) == bytearray([2] * 3)
        part = comm.reduce_scatter(array.array('d', [1, 2, 3, 4]))
        assert part.tolist() == ([2.0, 4.0] if comm.rank == 0 else [6.0, 8.0]), part.tolist()
        memory = memoryview(bytearray(8)).cast('i')
        memory[1] = comm.rank
        comm.all_reduce(memory, 'max')
        assert memory.tolist() == [0, 1]
        comm.all_reduce(array.array('f'))  # nothing at all
        w = array.array('f', [0.0] * 4)
        with cddp.DDP(comm, [w]) as ddp:
            ddp.grad(0)[0] = comm.rank + 1.0
            ddp.ready(0)
            ddp.wait()
            assert ddp.grad(0).tolist() == [1.5, 0.0, 0.0, 0.0], ddp.grad(0).tolist()
        comm.barrier()
        raises(TypeError, ['all_reduce: array is a list', 'buffer protocol'], comm.all_reduce, [1.0])
    raises(RuntimeError, ['finalized'], comm.barrier)
    assert repr(comm) == '<cddp.Comm, finalized>'
    assert not {'numpy', 'torch'} & set(sys.modules)


def mean():
    """The mean of numpy gradients is numpy's, bit for bit."""
    import numpy as np
    with cddp.init() as comm:
        grads = [np.random.default_rng(rank).standard_normal((64, 33)).astype(np.float32) for rank in range(comm.size)]
        mine = grads[comm.rank].copy()
        address = mine.ctypes.data
        assert comm.all_reduce(mine, 'avg') is mine and mine.ctypes.data == address
        assert np.array_equal(mine, np.mean(grads, axis=0))
        out = np.empty_like(mine)
        before = grads[comm.rank].copy()
        assert comm.all_reduce(grads[comm.rank], 'mean', out=out) is out and np.array_equal(out, mine)
        assert np.array_equal(grads[comm.rank], before)
        say(f'rank {comm.rank}: the mean is numpy\'s')


def kinds():
    """Every type, with what the collectives make of it."""
    import numpy as np
    with cddp.init() as comm:
        n = comm.size
        for name in ('int8', 'uint8', 'int16', 'uint16', 'int32', 'uint32', 'int64', 'uint64', 'float16', 'float32', 'float64',
                     'complex64', 'complex128'):
            a = np.arange(6).astype(name).reshape(2, 3)
            assert np.array_equal(comm.all_reduce(a.copy()), a * n), name
            gathered = comm.all_gather(a)
            assert gathered.shape == (n, 2, 3) and gathered.dtype == a.dtype and np.array_equal(gathered[n - 1], a), name
            part = comm.reduce_scatter(a)
            assert part.shape == (1, 3) and np.array_equal(part[0], a[comm.rank] * n), (name, part)
            b = a + comm.rank if name[0] != 'c' else a + comm.rank * 1j
            assert np.array_equal(comm.broadcast(b.astype(name)), a), name
        flags = np.array([comm.rank == 1, False])
        assert comm.all_reduce(flags.copy(), 'max').tolist() == [True, False]
        assert comm.all_reduce(flags, 'min').tolist() == [False, False]
        assert comm.all_reduce(np.array(comm.rank + 1), 'prod') == 2  # no dimension at all
        assert comm.all_reduce(np.array([1 << comm.rank]), 'bor').tolist() == [3]
        column = np.asfortranarray(np.zeros((3, 1)))  # contiguous in both orders
        comm.all_reduce(column)
        within = np.zeros((n, 4), np.float32)
        within[comm.rank] = comm.rank
        assert comm.all_gather(within[comm.rank], out=within)[:, 0].tolist() == list(range(n))


def wrong():
    """Arrays that cannot be used: an error before anything is sent, so that the ranks stay together."""
    import numpy as np
    with cddp.init() as comm:
        grid = np.zeros((4, 4))
        fixed = np.zeros(3)
        fixed.flags.writeable = False
        raises(ValueError, ['all_reduce: array is not contiguous', 'strides of (32, 16)', 'ascontiguousarray'], comm.all_reduce, grid[:, ::2])
        raises(ValueError, ['not contiguous'], comm.broadcast, grid.T[:2])
        raises(ValueError, ['all_reduce: array is read-only'], comm.all_reduce, fixed)
        raises(ValueError, ['all_gather: out is read-only'], comm.all_gather, np.zeros(1), out=fixed)
        raises(TypeError, ['type float128' if np.longdouble(0).itemsize == 16 else 'type'], comm.all_reduce, np.zeros(2, np.longdouble))
        raises(TypeError, ['type >f4'], comm.all_reduce, np.zeros(2, '>f4'))
        raises(TypeError, ['type object'], comm.all_reduce, np.array([None]))
        raises(TypeError, ['type <U1'], comm.all_reduce, np.array(['a']))
        raises(TypeError, ['all_reduce: array'], comm.all_reduce, np.zeros(2, 'M8[s]'))
        raises(TypeError, ["op 'max' of complex"], comm.all_reduce, np.zeros(2, complex), 'max')
        raises(TypeError, ["op 'sum' of bool"], comm.all_reduce, np.zeros(2, bool))
        raises(ValueError, ["op 'plus' is unknown", 'sum, avg'], comm.all_reduce, np.zeros(2), 'plus')
        raises(TypeError, ['different types (float64, float32)'], comm.all_reduce, np.zeros(2), out=np.zeros(2, np.float32))
        raises(ValueError, ['out has 3 elements, 4 are needed'], comm.all_gather, np.zeros(2), out=np.zeros(3))
        raises(ValueError, ['3 elements cannot be divided among 2 ranks'], comm.reduce_scatter, np.zeros(3))
        raises(TypeError, ["parameter 'w' is not of a floating-point type"], cddp.DDP, comm, {'w': np.zeros(2, int)})
        raises(ValueError, ["parameter 'w' is read-only"], cddp.DDP, comm, {'w': fixed})
        raises(ValueError, ['comm_dtype'], cddp.DDP, comm, [np.zeros(2)], comm_dtype='int8')
        error = raises(cddp.Error, ['int64'], comm.all_reduce, np.zeros(2, int), 'avg')
        assert error.status == cddp.Status.INVALID and error.rank is None, (error.status, error.rank)
        error = raises(cddp.Error, ['root'], comm.broadcast, np.zeros(2), 5)
        assert error.status == cddp.Status.INVALID
        assert comm.error is None
        assert comm.all_reduce(np.ones(1)).tolist() == [2.0]  # nothing of it was sent
        with cddp.DDP(comm, {'w': np.zeros(2), 'b': np.zeros(1)}) as ddp:
            raises(ValueError, ["no parameter 'v'"], ddp.ready, 'v')
            raises(ValueError, ['no parameter 2'], ddp.grad, 2)
        raises(RuntimeError, ['closed'], ddp.wait)


def dies():
    """Rank 1 dies; the others' exception names it."""
    import pickle
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # cddprun ends the others: they say first what they saw
    comm = cddp.init()
    a = array.array('f', [1.0])
    comm.all_reduce(a)
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.all_reduce(a)
    except cddp.Error as error:
        assert comm.error.status == error.status
        copy = pickle.loads(pickle.dumps(error))
        assert (copy.status, copy.message, copy.rank) == (error.status, error.message, error.rank)
        say(f'rank {comm.rank}: {error.status.name} by rank {error.rank}: {error.message}')
    sys.exit(3)


def fails():
    """An exception inside `with` ends the others' waits, with its text."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with cddp.init() as comm:
            if comm.rank == 1:
                raise KeyError('a bad batch')
            comm.barrier()
    except cddp.Error as error:
        say(f'rank 0: {error.status.name} by rank {error.rank}: {error.message}')
    except KeyError:
        time.sleep(0.01)
        raise


def leaves():
    """sys.exit() inside `with` is this rank's orderly end."""
    with cddp.init() as comm:
        comm.barrier()
        if comm.rank == 1:
            sys.exit(0)
        time.sleep(0.3)
    say('rank 0 has ended')


def parts():
    """Parts of a communicator."""
    import numpy as np
    with cddp.init() as comm:
        half = comm.split(comm.rank % 2, name='half', timeout=60)
        assert half.size == 1 and half.rank == 0, repr(half)
        assert half.all_reduce(np.ones(2)).tolist() == [1.0, 1.0]
        assert comm.split(-1) is None
        half.finalize()
        half.finalize()
        assert comm.local_size == 2 and comm.local_rank == comm.rank and comm.node_rank == 0
        assert comm.backend == 'cpu' and comm.restart_count == 0 and comm.stop_requested is False
        assert comm.should_stop() is False
        if comm.rank == 1:
            comm.request_stop()
        assert comm.should_stop() is True and comm.should_stop() is True


def logs():
    """Lines with the rank; texts that are not UTF-8, and names that do not exist."""
    with cddp.init() as comm:
        comm.log('once\x1b', scope='rank0')
        comm.log('each', level='error', scope='all')
        comm.log('dropped', level='debug', scope='all')
        comm.log(f'odd \udc80 {comm.size}', scope='node')
        for wrong in ({'level': 'loud'}, {'scope': 'some'}):
            try:
                comm.log('x', **wrong)
            except ValueError as error:
                assert 'rank0, node, all' in str(error), error
            else:
                raise AssertionError(wrong)


def reducer():
    """Gradients in buckets, by name, in any order; the memory of a gradient outlives the reducer."""
    import numpy as np
    with cddp.init() as comm:
        w = np.full((3, 5), comm.rank + 1.0)
        b = np.zeros(7)
        ddp = cddp.DDP(comm, {'w': w, 'b': b}, bucket_bytes=64, first_bucket_bytes=1)
        assert (w == 1.0).all() and len(ddp) == 2  # rank 0's
        for step in range(3):
            ddp.grad('b')[:] = comm.rank + step
            ddp.ready('b')
            ddp.grad('w')[:] = np.arange(15).reshape(3, 5) * comm.rank
            ddp.ready(0)
            ddp.wait_param('b')
            ddp.wait()
            assert (ddp.grad('b') == step + 0.5).all() and ddp.grad('w')[2, 4] == 7.0
        whole = np.concatenate([ddp.grad(0).ravel(), ddp.grad(1)])
        assert abs(ddp.grad_norm() - np.linalg.norm(whole)) < 1e-12
        assert abs(ddp.clip_grad_norm(1.0) - np.linalg.norm(whole)) < 1e-12 and abs(ddp.grad_norm() - 1) < 1e-5
        kept = ddp.grad('w')
        value = kept.copy()
        ddp.close()
        ddp.close()
    del ddp
    assert np.array_equal(kept, value)
    with cddp.init() as comm:  # again
        with cddp.DDP(comm, {'w': w}, weighted=True) as ddp:
            ddp.set_weight(1 + 2 * comm.rank)
            ddp.grad('w')[:] = 8 * comm.rank
            ddp.ready('w')
            ddp.wait()
            assert (ddp.grad('w') == 6).all()
            assert raises(cddp.Error, ['-1'], ddp.set_weight, -1).status == cddp.Status.INVALID
        ddp = cddp.DDP(comm, {'w': w}, average=False)
        ddp.grad('w')[:] = 1
        ddp.ready('w')
        ddp.wait()
        assert (ddp.grad('w') == 2).all()
        error = raises(cddp.Error, ['w'], ddp.wait)
        assert error.status == cddp.Status.STATE
        raised = comm.error
        assert raised is not None
        comm._handle, handle = None, comm._handle
        cddp._comm.lib().cddp_finalize(handle)


def uneven():
    """Without PyTorch: what any rank used, buffers, ranks with fewer steps, and the divided optimizer."""
    with cddp.init() as comm:
        w, b = array.array('d', [comm.rank + 1.0] * 3), array.array('q', [comm.rank + 5])
        with cddp.DDP(comm, {'w': w, 'v': array.array('f', [0])}, buffers={'b': b}, find_unused=True, join=True) as ddp:
            assert b[0] == 5 and w[0] == 1
            error = raises(cddp.Error, ['before a step has ended'], ddp.was_used, 'w')
            assert error.status == cddp.Status.STATE
            for step in range(1 + comm.rank):
                b[0] = 10 * comm.rank
                ddp.sync_buffers()
                assert b[0] == 10
                ddp.grad('w')[0] = 4
                ddp.ready('w')
                ddp.wait()
                assert ddp.was_used('w') and not ddp.was_used('v')
                assert ddp.grad('w')[0] == (4 if step == 0 else 2)
                w[0] -= 1
            ddp.join()
            assert w[0] == -1, w  # rank 1's
        raises(ValueError, ["join 'all' is unknown"], cddp.DDP, comm, {'w': w}, join='all')
        w = array.array('f', [1.0] * 4)
        with cddp.DDP(comm, {'w': w, 'v': array.array('f', [2.0])}) as ddp:
            raises(ValueError, ["kind 'lion' is unknown", 'sgd, adam, adamw'], cddp.Optim, ddp, 'lion')
            raises(ValueError, ["a group has ['lr']"], cddp.Optim, ddp, 'sgd', groups=[{'params': ['w'], 'lr': 1}])
            error = raises(cddp.Error, ['lr'], cddp.Optim, ddp, 'sgd', lr=0)
            assert error.status == cddp.Status.INVALID
            with cddp.Optim(ddp, 'sgd', lr=0.5, momentum=0.5, groups=[{'params': ['w'], 'lr_factor': 2}, {'params': ['v'], 'frozen': True}]) as optim:
                for want, step in ((0, optim.step), (0, optim.skip), (-3, lambda: optim.step(lr=1.0)), (-4.75, optim.step)):
                    for i in (1, 0):
                        for k in range(len(ddp.grad(i))):
                            ddp.grad(i)[k] = 2.0 * comm.rank
                        ddp.ready(i)
                    step()
                    assert w.tolist() == [want] * 4, (w, want)
                optim.set_lr(0.25)
                optim.set_grad_scale(0.5)
                for i in (1, 0):
                    ddp.grad(i)[0] = math.nan
                    ddp.ready(i)
                error = raises(cddp.Error, ['not finite'], optim.step, skip_nonfinite=True)
                assert error.status == cddp.Status.NONFINITE and optim.skipped() == 1
                assert optim.state_bytes in range(4, 65), optim.state_bytes
            raises(RuntimeError, ['closed'], optim.step)


def sharded():
    """Parameters that are divided, beside whole ones with a divided optimizer: the same bits, in every way of gathering."""
    import numpy as np
    shapes = {'first': {'w': (33, 5), 'b': (5,)}, 'second': {'w': (7, 101)}, 'third': {'w': (2, 3), 'b': (1,), 'c': (1000,)}}

    def values(name, shape, dtype, seed):
        return np.random.default_rng([seed, *name.encode()]).standard_normal(shape).astype(dtype)

    def backward(name, w, step):
        return values(name, w.shape, w.dtype, 100 + 10 * step + comm.rank) + w / 4

    with cddp.init() as comm:
        for dtype, options, way in ((np.float32, {}, 'optim'), (np.float64, {'stage': 2}, 'optim'), (np.float64, {'keep': ['second']}, 'optim'),
                                    (np.float32, {'max_live_units': 1, 'max_live_gradients': 1}, 'fill'), (np.float64, {}, 'own')):
            whole = {f'{u}.{n}': values(u + n, shape, dtype, comm.rank) for u, params in shapes.items() for n, shape in params.items()}
            units = [(u, {n: np.empty(s, dtype) if way == 'fill' else whole[f'{u}.{n}'].copy() for n, s in params.items()})
                     for u, params in shapes.items()]

            def fill(u, arrays):
                assert list(arrays) == list(shapes[u])
                for n, a in arrays.items():
                    a[...] = whole[f'{u}.{n}']

            with cddp.FSDP(comm, units=units, fill=fill if way == 'fill' else None, **options) as fsdp, cddp.DDP(comm, whole) as ddp:
                assert len(fsdp) == 3 and fsdp.bytes > 0
                groups = [{'params': ['third.b', 'first.w'], 'lr_factor': 0.5}]
                both = [] if way == 'own' else [cddp.Optim(model, 'adamw', lr=0.05, groups=groups) for model in (fsdp, ddp)]
                for step in range(4):
                    for u in shapes:
                        with fsdp.unit(u) as params:
                            assert not any(a.flags.writeable for a in params.values()) and list(params) == list(shapes[u])
                            assert all(np.array_equal(a, whole[f'{u}.{n}']) for n, a in params.items())
                    for u in reversed(shapes):
                        with fsdp.unit(u) as params:
                            for n, grad in fsdp.grads(u).items():
                                grad[...] = backward(u + n, params[n], step)
                        fsdp.grads_ready(u)
                    for name, w in whole.items():
                        ddp.grad(name)[...] = backward(name.replace('.', ''), w, step)
                        ddp.ready(name)
                    for optim in both:
                        optim.step(max_norm=2.0)
                    if way == 'own':
                        fsdp.end_step()
                        ddp.wait()
                        for name, w in whole.items():
                            w -= 0.125 * ddp.grad(name)
                            begin, part, grad = fsdp.shard(name)
                            assert np.array_equal(grad, ddp.grad(name).ravel()[begin:begin + len(part)])
                            part -= 0.125 * grad
                seen = {n: a.copy() for n, a in fsdp.named_parameters()}
                assert list(seen) == list(whole) and all(np.array_equal(a, whole[n]) for n, a in seen.items())
                for optim in both:
                    optim.close()
        plain = {'a': array.array('d', [comm.rank + 1.0] * 5)}  # without numpy; the memory of an array outlives the model
        fsdp = cddp.FSDP(comm, units={'u': plain, 'v': [array.array('f', [2.0])]})
        with fsdp.unit(1) as params:
            assert params['0'].readonly and params['0'].tolist() == [2.0]
        with cddp.Optim(fsdp, 'sgd', lr=1.0) as optim:
            for u in (1, 0):
                kept = fsdp.grads(u)
                for i in range(len(kept['a' if u == 0 else '0'])):
                    kept['a' if u == 0 else '0'][i] = comm.rank
                fsdp.grads_ready(u)
            optim.step()
            for end in (optim.step, fsdp._close_step):
                raises(cddp.Error, ['no gradients of 2 of 2 units', "'u'", 'grads_ready()'], end)
            fsdp.grads('u')['a'][0] = 9
            fsdp.grads_ready('u')
            raises(cddp.Error, ["no gradients of 1 of 2 units in this step, first of 'v'"], optim.step)
            error = raises(cddp.Error, ["the gradients of unit 0 'u' were ready already"], fsdp.grads_ready, 'u')
            assert error.status == cddp.Status.STATE and comm.error is None
            optim.skip()
        mean = (comm.size - 1) / 2
        assert [(n, a.tolist()) for n, a in fsdp.named_parameters()] == [('u.a', [1 - mean] * 5), ('v.0', [2 - mean])]
        fsdp.close()
        fsdp.close()
        raises(RuntimeError, ['closed'], fsdp.gather, 'u')
    assert len(kept['a'].tolist()) == 5


def sharded_wrong():
    """What FSDP refuses breaks nothing."""
    import numpy as np
    with cddp.init() as comm:
        w = np.ones(5)
        create = functools.partial(cddp.FSDP, comm)
        raises(TypeError, ["parameter 'u.w' is not of a floating-point type"], create, units=[('u', {'w': np.ones(5, np.int32)})])
        raises(ValueError, ["parameter 'u.w' is not contiguous"], create, units=[('u', {'w': np.ones((4, 4)).T})])
        raises(ValueError, ['two units have the same name'], create, units=[('u', [w]), ('u', [w])])
        raises(ValueError, ["keep names ['v']"], create, units=[('u', [w])], keep=['v'])
        assert raises(cddp.Error, ["'u.0' has no elements"], create, units=[('u', [np.ones(0)])]).status == cddp.Status.UNSUPPORTED
        assert raises(cddp.Error, ['at least one unit'], create, units=[]).status == cddp.Status.INVALID
        assert raises(cddp.Error, ['use 2 or 3'], create, units=[('u', [w])], stage=1).status == cddp.Status.INVALID
        if comm.size > 1:
            error = raises(cddp.Error, ['stage is 3 on rank 0 but 2 on rank 1'], create, units=[('u', [w])], stage=2 if comm.rank == 1 else 3)
            assert error.status == cddp.Status.MISMATCH and error.rank == 1

        def fill(name, arrays):
            if comm.rank == comm.size - 1:
                raise KeyError(name)

        if comm.rank == comm.size - 1:
            raises(KeyError, ['u'], create, units=[('u', [w])], fill=fill)
        else:
            raises(cddp.Error, ['rank 1 could not make its parameters', "'u'"], create, units=[('u', [w])], fill=fill)
        raises(cddp.Error, ["'u.0' and unit 'v', parameter 'v.0' have the same data"], create, units=[('u', [w]), ('v', [w])])
        with create(units=[('u', [w]), ('v', [w.copy()])], max_live_units=1, max_live_gradients=1) as fsdp:
            raises(ValueError, ["no unit 'w'"], fsdp.gather, 'w')
            raises(ValueError, ['no unit 2; there are 2'], fsdp.gather, 2)
            raises(ValueError, ["no parameter 'u'", 'UNIT.PARAMETER'], fsdp.shard, 'u')
            raises(cddp.Error, ["'u' is not held"], fsdp.params, 'u')
            raises(cddp.Error, ["'u' is not held"], fsdp.release, 'u')
            with fsdp.unit('u'):
                raises(cddp.Error, ["'v' cannot be gathered", 'max_live_units'], fsdp.gather, 'v')
            raises(cddp.Error, ["unit 0 'u' has no gradients"], fsdp.grads_ready, 'u')
            fsdp.grads('u')
            raises(cddp.Error, ["no memory for the gradients of unit 1 'v'"], fsdp.grads, 'v')
        comm.barrier()


def stats():
    """Where the time of the steps went: rank 1 is late in each of them."""
    with cddp.init() as comm, cddp.DDP(comm, {'w': array.array('f', [0.0] * 1000)}) as ddp:
        assert ddp.get_stats()._replace(bucket_bytes=0, largest_bucket_bytes=0) == (0,) * 20 + (None, None, 1, 0, 0, 0) + (0,) * 4, ddp.get_stats()
        for _ in range(4):
            time.sleep(0.1 * comm.rank)
            ddp.ready('w')
            ddp.wait()
        s = ddp.get_stats()
        assert (s.steps, s.bytes, s.last_bytes, s.n_buckets, s.bucket_bytes) == (3, 12000, 4000, 1, 4000), s
        assert s.step_ns >= 3 * 50e6 and s.last_step_ns > 0 and s.comm_ns == s.exposed_ns + s.hidden_ns, s
        if comm.rank == 0:
            assert s.slowest_rank == 1 and 1 <= s.slowest_steps <= 3 and 20e6 < s.late_ns <= s.exposed_ns, s
            assert s.late_ns <= s.waiting_ns and s.waiting_ns + s.transfer_ns == s.comm_ns, s
        error = raises(cddp.Error, ['has no cddp_no_such'], cddp._abi.experimental, 'cddp_no_such')
        assert error.status == cddp.Status.UNSUPPORTED
    raises(RuntimeError, ['closed'], ddp.get_stats)


def tensors():
    """PyTorch: tensors of every type, tensors that cannot be used, and a model that trains as one process would."""
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with cddp.init() as comm:
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.complex64):
            t = torch.full((5,), comm.rank + 1, dtype=dtype)
            at = t.data_ptr()
            assert comm.all_reduce(t) is t and t.data_ptr() == at and (t == 3).all(), t
            assert comm.all_gather(t).shape == (2, 5)
        parameter = torch.nn.Parameter(torch.full((3,), float(comm.rank)))
        comm.broadcast(parameter, root=1)
        assert (parameter == 1).all()
        raises(ValueError, ['all_reduce: array is not contiguous', 'strides of (4, 16)'], comm.all_reduce, torch.zeros(4, 4).t())
        raises(TypeError, ['all_reduce: array'], comm.all_reduce, torch.zeros(2, dtype=torch.float32).to_sparse())
        model, alone = (torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)) for _ in range(2))
        x, y = torch.randn(8, 4), torch.randn(8, 1)
        with cddp.DDP(comm, model.named_parameters()).attach() as ddp:
            alone.load_state_dict(model.state_dict())
            for step in range(5):
                torch.nn.functional.mse_loss(model(x[comm.rank::2]), y[comm.rank::2]).backward()
                ddp.wait()
                torch.nn.functional.mse_loss(alone(x), y).backward()
                for p in (*model.parameters(), *alone.parameters()):  # what torch.optim.SGD does, whose import takes seconds
                    p.data -= 0.1 * p.grad
                    p.grad = None if step % 2 == 0 else p.grad.zero_()
            assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(model.parameters(), alone.parameters()))
        assert not model[0].weight._post_accumulate_grad_hooks
        say(f'rank {comm.rank}: PyTorch agrees')


def stands():
    """Rank 1 leaves the others alone."""
    def planted_sleep():
        time.sleep(1000)

    with cddp.init() as comm:
        if comm.rank == 1:
            planted_sleep()
        comm.barrier()


if __name__ == '__main__':
    globals()[sys.argv[1]]()
