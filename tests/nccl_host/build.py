#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds libnccl.so.2 of NCCL's own host code, without nvcc, on the runtime of this folder.

build.py --archive nccl-v2.30.7-1.tar.xz --cuda-include DIR --standin libcddp_standin.so --out libnccl.so.2 SOURCE...

SOURCEs are the files of this folder that take the place of CUDA's runtime and of the kernels: they see NCCL's headers.
Objects of NCCL are kept in $XDG_CACHE_HOME/cddprun-nccl-host (or ~/.cache), by version, flags and compiler.
"""
import argparse, concurrent.futures, fcntl, hashlib, os, pathlib, re, shutil, subprocess, sys, tarfile

FLAGS = ['-w', '-O1', '-std=c++17', '-fPIC', '-fvisibility=hidden', '-DNCCL_OS_LINUX', '-D_GNU_SOURCE', '-DPROFAPI', '-DENABLE_TIMER=0']
# Host code that drives InfiniBand hardware, other systems, and programs beside the library.
LEFT_OUT = re.compile(r'^(device|transport/(net_ib|gdaki)|os/windows)|_stub\.cc$|^(enhcompat|ras/client|param/ncclparam)\.cc$')
KERNEL = re.compile(r'ncclDevKernel|ncclSymkDevKernel|ncclSymDevKernel')


def compiler(source=None):
    name, default = ('CC', 'gcc') if source is not None and source.suffix == '.c' else ('CXX', 'g++')
    return (['ccache'] if shutil.which('ccache') else []) + os.environ.get(name, default).split()


def run(command, **how):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **how)
    if done.returncode != 0:
        sys.exit('nccl_host: %s ... %s failed:\n%s' % (command[0], command[-1], done.stdout[-4000:]))
    return done.stdout


class Tree:
    """One version of NCCL in the cache: its sources, the headers that its makefiles generate, and its objects."""

    def __init__(self, archive, cuda_include, flags):
        version = run([*compiler(), '--version']).split('\n')[0]
        key = hashlib.sha256(repr((archive.read_bytes(), version, cuda_include, FLAGS, flags)).encode()).hexdigest()[:16]
        cache = pathlib.Path(os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache')
        self.top = cache / 'cddprun-nccl-host' / (archive.name.split('.tar')[0] + '-' + key)
        self.src, self.inc, self.gen, self.obj = (self.top / d for d in ('src', 'inc', 'gen', 'obj'))
        self.flags = [*FLAGS, *flags, *('-I%s' % d for d in (self.src, self.inc, self.src / 'include', self.src / 'include/plugin')),
                      '-isystem', cuda_include, '-isystem', cuda_include + '/cccl']
        self.top.parent.mkdir(parents=True, exist_ok=True)
        self.lock = open(str(self.top) + '.lock', 'w', encoding='utf-8')  # until the end of this process
        fcntl.flock(self.lock, fcntl.LOCK_EX)  # other builds use the same folder
        if not (self.top / 'ready').exists():
            self.unpack(archive)

    def flags_of(self, source):
        return [*(f for f in self.flags if source.suffix != '.c' or f != '-std=c++17')]

    def unpack(self, archive):
        shutil.rmtree(self.top, ignore_errors=True)
        self.obj.mkdir(parents=True)
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                parts = pathlib.PurePath(member.name).parts
                if '..' in parts or member.name.startswith('/') or not (member.isfile() or member.isdir()):
                    continue
                inside = parts[parts.index('src') + 1:] if 'src' in parts else parts[-1:] if parts[-1] == 'version.mk' else ()
                if inside and member.isfile():
                    at = self.src.joinpath(*inside)
                    at.parent.mkdir(parents=True, exist_ok=True)
                    at.write_bytes(tar.extractfile(member).read())
        self.write_headers()
        for part, name in (('.', 'kernels'), ('symmetric', 'symmetric')):
            out = self.gen / name
            out.mkdir(parents=True)
            run([sys.executable, self.src / 'device' / part / 'generate.py', out], cwd=self.src / 'device' / part)
        (self.top / 'ready').touch()

    def write_headers(self):
        number = dict(re.findall(r'^NCCL_(MAJOR|MINOR|PATCH)\s*:=\s*(\d+)', (self.src / 'version.mk').read_text(), re.M))
        major, minor, patch = (int(number[part]) for part in ('MAJOR', 'MINOR', 'PATCH'))
        text = (self.src / 'nccl.h.in').read_text()
        for name, value in (('Major', major), ('Minor', minor), ('Patch', patch), ('Suffix', ''), ('Version', major * 10000 + minor * 100 + patch)):
            text = text.replace('${nccl:%s}' % name, str(value))
        self.inc.mkdir(exist_ok=True)
        (self.inc / 'nccl.h').write_text(text)
        (self.inc / 'nccl_git_version.h').write_text('#define NCCL_GIT_BRANCH "archive"\n#define NCCL_GIT_COMMIT_HASH "none"\n#define GIT_VERSION "none"\n#define NCCL_GIT_VERSION "none"\n')
        for header in (self.src / 'include').glob('nccl_device*'):
            (shutil.copytree if header.is_dir() else shutil.copy)(header, self.inc / header.name)
        doca = self.src / 'transport/net_ib/gdaki/doca-gpunetio/include'
        if doca.is_dir():
            shutil.copytree(doca, self.inc / 'nccl_device/gin/gdaki/doca_gpunetio')

    def compile(self, source, flags=()):
        base = self.src if self.src in source.parents else self.gen if self.gen in source.parents else None
        obj = self.obj / ((str(source.relative_to(base)) if base else 'own/' + source.name).replace('/', '_') + '.o')
        if base is None or not obj.exists():
            part = obj.with_suffix('.part')
            run([*compiler(), *self.flags, *flags, '-c', source, '-o', part])
            part.rename(obj)
        return obj

    def sources(self):
        return [f for f in sorted(self.src.rglob('*.cc')) if not LEFT_OUT.search(str(f.relative_to(self.src)))] + sorted(self.gen.rglob('*host*.cc'))

    def objects(self, jobs):
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            done = list(pool.map(lambda f: self.compile(f, ['-D__global__=', '-D__grid_constant__='] if self.gen in f.parents else []), self.sources()))
        return done

    def kernels(self, objects):
        """An object with a symbol for each kernel: its address is the kernel's handle; a table gives its name."""
        symbols = {kind: {line.split()[-1] for line in run(['nm', kind, *objects]).split('\n') if KERNEL.search(line)}
                   for kind in ('-u', '--defined-only')}
        names = sorted(symbols['-u'] - symbols['--defined-only'])
        text = ['.text'] + ['.balign 16\n.globl {0}\n.hidden {0}\n{0}: ret'.format(n) for n in names]
        text += ['.section .data.rel.ro,"aw"', '.globl host_kernels', '.hidden host_kernels', '.balign 8', 'host_kernels:']
        text += ['.quad {0}, 1f\n.section .rodata\n1: .asciz "{0}"\n.section .data.rel.ro,"aw"'.format(n) for n in names]
        text += ['.quad 0, 0', '.section .note.GNU-stack,"",@progbits', '']
        asm = self.obj / 'kernels.s'
        asm.write_text('\n'.join(text))
        obj = self.obj / 'kernels.s.o'
        run(['g++', '-c', asm, '-o', obj])
        return obj


def main():
    p = argparse.ArgumentParser(description='Builds NCCL\'s host code without a GPU.')
    p.add_argument('--archive', type=pathlib.Path, required=True)
    p.add_argument('--cuda-include', required=True)
    p.add_argument('--standin', type=pathlib.Path)
    p.add_argument('--include', action='append', default=[])
    p.add_argument('--flags', default='')
    p.add_argument('--jobs', type=int, default=os.cpu_count())
    p.add_argument('--out', type=pathlib.Path)
    p.add_argument('sources', nargs='*', type=pathlib.Path)
    a = p.parse_args()
    tree = Tree(a.archive, a.cuda_include, a.flags.split())
    objects = tree.objects(a.jobs)
    if a.out is None:
        return
    objects.append(tree.kernels(objects))
    own = []
    for source in a.sources:
        own.append(a.out.parent / (a.out.name + '.p') / (source.name + '.o'))
        own[-1].parent.mkdir(exist_ok=True)
        run([*compiler(source), *tree.flags_of(source), '-g', *('-I' + i for i in a.include), '-c', source, '-o', own[-1]])
    run([*compiler(), '-shared', *a.flags.split(), '-Wl,-Bsymbolic,-z,defs,-soname,libnccl.so.2,--wrap=recv,--wrap=accept', '-o', a.out,
         *objects, *own, a.standin,
         '-Wl,--enable-new-dtags,-rpath,$ORIGIN:' + str(a.standin.parent), '-ldl', '-lpthread', '-lrt'])


if __name__ == '__main__':
    main()
