# SPDX-License-Identifier: Apache-2.0
"""The manifests of deploy/kubernetes, and what Kubernetes makes of them: pods with names, variables and commands."""
import dataclasses
import os
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[2] / 'deploy/kubernetes'
NAMESPACE = 'team.svc.cluster.local'


def enter_python(python):
    """Go on in the python3 that has PyYAML and the schemas, or end as a skipped test with the reason."""
    try:
        import kubeflow_trainer_api, kubernetes_validate, yaml  # noqa: F401
    except ImportError as e:
        if python and os.path.realpath(sys.prefix) != os.path.realpath(os.path.dirname(os.path.dirname(python))):
            os.execv(python, [python, *sys.argv])
        print(f'1..0 # SKIP {e}: pip install kubernetes-validate kubeflow-trainer-api, and -Dtorch_python=THAT/bin/python3')
        sys.exit(0)


def read(name):
    import yaml
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def of_kind(name, kind):
    return next(doc for doc in read(name) if doc['kind'] == kind)


@dataclasses.dataclass
class Pod:
    name: str
    subdomain: str  # '': other pods do not know this name
    env: dict
    command: list

    def full_name(self):
        return f'{self.name}.{self.subdomain}.{NAMESPACE}'


def _container(spec):
    return spec['template']['spec']['containers'][0]


def _command(container):
    return container.get('command', ['cddprun']) + container['args']  # the image's ENTRYPOINT is cddprun


def _of_job(job, name, subdomain):
    """The pods of a Job: the host name is NAME-INDEX (with completionMode: Indexed)."""
    indexed = job.get('completionMode') == 'Indexed'
    return [Pod(f'{name}-{i}', subdomain if indexed else '', {'JOB_COMPLETION_INDEX': str(i)} if indexed else {},
                _command(_container(job))) for i in range(job['parallelism'])]


def pods_of_job(file):
    job = of_kind(file, 'Job')
    return _of_job(job['spec'], job['metadata']['name'], job['spec']['template']['spec'].get('subdomain', ''))


def pods_of_jobset(file):
    """The subdomain is the JobSet's name; a Job is JOBSET-REPLICATEDJOB-NUMBER (jobset_controller.go, names.go)."""
    jobset = of_kind(file, 'JobSet')
    name = jobset['metadata']['name']
    return [pod for part in jobset['spec']['replicatedJobs'] for number in range(part['replicas'])
            for pod in _of_job(part['template']['spec'], f'{name}-{part["name"]}-{number}', name)]


def pods_of_trainjob(file):
    """A JobSet with the variables of the policy "torch" (trainer/pkg/runtime/framework/plugins/torch/torch.go)."""
    trainjob, runtime = of_kind(file, 'TrainJob'), of_kind(file, 'TrainingRuntime')
    assert trainjob['spec']['runtimeRef']['name'] == runtime['metadata']['name']
    assert 'torch' in runtime['spec']['mlPolicy']
    name, trainer = trainjob['metadata']['name'], trainjob['spec']['trainer']
    master = {'PET_NNODES': str(trainer['numNodes']), 'PET_NPROC_PER_NODE': str(trainer['numProcPerNode']),
              'PET_MASTER_ADDR': f'{name}-node-0-0.{name}', 'PET_MASTER_PORT': '29400'}
    return [Pod(f'{name}-node-0-{i}', name, {'JOB_COMPLETION_INDEX': str(i), 'PET_NODE_RANK': str(i), **master}, _command(trainer))
            for i in range(trainer['numNodes'])]


def server(file):
    """The command of the Deployment of a rendezvous server, and the name of its Service."""
    deployment, service = of_kind(file, 'Deployment'), of_kind(file, 'Service')
    assert service['spec']['selector'].items() <= deployment['spec']['template']['metadata']['labels'].items()
    return _command(_container(deployment['spec'])), service['metadata']['name']
