/* SPDX-License-Identifier: Apache-2.0 */
/* The cgroups that a process is in, of both versions, and their files. Reads files; any thread. */
#ifndef CGROUP_H
#define CGROUP_H

#include <stdbool.h>
#include <stdint.h>

/* The files of a cgroup that matter here. NULL: it has no such file. */
struct cgroup_layout {
    const char *controller; /* in the line of /proc/PID/cgroup; "": version 2 */
    const char *tops[2];
    const char *usage, *limit;
    const char *reached, *reached_line; /* how often the limit was reached; line "": the file is the number */
    const char *kills;                  /* has a line "oom_kill N" */
    const char *frozen, *frozen_line;
};

/* Is called for a cgroup of the process, and then for those around it up to the top of its hierarchy. */
typedef void cgroup_visit(void *arg, const struct cgroup_layout *l, const char *dir, bool innermost);

/* Visits the cgroups of a process ("self", "77"). root: a prefix for the paths of /proc and /sys; "" but in tests. */
void cgroup_walk(const char *root, const char *process, cgroup_visit *visit, void *arg);
/* Returns the number in a file, or after `line` at the beginning of a line of it; -1: there is none. */
int64_t cgroup_number(const char *dir, const char *file, const char *line);
/* Returns the limit of memory in bytes; -1: none. */
int64_t cgroup_memory_limit(const struct cgroup_layout *l, const char *dir);
/* Returns what follows `name` at the beginning of a line of the text; NULL: no line begins so. Pure. */
const char *cgroup_line(const char *text, const char *name);

#endif
