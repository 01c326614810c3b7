# SPDX-License-Identifier: Apache-2.0
"""A real sshd on loopback, with users whose login shells are sh, bash, tcsh and fish, and an ssh that reaches it under the
names a, b, c, ...: for cddprun --hosts. Needs root, since sshd and its users get an /etc/passwd in a mount namespace.

sshd and the shells are those of this system, or Debian's, which scripts/setup --ci unpacks into a folder without installing them.
"""
import atexit
import glob
import os
import shutil
import subprocess
import sys
import tempfile

import launch
from launch import Skip, free_port, wait_for

UNPACKED = os.path.join(os.environ.get('XDG_CACHE_HOME') or os.path.join(os.environ.get('HOME') or '/var', '.cache'), 'cddprun', 'sshd')
START = """set -e
mount --bind "$1/passwd" /etc/passwd
mount -t tmpfs none /run
mkdir -m 755 /run/sshd
exec "$2" -D -e -f "$1/sshd_config"
"""
CONFIG = """ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/key.pub
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups {startups}
AcceptEnv CDDP_TEST_MARK TMPDIR
"""
CLIENT = """Host *
HostName 127.0.0.1
Port {port}
User {user}
IdentityFile {folder}/key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile /dev/null
HostKeyAlias all
SendEnv CDDP_TEST_MARK TMPDIR
"""


def program(name, *folders):
    """The path of a program of this system, or of the unpacked packages; None: it is nowhere."""
    return shutil.which(name, path=':'.join([os.environ['PATH'], '/usr/sbin', *(os.path.join(UNPACKED, f) for f in folders)]))


def shell(name):
    found = program(name, 'bin', 'usr/bin')
    if not found or subprocess.run([found, '-c', 'exit 0'], env={}, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        raise Skip(f'there is no {name}; scripts/setup --ci gets one')
    return found


class Sshd:
    def __init__(self, startups):
        path = program('sshd', 'usr/sbin')
        if os.getuid() != 0 or not path or not shutil.which('ssh') or not shutil.which('unshare'):
            raise Skip('there is no sshd, no ssh, or this is not root; scripts/setup --ci gets an sshd')
        self.folder = folder = tempfile.mkdtemp(prefix='cddp-sshd-')
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self.port = free_port()
        self.log = os.path.join(folder, 'log')
        for name in 'host_key', 'key':
            subprocess.run(['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', os.path.join(folder, name)], check=True)
        shutil.copy(os.path.join(folder, 'key'), os.path.join(folder, 'plain_key'))
        with open('/etc/passwd', encoding='utf-8') as f:
            users = [line for line in f.read().splitlines() if not line.startswith('sshd:')]
        users.append('sshd:x:65534:65534::/run/sshd:/usr/sbin/nologin')
        for name in 'sh', 'bash', 'tcsh', 'fish':
            home = os.path.join(folder, name)
            os.makedirs(home)
            users.append(f'cddp-{name}:x:0:0::{home}:{program(name, "bin", "usr/bin") or "/bin/false"}')
        self.write('passwd', '\n'.join(users) + '\n')
        self.write('sshd_config', CONFIG.format(port=self.port, folder=folder, startups=startups))
        self.client()
        self.trust()
        libraries = ':'.join(glob.glob(os.path.join(UNPACKED, 'usr/lib/*-linux-gnu')))
        with open(self.log, 'w', encoding='utf-8') as log:
            self.process = subprocess.Popen(['unshare', '-m', 'sh', '-c', START, 'sh', folder, path], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, env={'PATH': os.environ['PATH'], 'LD_LIBRARY_PATH': libraries})
        wait_for('sshd', lambda: launch.listens(self.port) or self.process.poll() is not None, more=self.text)
        if self.process.poll() is not None:  # such as without the right to mount
            raise Skip(f'sshd cannot run here: {self.text()}')

    def write(self, name, text, mode=0o600):
        path = os.path.join(self.folder, name)
        with open(path, 'w', encoding='utf-8') as f:
            f.write(text)
        os.chmod(path, mode)
        return path

    def text(self):
        with open(self.log, encoding='utf-8', errors='replace') as f:
            return f.read()

    def client(self, user='sh', more=''):
        """Writes the configuration of ssh, and ssh itself, which uses it."""
        config = self.write('ssh_config', CLIENT.format(port=self.port, folder=self.folder, user=f'cddp-{user}') + more)
        os.makedirs(os.path.join(self.folder, 'bin'), exist_ok=True)
        self.write('bin/ssh', f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n', 0o755)

    def trust(self, known=True):
        with open(os.path.join(self.folder, 'host_key.pub'), encoding='ascii') as f:
            self.write('known_hosts', f'all {f.read()}' if known else '')

    def env(self):
        return {'PATH': os.path.join(self.folder, 'bin') + os.pathsep + os.environ['PATH']}

    def stop(self):
        self.process.terminate()
        self.process.wait()


running = {}


def sshd(startups='100'):
    """An sshd that refuses connections beyond `startups` (MaxStartups), as it was at its start. It ends with the process."""
    if startups not in running:
        running[startups] = Sshd(startups)
        atexit.register(running[startups].stop)
    server = running[startups]
    server.client()
    server.trust()
    shutil.copy(os.path.join(server.folder, 'plain_key'), os.path.join(server.folder, 'key'))  # without a passphrase
    return server


if __name__ == '__main__':
    sys.exit(subprocess.run(['ssh', 'a', *sys.argv[1:]], env={**os.environ, **sshd().env()}, check=False).returncode)
