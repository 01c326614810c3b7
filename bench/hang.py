#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs to name a rank that is stuck: the rendezvous server's processor time with 1,000 agents that report at the same
moment, and that of an agent which watches 8 workers while all is well."""
import os
import statistics
import subprocess
import sys
import time

import common
import fair

sys.path.insert(0, os.path.join(common.ROOT, 'tests', 'integration'))
import hang_agents

SIZES = [(1000, 1), (1000, 8)]
WATCHED_S = 10


def children(pid):
    with open(f'/proc/{pid}/task/{pid}/children', encoding='ascii') as f:
        return [int(word) for word in f.read().split()]


def agent_cpu(args, warning):
    """Seconds of the agent's processor time per second, with 8 workers of which seven wait for the eighth."""
    worker = os.path.join(args.build, 'tests', 'integration', 'hang_worker')
    command = [common.cddprun(args.build), '--standalone', '--nproc_per_node=8', f'--hang_warning={warning}', '--hang_timeout=0', '--shutdown_timeout=1',
               worker, 'sleep', '0', '1']
    with fair.side('cddprun').watch(command, worker, 8) as env, subprocess.Popen(command, stderr=subprocess.DEVNULL, env=env) as job:
        try:
            time.sleep(2)
            agent, = children(job.pid)
            before = hang_agents.cpu_s(agent)
            time.sleep(WATCHED_S)
            return (hang_agents.cpu_s(agent) - before) / WATCHED_S
        finally:
            job.terminate()


def main():
    args = common.parser(__doc__)
    args = args.parse_args()
    args.build = os.path.abspath(args.build)
    server = os.path.join(args.build, 'rendezvous', 'cddp-rendezvous')
    result = {'machine': common.machine(args), 'agents': [], 'agent_cpu_us_per_s': {}}
    for n_agents, n_ranks in SIZES:
        rows = [hang_agents.run(server, n_agents, n_ranks) for _ in range(args.rounds)]
        text = rows[0].pop('text')
        for row in rows[1:]:
            del row['text']
        result['agents'].append({'rows': rows, 'message': text,
                                 'server_cpu_ms_median': statistics.median(row['server_cpu_ms'] for row in rows)})
        print(f'{n_agents} agents, {n_agents * n_ranks} ranks: {result["agents"][-1]["server_cpu_ms_median"]:.0f} ms of processor time, '
              f'{len(text)} lines after {statistics.median(row["until_printed_ms"] for row in rows):.0f} ms')
    for name, warning in ('watching', 1000), ('off', 0):
        result['agent_cpu_us_per_s'][name] = [round(1e6 * agent_cpu(args, warning), 1) for _ in range(3)]
    print('µs of an agent per second:', result['agent_cpu_us_per_s'])
    common.write(args, 'hang', result)


if __name__ == '__main__':
    main()
