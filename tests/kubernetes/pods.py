#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pods of the manifests, with the names, variables and commands that Kubernetes would give them, each on a separate
host: they train, and they go on after pods were lost.

    pods.py CDDPRUN PYTHON [--slow] [TEST...]; the server is CDDP_RENDEZVOUS.
"""
import contextlib
import os
import pathlib
import re
import shutil
import sys
import tempfile

import manifests

sys.path.insert(0, str(manifests.FOLDER.parents[1] / 'tests/netns'))
import hosts

KUBELET = '# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n'
IN_POD = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'


class Cluster(contextlib.ExitStack):
    """Starts containers: pod i on host i + 1. Volumes are folders of this test."""

    def __init__(self, cddprun, **options):
        super().__init__()
        self.cddprun = cddprun
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory(prefix='cddp-test-')))
        (self.folder / 'checkpoints').mkdir()
        self.options = {'epochs': 200, **options}
        self.services = ''

    def words(self, command):
        build = pathlib.Path(self.cddprun).parents[1]
        place = {'cddprun': self.cddprun, 'cddp-rendezvous': os.environ['CDDP_RENDEZVOUS'],
                 '/opt/cddp/libexec/cddp/examples/wine': build / 'examples/wine/wine'}
        words = [str(place.get(word, word)).replace('/checkpoints', str(self.folder / 'checkpoints')) for word in command]
        return [re.sub('^--epochs=.*', f'--epochs={self.options["epochs"]}', word) for word in words]

    def resolve(self, pods):
        """What the kubelet writes into each pod's /etc/hosts, and below it what the cluster's DNS answers."""
        dns = ''.join(f'{hosts.address(i + 1)}\t{pod.full_name()} {pod.name}.{pod.subdomain}\n'
                      for i, pod in enumerate(pods) if pod.subdomain)
        for i, pod in enumerate(pods):
            own = f'{hosts.address(i + 1)}\t{pod.full_name() if pod.subdomain else ""}\t{pod.name}\n'
            (self.folder / f'hosts.{i}').write_text(KUBELET + own + dns + self.services)

    def start(self, i, pod, **more):
        return self.enter_context(hosts.on(i + 1, 'unshare', '--mount', '--uts', 'sh', '-c', IN_POD, '-',
                                           self.folder / f'hosts.{i}', pod.name, *self.words(pod.command), env=pod.env, **more))

    def lose(self, i, job):
        """SIGKILL for all of a pod. Its file system is gone with it."""
        hosts.act('kill', i + 1)
        job.finish()
        shutil.rmtree(job.tmp)
        os.mkdir(job.tmp)

    def start_all(self, pods):
        self.resolve(pods)
        return [self.start(i, pod) for i, pod in enumerate(pods)]

    def saved(self):
        return any((self.folder / 'checkpoints').glob('checkpoint-*.cddp'))  # not a file that is being written


def check_trained(jobs):
    status = [job.finish() for job in jobs]
    assert status == [0] * len(jobs), (status, [job.err for job in jobs])
    out = '\n'.join(job.out for job in jobs)
    assert re.search(r'test accuracy \d\.\d+', out), out
    return out


def test_indexed_job(cddprun):
    with Cluster(cddprun) as t:
        jobs = t.start_all(manifests.pods_of_job('indexed-job.yaml'))
        check_trained(jobs)
        assert 'Kubernetes Job train: 2 nodes, this is node 0; rendezvous at train-0.train.team.svc.cluster.local' in jobs[0].err, jobs[0].err


def test_jobset(cddprun):
    with Cluster(cddprun) as t:
        jobs = t.start_all(manifests.pods_of_jobset('jobset.yaml'))
        check_trained(jobs)
        assert 'rendezvous at train-node-0-0.train.team.svc.cluster.local' in jobs[0].err, jobs[0].err


def test_trainjob(cddprun):
    with Cluster(cddprun) as t:
        jobs = t.start_all(manifests.pods_of_trainjob('trainjob.yaml'))
        check_trained(jobs)
        assert 'from the environment: PET_NNODES=2 PET_NODE_RANK=0' in jobs[0].err, jobs[0].err


def keep_running(t, jobs, pods, **more):
    """As the kubelet does with restartPolicy: OnFailure."""
    for i, job in enumerate(jobs):
        if job.process.poll() not in (None, 0):
            jobs[i] = t.start(i, pods[i], **more)


def test_pods_of_an_indexed_job_that_are_killed_start_again(cddprun):
    """The first pod hosts the rendezvous, so the other one ends with it, too."""
    pods = manifests.pods_of_job('indexed-job.yaml')
    for killed in 0, 1:
        with Cluster(cddprun, epochs=10**6) as t, (t.folder / 'log').open('w', encoding='utf-8') as out:
            t.resolve(pods)
            log, jobs = t.folder / 'log', [t.start(i, pod, stdout=out, stderr=out) for i, pod in enumerate(pods)]
            launch.wait_for('a checkpoint', t.saved, more=log.read_text)
            t.lose(killed, jobs[killed])

            def resumed():
                keep_running(t, jobs, pods, stdout=out, stderr=out)
                return 'resumed' in log.read_text()
            launch.wait_for('both pods to go on', resumed, more=log.read_text)
            for job in jobs:
                job.process.terminate()
            for job in jobs:
                job.finish()


def test_elastic_job(cddprun):
    """Two pods, then three, then one of them is evicted; the server is on the fourth host."""
    command, name = manifests.server('elastic.yaml')
    pods = manifests.pods_of_job('elastic.yaml')
    pods += [manifests.Pod('elastic-c', '', {}, pods[0].command), manifests.Pod(f'{name}-0', '', {}, command)]
    with Cluster(cddprun, epochs=10**6) as t, (t.folder / 'log').open('w', encoding='utf-8') as out:
        log, jobs = t.folder / 'log', []
        t.services = f'{hosts.address(4)}\t{name}\n'
        t.resolve(pods)
        server = t.start(3, pods[3])
        jobs += [t.start(i, pods[i], stdout=out, stderr=out) for i in (0, 1)]
        launch.wait_for('a checkpoint', t.saved, more=log.read_text)
        jobs.append(t.start(2, pods[2], stdout=out, stderr=out))
        launch.wait_for('three nodes', lambda: 'resumed' in log.read_text(), more=log.read_text)
        t.lose(0, jobs[0])
        launch.wait_for('two nodes', lambda: log.read_text().count('resumed') == 2, more=log.read_text)
        for job in jobs[1:]:
            job.process.terminate()
        status = [job.finish() for job in jobs[1:]]
        assert set(status) <= {0, 143}, (status, log.read_text())
        server.process.terminate()
        assert server.finish() == 0, server.err


if __name__ == '__main__':
    manifests.enter_python(sys.argv[2])
    hosts.enter(4)
    import launch
    del sys.argv[2]
    launch.main()
