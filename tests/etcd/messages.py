#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What cddprun says about etcd: one error message for each fault. And the ways to it: TLS, and users."""
import contextlib
import json
import os
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'support'))
import etcd_members
import launch
from launch import Job, run

JOB = ['--nnodes=1', '--rdzv_backend=etcd', '--rdzv_id=job']


def refused(cddprun, etcd, text, *flags, conf='join_timeout=2', endpoint=None):
    status, out, err = run(cddprun, *JOB, f'--rdzv_endpoint={endpoint or etcd.endpoints()}', f'--rdzv_conf={conf}', *flags, 'true')
    assert status == 1 and text in err.splitlines()[-1], (status, out, err)


def accepted(cddprun, etcd, conf, backend='etcd'):
    status, out, err = run(cddprun, *JOB, f'--rdzv_backend={backend}', f'--rdzv_endpoint={etcd.endpoints()}', f'--rdzv_conf={conf}',
                           'sh', '-c', 'echo $RANK/$WORLD_SIZE')
    assert (status, out, err) == (0, '[0] 0/1\n', ''), (status, out, err)


def test_no_member_answers(cddprun):
    ports = [launch.free_port() for _ in range(2)]
    refused(cddprun, None, f'cddprun: cannot meet the other nodes by etcd at 127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}: 127.0.0.1:',
            endpoint=f'127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}')
    refused(cddprun, None, '; check that etcd runs there, --rdzv_endpoint, and the firewall', endpoint=f'127.0.0.1:{ports[0]}')


def test_first_member_is_dead(cddprun):
    with etcd_members.Etcd(1) as etcd:
        status, _, err = run(cddprun, *JOB, f'--rdzv_endpoint=127.0.0.1:{launch.free_port()},{etcd.endpoints()}', 'true')
        assert (status, err) == (0, ''), (status, err)


def test_foreign_value_is_left_alone(cddprun):
    with etcd_members.Etcd(1) as etcd:
        for value in 'something', '{"cddprun":2}', '':
            etcd.put('/cddp/job/host', value)
            refused(cddprun, etcd, "the key '/cddp/job/host' in etcd at 127.0.0.1:")
            assert etcd.keys() == {'/cddp/job/host': value}
        accepted(cddprun, etcd, 'prefix=/other/')
        assert set(etcd.keys()) <= {'/cddp/job/host', '/other/job/over'}, etcd.keys()


class Other(threading.Thread):
    """Answers each request with these bytes, and closes; or resets the connection."""

    def __init__(self, answer, reset=False):
        super().__init__(daemon=True)
        self.answer, self.reset, self.listener = answer, reset, socket.create_server(('127.0.0.1', 0))
        self.endpoint = f'127.0.0.1:{self.listener.getsockname()[1]}'
        self.start()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                with self.listener.accept()[0] as sock:
                    sock.settimeout(5)
                    with contextlib.suppress(OSError):
                        sock.recv(65536)
                        sock.sendall(self.answer)
                    if self.reset:
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))


def http(body, status='200 OK'):
    return f'HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}'.encode()


def test_anything_else_that_answers(cddprun):
    for answer, text in [(http('404 page not found', '404 Not Found'), "its answer is not etcd's (HTTP status 404)"),
                         (http('{}'), 'its answer is not what etcd sends'), (http('[[[['), "its answer is not etcd's"),
                         (b'SSH-2.0-OpenSSH\r\n', '127.0.0.1:'), (http('x' * 200000), '127.0.0.1:')]:
        other = Other(answer)
        refused(cddprun, None, text, endpoint=other.endpoint)
        other.listener.close()


def test_reset_connection_is_named(cddprun):
    """Its answer arrives together with the reset: the answer counts. Without an answer, the message names the reset."""
    for answer, text in (b'', 'Connection reset by peer'), (http('no', '404 Not Found'), "its answer is not etcd's (HTTP status 404)"):
        other = Other(answer, reset=True)
        refused(cddprun, None, text, endpoint=other.endpoint)
        other.listener.close()


def test_flags_are_checked(cddprun):
    for flags, text in [(['--rdzv_id=a'], '--rdzv_endpoint=HOST:PORT[,HOST:PORT...]'),
                        (['--rdzv_endpoint=a'], 'needs --rdzv_id=NAME'),
                        (['--rdzv_id=a', '--rdzv_endpoint=a:b'], "--rdzv_endpoint 'a:b' is not HOST"),
                        (['--rdzv_id=a', '--rdzv_endpoint=a', '--rdzv_conf=user=x'], 'give user and password_file'),
                        (['--rdzv_id=a', '--rdzv_endpoint=a', '--rdzv_conf=cacert=/x'], 'give protocol=https'),
                        (['--rdzv_id=a', '--rdzv_endpoint=a', '--rdzv_conf=protocol=ftp'], 'give http or https'),
                        (['--rdzv_id=a', '--rdzv_endpoint=a', '--rdzv_conf=is_host=1'], 'etcd, which elects the host')]:
        status, out, err = run(cddprun, '--nnodes=2', '--rdzv_backend=etcd', *flags, 'true')
        assert status == 2 and text in err and err.count('\n') == 1, (status, out, err)
    status, _, err = run(cddprun, '--nnodes=2', '--rdzv_endpoint=a', '--rdzv_conf=cacert=/x', 'true')
    assert status == 2 and '--rdzv_conf: cacert is for --rdzv_backend=etcd' in err, err


def test_users_and_passwords(cddprun):
    with etcd_members.Etcd(1) as etcd, tempfile.TemporaryDirectory() as tmp:
        for path, body in [('user/add', {'name': 'root', 'password': 'pw'}), ('role/add', {'name': 'root'}),
                           ('user/grant', {'user': 'root', 'role': 'root'}), ('user/add', {'name': 'poor', 'password': 'pw'}), ('enable', {})]:
            assert etcd.call(f'/v3/auth/{path}', body) is not None, path
        for name, text in ('good', 'pw\n'), ('bad', 'no\n'), ('open', 'pw\n'), ('empty', ''), ('long', 'x' * 256):
            with open(f'{tmp}/{name}', 'w', encoding='ascii') as file:
                file.write(text)
            os.chmod(f'{tmp}/{name}', 0o644 if name == 'open' else 0o600)
        os.mkfifo(f'{tmp}/fifo', 0o600)
        refused(cddprun, etcd, 'it wants a user and a password (--rdzv_conf=user=NAME,password_file=PATH)')
        for conf, text in [(f'user=root,password_file={tmp}/bad', 'authentication failed, invalid user ID or password; check user and password_file'),
                           (f'user=poor,password_file={tmp}/good', "permission denied; grant the user's role"),
                           (f'user=root,password_file={tmp}/open', 'is open to others; run chmod 600'),
                           (f'user=root,password_file={tmp}/empty', 'is empty'),
                           (f'user=root,password_file={tmp}/long', 'has more than 255 bytes'),
                           (f'user=root,password_file={tmp}/fifo', 'is not a regular file'),
                           (f'user=root,password_file={tmp}/none', 'No such file')]:
            refused(cddprun, etcd, text, conf=conf)
        accepted(cddprun, etcd, f'user=root,password_file={tmp}/good')
    with etcd_members.Etcd(1) as etcd, tempfile.NamedTemporaryFile('w') as file:
        file.write('pw')
        file.flush()
        refused(cddprun, etcd, 'authentication is not enabled; remove user and password_file', conf=f'user=root,password_file={file.name}')


def certificates(tmp):
    if shutil.which('openssl') is None:
        raise launch.Skip('openssl is not installed')
    def openssl(*args):
        subprocess.run(['openssl', *args], cwd=tmp, check=True, capture_output=True)
    openssl('req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', 'ca.key', '-out', 'ca.pem', '-subj', '/CN=ca')
    with open(f'{tmp}/names', 'w', encoding='ascii') as file:
        file.write('subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n')
    for name in 'server', 'client':
        openssl('req', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', f'{name}.key', '-out', f'{name}.csr', '-subj', f'/CN={name}')
        openssl('x509', '-req', '-in', f'{name}.csr', '-CA', 'ca.pem', '-CAkey', 'ca.key', '-CAcreateserial', '-out', f'{name}.pem', '-extfile', 'names')


def test_tls_with_certificates_of_both_sides(cddprun):
    with tempfile.TemporaryDirectory() as tmp:
        certificates(tmp)
        context = ssl.create_default_context(cafile=f'{tmp}/ca.pem')
        context.load_cert_chain(f'{tmp}/client.pem', f'{tmp}/client.key')
        flags = [f'--cert-file={tmp}/server.pem', f'--key-file={tmp}/server.key', f'--trusted-ca-file={tmp}/ca.pem', '--client-cert-auth']
        with etcd_members.Etcd(1, 'https', flags, context) as etcd:
            accepted(cddprun, etcd, f'protocol=https,cacert={tmp}/ca.pem,cert={tmp}/client.pem,key={tmp}/client.key')
            accepted(cddprun, etcd, f'protocol=https,ca_cert={tmp}/ca.pem,ssl_cert={tmp}/client.pem,ssl_cert_key={tmp}/client.key', 'etcd-v2')
            for conf in f'protocol=https,cacert={tmp}/ca.pem', 'protocol=https':
                refused(cddprun, etcd, 'certificate', conf=f'join_timeout=2,{conf}')
                refused(cddprun, etcd, '; check cacert, cert and key (--rdzv_conf)', conf=f'join_timeout=2,{conf}')
            refused(cddprun, etcd, f'{tmp}/none', conf=f'join_timeout=2,protocol=https,cacert={tmp}/none')
            refused(cddprun, etcd, '127.0.0.1:', conf='join_timeout=2')


def test_job_that_is_over_is_not_run_again(cddprun):
    with etcd_members.Etcd(1) as etcd:
        with Job(cddprun, '--nnodes=1:2', '--rdzv_backend=etcd', '--rdzv_id=job', f'--rdzv_endpoint={etcd.endpoints()}',
                 '--rdzv_conf=lease=2,last_call_timeout=0,join_timeout=60', 'sh', '-c', 'sleep 1; exit 0') as job:
            assert job.finish() == 0 and job.err == '', job.err
        assert etcd.keys() == {'/cddp/job/over': 'done'}
        accepted(cddprun, etcd, 'lease=2')  # a new job of this name does run


if __name__ == '__main__':
    launch.main()
