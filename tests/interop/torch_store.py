# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own TCPStore clients, Python's and C++'s, and raw bytes, against our server and PyTorch's: the same answers.

usage: torch_store.py RDZV_SERVER NAMES PYTHON   (PYTHON: one that has PyTorch; empty: skipped, exit status 77)
NAMES: bench/peers/names.c as a library, since PyTorch's server asks the resolver for the name of every client.
"""
import os
import subprocess
import sys

if len(sys.argv) != 4:
    sys.exit(__doc__)
SERVER, NAMES, PYTHON = sys.argv[1:]
if not PYTHON:
    print('skipped: no python with PyTorch was given (meson option torch_python)')
    sys.exit(77)
if os.environ.get('TORCH_STORE_CHILD') != '1':
    os.execve(PYTHON, [PYTHON] + sys.argv, dict(os.environ, TORCH_STORE_CHILD='1', TORCH_CPP_LOG_LEVEL='FATAL',
                                                  OMP_NUM_THREADS='1', LD_PRELOAD=NAMES))
os.environ.pop('LD_PRELOAD')

import datetime
import shutil
import socket
import struct
import tempfile
import threading

import torch
import torch.distributed as dist


def ms(n):
    return datetime.timedelta(milliseconds=n)


def client(port):
    return dist.TCPStore('127.0.0.1', port, is_master=False, timeout=ms(5000))


def outcome(call, *args):
    """The answer, or what kind of error; an error's text names ports and is left out but for a wait's."""
    try:
        return call(*args)
    except Exception as error:
        text = str(error).splitlines()[0]
        return type(error).__name__ + (': ' + text if 'timeout' in text else '')


def clones_in_threads(store):
    """Eight clones add, set, wait and synchronize at the same time."""
    def work(clone, number):
        for _ in range(100):
            clone.add('together', 1)
        clone.set('of%d' % number, str(number))
        clone.wait(['of%d' % one for one in range(8)], ms(5000))
        clone.barrier('all', 8, ms(5000))
    threads = [threading.Thread(target=work, args=(store.clone(), number)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return store.add('together', 0), store.multi_get(['of%d' % one for one in range(8)])


# ------------------------------------------------------------------------------------------------ PyTorch's client ----

def script(store, other):
    """Yield (what, answer): the same calls on either server."""
    yield 'set/get', (store.set('a', 'one'), store.get('a'))
    yield 'set bytes', (store.set('bin', bytes(range(256)).decode('latin1')), store.get('bin'))
    yield 'empty value', (store.set('empty', ''), store.get('empty'), store.check(['empty']))
    yield 'add', (store.add('n', 5), store.add('n', -7), store.get('n'))
    for text in (' 12xyz', '9223372036854775807', '-9223372036854775808', '+3', '007'):
        yield 'add to ' + text, (store.set('t', text), store.add('t', 1), store.get('t'))
    yield 'check', (store.check(['a', 'n']), store.check(['a', 'none']), store.check([]))
    yield 'wait, there', store.wait(['a', 'n'], ms(1000))
    yield 'wait, timeout', outcome(store.wait, ['none'], ms(100))
    yield 'wait, timeout, two', outcome(store.wait, ['a', 'none2'], ms(100))
    yield 'after a timeout', store.get('a')
    yield 'get, timeout', (store.set_timeout(ms(100)), outcome(store.get, 'none'), store.set_timeout(ms(5000)))
    yield 'compare_set', [store.compare_set('c', *args) for args in
                          (('x', 'y'), ('', 'first'), ('wrong', 'second'), ('first', 'third'), ('third', ''), ('', 'z'))]
    yield 'append', (store.append('p', 'ab'), store.append('p', ''), store.append('p', 'cd'), store.get('p'))
    yield 'has_extended_api', store.has_extended_api()
    yield 'timeout', (store.timeout, store.set_timeout(ms(1234)), store.timeout, store.set_timeout(ms(5000)))
    yield 'multi_get, timeout', (store.set_timeout(ms(100)), outcome(store.multi_get, ['a', 'none']),
                                 store.set_timeout(ms(5000)))
    yield 'wait, its own timeout', (store.set_timeout(ms(100)), outcome(store.wait, ['none']), store.set_timeout(ms(5000)))
    yield 'multi_set', (store.multi_set(['m1', 'm2'], ['1', '2']), store.multi_get(['m2', 'm1', 'm2']))
    yield 'num_keys', store.num_keys()
    yield 'delete_key', (store.delete_key('m1'), store.delete_key('m1'), store.num_keys())
    yield 'list_keys', sorted(store.list_keys())
    yield 'queue', (store.queue_len('q'), store.queue_push('q', 'i1'), store.queue_push('q', 'i2'), store.queue_len('q'),
                    store.check(['q']), store.wait(['q'], ms(1000)), store.queue_pop('q'), store.queue_pop('q'),
                    store.queue_len('q'), store.check(['q']))
    yield 'queue_pop, empty', outcome(store.queue_pop, 'q', False)
    yield 'queue_pop, timeout', (store.set_timeout(ms(100)), outcome(store.queue_pop, 'q'), store.set_timeout(ms(5000)))
    popped = []
    popper = threading.Thread(target=lambda: popped.append(other.queue_pop('late queue')))
    popper.start()
    yield 'queue_pop, waiting', (store.queue_push('late queue', 'x'), popper.join(5), popped)
    yield 'queues and keys', (store.queue_push('q2', 'x'), store.num_keys(), sorted(store.list_keys()),
                              store.delete_key('q2'), store.queue_len('q2'))
    prefix = dist.PrefixStore('p1', dist.PrefixStore('p2', store))
    yield 'PrefixStore', (prefix.set('k', 'v'), prefix.get('k'), store.get('p2/p1/k'), prefix.add('n', 2),
                          prefix.check(['k', 'n']), prefix.compare_set('k', 'v', 'w'), prefix.num_keys(),
                          sorted(prefix.list_keys()), prefix.delete_key('k'))
    yield 'PrefixStore of more', (prefix.append('l', 'ab'), prefix.append('l', 'c'), prefix.multi_set(['m', 'o'], ['1', '2']),
                                  prefix.multi_get(['o', 'l', 'm']), prefix.queue_push('q', 'i'), prefix.queue_len('q'),
                                  prefix.queue_pop('q'), prefix.has_extended_api(), prefix.underlying_store.get('p1/m'))
    yield 'PrefixStore wait', outcome(prefix.wait, ['none'], ms(100))
    yield 'large value', (store.set('big', 'x' * (8 << 20)), len(store.get('big')), store.delete_key('big'))
    yield 'long key', (store.set('k' * 8191, 'v'), store.get('k' * 8191))
    yield 'many keys', (store.multi_set(['many%d' % i for i in range(5000)], [str(i) for i in range(5000)]),
                        store.multi_get(['many%d' % i for i in range(5000)])[4999])
    waiter = threading.Thread(target=lambda: other.wait(['late'], ms(5000)))
    waiter.start()
    yield 'woken', (store.set('late', '1'), waiter.join(5), waiter.is_alive())
    for name, stores in (('barrier', (store, other)),
                         ('PrefixStore barrier', (prefix, dist.PrefixStore('p1', dist.PrefixStore('p2', other))))):
        if not hasattr(store, 'barrier'):
            break
        first = threading.Thread(target=stores[1].barrier, args=('b', 2, ms(5000)))
        first.start()
        yield name, (stores[0].barrier('b', 2, ms(5000)), first.join(5), first.is_alive())
    yield 'clones in threads', clones_in_threads(store)
    yield 'PrefixStore clones in threads', clones_in_threads(prefix)
    yield 'barrier, timeout', outcome(store.barrier, 'lonely', 2, ms(100)) if hasattr(store, 'barrier') else None
    yield 'at the end', (store.num_keys(), hash(tuple(sorted(store.list_keys()))))


# -------------------------------------------------------------------------------------------------------- raw bytes ----

def u64(n):
    return struct.pack('<Q', n & (1 << 64) - 1)


def s(data):
    return u64(len(data)) + data


def keys(*names):
    return u64(len(names)) + b''.join(map(s, names))


HELLO = b'\x00\xce\xf7\x85\x3c'
PING = b'\x0d\x01\x02\x03\x04'
SET, CAS, GET, ADD, CHECK, WAIT, NUM, DEL, APPEND, MGET, MSET, CANCEL = (bytes([n]) for n in range(1, 13))
PUSH, POP, LEN, LIST, BARRIER = (bytes([n]) for n in range(14, 19))

# Each case: what one connection sends, in steps; each step's answer is read until PING's echo or the end.
RAW = {
    'pipelined': [SET + s(b'r1') + s(b'v') + GET + s(b'r1') + ADD + s(b'r2') + u64(3) + NUM],
    'missing keys': [GET + s(b'none'), MGET + keys(b'r1', b'none', b'r1')],
    'empty key': [SET + s(b'') + s(b'x') + GET + s(b'') + CHECK + keys(b'')],
    'add to text': [SET + s(b'r3') + s(b'text'), ADD + s(b'r3') + u64(1)],
    'add to nothing': [SET + s(b'r3') + s(b''), ADD + s(b'r3') + u64(1)],
    'add to blanks': [SET + s(b'r3') + s(b'  '), ADD + s(b'r3') + u64(1)],
    'add to too large': [SET + s(b'r3') + s(b'9223372036854775808'), ADD + s(b'r3') + u64(1)],
    'add to a nul': [SET + s(b'r3') + s(b'1\x002'), ADD + s(b'r3') + u64(1)],
    'cancel without a wait': [CANCEL],
    'wait and cancel': [WAIT + keys(b'none'), CANCEL, SET + s(b'none') + s(b'1') + DEL + s(b'none')],
    'wait for nothing': [WAIT + keys()],
    'wait twice for one': [WAIT + keys(b'r1', b'r1')],
    'wait for a queue': [PUSH + s(b'rq') + s(b'i') + WAIT + keys(b'rq'), POP + s(b'rq') + POP + s(b'rq') + LEN + s(b'rq')],
    'barrier of one': [BARRIER + s(b'rb') + u64(1) + GET + s(b'rb')],
    'barrier of none': [BARRIER + s(b'rb0') + u64(0) + GET + s(b'rb0')],
    'barrier of less than none': [BARRIER + s(b'rb1') + u64(-5) + GET + s(b'rb1')],
    'barrier, parked and cancelled': [BARRIER + s(b'rb2') + u64(2), CANCEL, GET + s(b'rb2')],
    'barrier over a value': [SET + s(b'rb3') + s(b'7') + BARRIER + s(b'rb3') + u64(8) + GET + s(b'rb3')],
    'barrier over text': [SET + s(b'rb4') + s(b'x') + BARRIER + s(b'rb4') + u64(1)],
    'delete a queue': [PUSH + s(b'rq2') + s(b'i') + DEL + s(b'rq2') + LEN + s(b'rq2')],
    'queue and value of one name': [PUSH + s(b'rq3') + s(b'i') + SET + s(b'rq3') + s(b'v') + GET + s(b'rq3') + LEN +
                                    s(b'rq3') + DEL + s(b'rq3') + LEN + s(b'rq3') + CHECK + keys(b'rq3')],
    'unknown operation': [b'\x13'],
    'validate again': [HELLO],
    'a key too long': [GET + s(b'k' * 8193)],
    'a value too long': [SET + s(b'k') + u64((8 << 20) + 1)],
    'a list too long': [WAIT + u64(131073)],
}


def dial(port):
    sock = socket.create_connection(('127.0.0.1', port), 5)
    sock.sendall(HELLO)
    return sock


def step(sock, data):
    """Send, then PING; the bytes before the PING's echo, or 'closed'."""
    try:
        sock.sendall(data + PING)
        got = b''
        while not got.endswith(PING[1:]):
            more = sock.recv(65536)
            if not more:
                return 'closed'
            got += more
        return got[:-4]
    except (ConnectionResetError, BrokenPipeError):
        return 'closed'


def pair(port, first, second):
    """The first connection sends and parks; the second sends; returns the bytes that the first gets within 0.3 s."""
    with dial(port) as a, dial(port) as b:
        answers = [step(a, first), step(b, second)]
        a.settimeout(0.3)
        try:
            answers.append(a.recv(100))
        except socket.timeout:
            answers.append('nothing')
        return answers


def raw(port):
    for name, steps in RAW.items():
        with dial(port) as sock:
            yield name, [step(sock, data) for data in steps]
    yield 'SET wakes', pair(port, WAIT + keys(b'w1'), SET + s(b'w1') + s(b'x'))
    yield 'ADD wakes', pair(port, WAIT + keys(b'w2'), ADD + s(b'w2') + u64(1))
    yield 'APPEND wakes', pair(port, WAIT + keys(b'w3'), APPEND + s(b'w3') + s(b'x'))
    yield 'MULTI_SET wakes', pair(port, WAIT + keys(b'w4', b'w5'), MSET + u64(2) + s(b'w4') + s(b'x') + s(b'w5') + s(b'x'))
    yield 'COMPARE_SET wakes', pair(port, WAIT + keys(b'w6'), CAS + s(b'w6') + s(b'') + s(b'x'))
    yield 'QUEUE_PUSH wakes', pair(port, WAIT + keys(b'w7'), PUSH + s(b'w7') + s(b'x'))
    yield 'one of two does not', pair(port, WAIT + keys(b'w8', b'w9'), SET + s(b'w8') + s(b'x'))
    yield 'deleted again', pair(port, WAIT + keys(b'wa', b'wb'), SET + s(b'wa') + s(b'x') + DEL + s(b'wa') + SET + s(b'wb') +
                                s(b'x'))
    yield 'BARRIER wakes the parked', pair(port, BARRIER + s(b'wc') + u64(2), BARRIER + s(b'wc') + u64(2))
    yield 'BARRIER of less wakes the parked', pair(port, BARRIER + s(b'wd') + u64(9), BARRIER + s(b'wd') + u64(2))
    yield 'BARRIER wakes a WAIT', pair(port, WAIT + keys(b'we'), BARRIER + s(b'we') + u64(5))
    yield 'BARRIER that opens wakes a WAIT', pair(port, WAIT + keys(b'wg'), BARRIER + s(b'wg') + u64(1))
    yield 'ADD wakes the parked', pair(port, BARRIER + s(b'wh') + u64(5), ADD + s(b'wh') + u64(0))
    yield 'QUEUE_PUSH wakes the parked', pair(port, BARRIER + s(b'wi') + u64(5), PUSH + s(b'wi') + s(b'x'))
    yield 'SET wakes the parked', pair(port, BARRIER + s(b'wf') + u64(5), SET + s(b'wf') + s(b'9'))


# ---------------------------------------------------------------------------------------------------- the C++ client ----

def build_cpp(folder):
    """torch_store.cpp with the headers and the library that the package brings; None, and why, where that fails."""
    if not shutil.which('g++'):
        print('note: no g++ here, so the C++ client is left out')
        return None
    torch_dir, program = os.path.dirname(torch.__file__), os.path.join(folder, 'torch_store')
    lib = os.path.join(torch_dir, 'lib')
    command = ['g++', '-std=c++20', '-w', '-I', os.path.join(torch_dir, 'include'), '-I',
               os.path.join(torch_dir, 'include/torch/csrc/api/include'), '-o', program,
               os.path.join(os.path.dirname(os.path.abspath(__file__)), 'torch_store.cpp'), '-L', lib, '-Wl,-rpath,' + lib,
               '-ltorch_cpu', '-lc10']
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit('torch_store.cpp does not compile:\n' + done.stderr[-3000:])
    return program


def cpp(program, port):
    done = subprocess.run([program, str(port)], capture_output=True, text=True, check=False, timeout=60)
    answers = [line.split(': ', 1) for line in done.stdout.splitlines()]
    return {'C++: ' + what: answer for what, answer in answers} | {'C++: its end': done.returncode}


# ------------------------------------------------------------------------------------------------------------- main ----

def run(port, program):
    """The C++ client first: PyTorch's PrefixStore cannot list keys shorter than a prefix there."""
    answers = cpp(program, port) if program else {}
    for what, answer in script(client(port), client(port)):
        answers['client: ' + what] = answer
    for what, answer in raw(port):
        answers['raw: ' + what] = answer
    return answers


def main():
    theirs = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False, use_libuv=True)
    server = subprocess.Popen([SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with tempfile.TemporaryDirectory() as folder:
        program = build_cpp(folder)
        try:
            ours = run(int(server.stdout.readline()), program)
        finally:
            server.stdin.close()
            status = server.wait(10)
        expected = run(theirs.port, program)
    bad = [what for what in expected if ours.get(what) != expected[what]]
    for what in bad:
        print('%s\n  PyTorch: %.300r\n  ours:    %.300r' % (what, expected[what], ours.get(what)))
    print('%d answers compared with PyTorch %s, %d differ; our server ended with %d' %
          (len(expected), torch.__version__, len(bad), status))
    sys.exit(1 if bad or status or len(expected) < (200 if program else 80) or expected.get('C++: its end', 0) != 0 else 0)


main()
