#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a copy of a file of the rounds with one bug planted: which the simulator must find.

    plant.py NAME FILE.C OUT.C
"""
import sys

BUGS = {
    # name: (text of the file, its replacement)
    'more_than_max': ('    return r->opt.max_nodes;\n', '    return n;\n'),
    'two_worlds': ('    if (r->count[NODE_STOPPING] > 0)\n', '    if (r->count[NODE_STOPPING] > 1)\n'),
    'equal_sizes': ('        base += node->n_procs;\n', '        base += r->nodes[place[0]].n_procs;\n'),
    'late_reports': ('    if (ev->round < r->number || r->state == ROUND_CLOSED)\n',
                     '    if (r->state == ROUND_CLOSED)\n'),
    'forever_away': ('    members_set_away(r, n, false);\n    if (last_round', '    if (last_round'),
    'patient': ('    else if (now_ms >= r->deadline_ms)\n', '    else if (now_ms >= r->deadline_ms + 60000)\n'),
    'new_ranks': ('    return n->last_round >= 0 && n->last_round + 1 == r->number;\n',
                  '    return n->last_round >= 0 && n->last_round == r->number;\n'),
    'restarts_forgotten': ('        if (node->restarts > r->restart_count)\n', '        if (node->restarts > r->opt.max_restarts)\n'),
    'old_keys': ('    round_act(r, ROUND_DO_END_KEYS, NO_PEER);\n    r->state = ROUND_JOINING;\n', '    r->state = ROUND_JOINING;\n'),
    'newcomer_ignored': ('    if (r->n_nodes >= r->opt.max_nodes || r->count[NODE_DONE] > 0) {',
                         '    if (r->n_nodes + 1 >= r->opt.max_nodes || r->count[NODE_DONE] > 0) {'),
    'echo_counts': ('    if (is_elastic(r) && !r->ending)\n        r->verdict = OVER_CHANGED;\n', ''),
    'hang_restarts': ('    return r->verdict == OVER_FAILED && !r->gives_up &&', '    return r->verdict == OVER_FAILED &&'),
    'old_hang': ('    if (r->state != ROUND_RUNNING || ev->round != r->number)\n', '    if (r->state != ROUND_RUNNING)\n'),
    # of the election
    'host_answers_long': ('e->good_ms + e->ttl_ms / 5 : 0', 'e->good_ms + e->ttl_ms : 0'),
    'renewed_by_answer': ('    e->good_ms = e->keep_ms;\n', '    e->good_ms = now_ms;\n'),
    'old_lease_is_new': ('    e->good_ms = e->granted_ms;\n', '    e->good_ms = now_ms;\n'),
    'later_loss': ('(ev->fence_ms > 0 || named) && cdi_cause_precedes(&lost, &now)', '(ev->fence_ms > 0 || named) && lost.kind == CDI_END_NODE'),
}

if __name__ == '__main__':
    name, source, out = sys.argv[1:]
    old, new = BUGS[name]
    with open(source, encoding='utf-8') as f:
        text = f.read()
    if text.count(old) != 1:
        sys.exit(f'plant.py: {name}: {source} contains {old!r} {text.count(old)} times instead of once; adapt the plant')
    with open(out, 'w', encoding='utf-8') as f:
        f.write(text.replace(old, new))
