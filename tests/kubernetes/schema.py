#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The manifests of deploy/kubernetes against the API's own schemas: Kubernetes 1.27 and the newest that kubernetes-validate
has, and JobSet's and Kubeflow Trainer's, of kubeflow-trainer-api. And that the parts of a manifest agree.

    schema.py CDDPRUN PYTHON
"""
import copy
import re
import sys

import manifests

KUBERNETES_FROM = '1.27'  # the oldest release whose Jobs have everything that we use


def models():
    import kubeflow_trainer_api.models as m
    return {'JobSet': m.JobsetV1alpha2JobSet, 'TrainingRuntime': m.TrainerV1alpha1TrainingRuntime,
            'TrainJob': m.TrainerV1alpha1TrainJob}


def lost(doc, kept, path=''):
    """Names of the fields of doc that the API's model does not have."""
    if isinstance(doc, dict):
        if not isinstance(kept, dict):
            return [path]
        return [name for key, value in doc.items() for name in
                ([f'{path}.{key}'] if key not in kept else lost(value, kept[key], f'{path}.{key}'))]
    if isinstance(doc, list):
        if not isinstance(kept, list) or len(kept) != len(doc):
            return [path]
        return [name for i, value in enumerate(doc) for name in lost(value, kept[i], f'{path}[{i}]')]
    return []


def check(doc):
    """Reasons why the API server would reject doc, or drop a part of it."""
    import kubernetes_validate
    from pydantic import ValidationError
    model = models().get(doc['kind'])
    if model is not None:
        try:
            return lost(doc, model.from_dict(copy.deepcopy(doc)).to_dict())
        except (ValidationError, ValueError) as e:
            return [str(e)]
    reasons = []
    for version in KUBERNETES_FROM, kubernetes_validate.latest_version():
        try:
            kubernetes_validate.validate(doc, version, strict=True)
        except kubernetes_validate.ValidationError as e:
            reasons.append(f'{version}: {e.message}')
    return reasons


def every():
    for file in sorted(manifests.FOLDER.glob('*.yaml')):
        for doc in manifests.read(file.name):
            yield file.name, doc


def test_every_manifest_has_the_fields_of_its_schema(_):
    found = [(file, doc['kind'], reason) for file, doc in every() for reason in check(doc)]
    assert not found, found
    kinds = {doc['kind'] for _, doc in every()}
    assert {'Job', 'Service', 'Deployment', 'JobSet', 'TrainingRuntime', 'TrainJob'} <= kinds, kinds


def test_the_check_finds_misspelled_and_misplaced_fields(_):
    def planted(file, kind, *path, value):
        doc = manifests.of_kind(file, kind)
        at = doc
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        return check(doc)

    pod = 'spec', 'template', 'spec'
    assert planted('indexed-job.yaml', 'Job', *pod, 'subDomain', value='train')
    assert planted('indexed-job.yaml', 'Job', 'spec', 'completions', value='two')
    assert planted('elastic.yaml', 'Deployment', *pod, 'containers', 0, 'livenessProbe', 'httpGet', 'route', value='/')
    assert planted('jobset.yaml', 'JobSet', 'spec', 'network', 'enableDnsHostnames', value=True) == ['.spec.network.enableDnsHostnames']
    assert planted('jobset.yaml', 'JobSet', 'spec', 'replicatedJobs', 0, 'template', *pod, 'volume', value=[])
    assert planted('trainjob.yaml', 'TrainJob', 'spec', 'trainer', 'nodes', value=2) == ['.spec.trainer.nodes']
    assert planted('trainjob.yaml', 'TrainingRuntime', 'spec', 'mlPolicy', 'numNodes', value='many')


def flag(pod, name):
    return next((re.fullmatch(f'--{name}=(.*)', word)[1] for word in pod.command if word.startswith(f'--{name}=')), None)


def test_counts_and_names_of_a_manifest_agree(_):
    for pods in manifests.pods_of_job('indexed-job.yaml'), manifests.pods_of_jobset('jobset.yaml'):
        assert {flag(pod, 'nnodes') for pod in pods} == {str(len(pods))}, pods
    for file, kind, spec in (('indexed-job.yaml', 'Job', lambda d: d['spec']),
                             ('jobset.yaml', 'JobSet', lambda d: d['spec']['replicatedJobs'][0]['template']['spec'])):
        job = spec(manifests.of_kind(file, kind))
        assert job['completionMode'] == 'Indexed' and job['completions'] == job['parallelism']
    job, service = manifests.of_kind('indexed-job.yaml', 'Job'), manifests.of_kind('indexed-job.yaml', 'Service')
    assert service['spec']['selector'] == {'job-name': job['metadata']['name']}
    assert service['metadata']['name'] == job['spec']['template']['spec']['subdomain']
    assert manifests.of_kind('jobset.yaml', 'JobSet')['spec']['replicatedJobs'][0]['replicas'] == 1
    pods, (_, name) = manifests.pods_of_job('elastic.yaml'), manifests.server('elastic.yaml')
    assert flag(pods[0], 'rdzv_endpoint') == f'{name}:29400'
    for file, doc in every():  # pods can save before they are killed, and mount what they name
        for spec in pod_specs(doc):
            volumes = {v['name'] for v in spec.get('volumes', [])}
            assert volumes == {m['name'] for c in spec['containers'] for m in c.get('volumeMounts', [])}, file
            if volumes:
                assert spec['terminationGracePeriodSeconds'] > 30, file


def pod_specs(at):
    if isinstance(at, dict):
        if 'containers' in at:
            yield at
        for value in at.values():
            yield from pod_specs(value)
    elif isinstance(at, list):
        for value in at:
            yield from pod_specs(value)


if __name__ == '__main__':
    manifests.enter_python(sys.argv[2])
    sys.path.insert(0, str(manifests.FOLDER.parents[1] / 'tests/support'))
    import launch
    del sys.argv[2]
    launch.main()
