#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/gpt on a GPU, which the stand-in is here: losses are the CPU's, bits stay the same, an error has one clear message.

    test_gpt_gpu.py CDDPRUN [TEST...]; the environment names the stand-in and the twins of the kernels.
"""
import contextlib
import os
import signal
import sys

sys.path[:0] = [os.path.join(os.path.dirname(__file__), '..', folder) for folder in ('integration', 'support')]
import launch
from launch import Job, run, wait_for
from test_gpt import ROOT, SMALL, Run, apart, end, folder, gpt, losses, train

BF16_APART = 0.01  # of losses from 5.5 to 3.2; the largest seen is 0.0013
FEW = [*SMALL, '--steps', '8', '--batch', '4']


@contextlib.contextmanager
def short_run(*flags):
    """A text that is evaluated soon."""
    with folder() as f:
        (f / 'text').write_bytes((ROOT / 'examples/gpt/data/kjv.txt').read_bytes()[:12000])
        yield Run(f, '--text', str(f / 'text'), *flags)


def gpu_train(cddprun, flags, ranks=2, status=0):
    return train(cddprun, flags, ranks, status, env=os.environ)


def result(cddprun, *flags, ranks=2):
    with short_run(*flags) as r:
        gpu_train(cddprun, r.flags, ranks)
        return losses(r.log), r.weights.read_bytes()


def test_losses_are_the_cpus(cddprun):
    """50 steps, with weights that are learned fast. Two ranks; and one that takes its share in three passes."""
    for ranks, more in (1, ['--micro', '3', '--untied']), (2, []):
        flags = ['--steps', '50', '--lr', '0.002', '--warmup', '5', *more]
        want, _ = result(cddprun, *flags, '--device', 'cpu', ranks=ranks)
        got, _ = result(cddprun, *flags, '--device', 'gpu', ranks=ranks)
        assert len(got) == 50 and want[0] - want[-1] > 0.8, (want[0], want[-1])
        assert apart(got, want) <= 1e-4, (ranks, apart(got, want))
        if ranks == 2:
            narrow, _ = result(cddprun, *flags, '--dtype', 'bf16')
            assert 1e-5 < apart(narrow, want) <= BF16_APART, apart(narrow, want)


def test_same_run_has_the_same_bits_divided_or_not(cddprun):
    for dtype in 'float32', 'bf16':
        flags = ['--steps', '12', '--micro', '1', '--bucket-kib', '20', '--clip', '0.5', '--dtype', dtype]
        want = result(cddprun, *flags)
        assert result(cddprun, *flags) == want, dtype
        for more in '--divided', '--fsdp', '--fsdp=2':
            assert result(cddprun, *flags, more) == want, (dtype, more)


def test_stopped_run_goes_on(cddprun):
    for more in ['--dtype', 'bf16'], ['--dtype', 'bf16', '--divided'], []:
        with short_run('--steps', '60', '--log-every', '5', *more) as r:
            saving = [*r.saving, '--save-every', '0']
            with Job(cddprun, '--standalone', '--nproc_per_node=2', gpt(cddprun), *r.flags, *saving, env=os.environ) as job:
                wait_for('ten steps', lambda: r.log.exists() and len(r.log.read_bytes().splitlines()) > 1)
                job.process.send_signal(signal.SIGTERM)
                assert job.finish() == 0, (end(job.out), end(job.err))
                assert 'asked to stop; saved in' in job.out, end(job.out)
            out, _ = gpu_train(cddprun, [*r.flags, *saving])
            assert 'resumed from' in out, end(out)
            assert (losses(r.log), r.weights.read_bytes()) == result(cddprun, '--steps', '60', '--log-every', '5', *more)


def test_checkpoint_of_a_gpu_is_one_of_the_cpu(cddprun):
    """In float32. Another type is rejected."""
    with short_run('--steps', '5') as r:
        gpu_train(cddprun, [*r.flags, *r.saving, '--device', 'gpu'])
        _, err = gpu_train(cddprun, [*r.flags, *r.saving, '--dtype', 'bf16'], status=1)
        assert '--dtype and the text must be the same' in err, err
        out, _ = gpu_train(cddprun, [*r.flags, *r.saving, '--device', 'cpu', '--steps', '6'])
        assert 'after step 5\n' in out and 'step 6/6' in out, end(out)


def test_writes(cddprun):
    with short_run('--steps', '5', '--sample', '40', '--seed', '3') as r:
        said = [gpu_train(cddprun, [*r.flags, '--sample', '40', '--device', device], 1)[0] for device in ('cpu', 'gpu')]
        assert 'Stand-in device, float32' in said[1], end(said[1])
        texts = [one[one.index('\n[0] And '):] for one in said]
        assert texts[0] == texts[1] and len(texts[0]) > 40, texts


def says(cddprun, message, *flags, **environment):
    got, out, err = run(cddprun, '--standalone', '--nproc_per_node=1', gpt(cddprun), *FEW, *flags, env=os.environ | environment)
    assert got == 1 and message in err and err.count(f'| gpt: rank 0: {message}') == 1, (got, end(out), end(err))


def test_missing_cublas_is_told(cddprun):
    remedy = 'install it, add its folder to LD_LIBRARY_PATH, name it in CDDP_CUBLAS_LIBRARY, or use --device cpu'
    says(cddprun, f'cannot open cuBLAS (/no/cublas.so): {remedy}', CDDP_CUBLAS_LIBRARY='/no/cublas.so')
    libm = 'libm.so.6'
    says(cddprun, f'{libm} has no cublasCreate_v2: it is older than CUDA 11, or not cuBLAS', CDDP_CUBLAS_LIBRARY=libm)


def test_failing_calls_are_told(cddprun):
    says(cddprun, 'the GPU failed in gpt_', CDDP_STANDIN_FAIL='cuLaunchKernel:300:700')
    library = os.environ['CDDP_CUBLAS_LIBRARY']
    says(cddprun, f'{library[:150]} failed in cublasGemmEx: cuBLAS status 13', CDDP_STANDIN_FAIL='cublasGemmEx:30:700')
    says(cddprun, 'the GPU has no ', '--size', '124M', '--batch', '8', CDDP_STANDIN_MEMORY_MB='500')


def test_bf16_needs_a_gpu(cddprun):
    says(cddprun, '--dtype bf16 needs a GPU', '--dtype', 'bf16', CDDP_BACKEND='cpu')
    for flags, message in [(['--dtype', 'bf16', '--device', 'cpu'], '--dtype bf16 needs a GPU'), (['--dtype', 'int8'], '--dtype must be'),
                           (['--device', 'cp'], '--device must be auto, cpu or gpu')]:
        got, out, err = run(gpt(cddprun), *flags)
        assert got == 2 and message in err and err.count('\n') == 1, (flags, got, out, err)


if __name__ == '__main__':
    launch.main()
