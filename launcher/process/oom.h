/* SPDX-License-Identifier: Apache-2.0 */
/* Detects kills by the kernel's out-of-memory killer in this memory cgroup. Reads files; any thread. */
#ifndef OOM_H
#define OOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The number of kills so far. */
struct oom_count {
    int64_t kills; /* -1: not known */
    bool machine;  /* of the whole node: this cgroup has no counter */
};

/* Reads the counter. root is a prefix for the paths of /proc and /sys; "" but in tests. */
struct oom_count oom_look(const char *root);
/*
 * Writes a line for the report to buf, and returns true, if there was a kill since `before` was read. The kernel does
 * not report which process it killed: call this for a process that another process's SIGKILL has ended.
 */
bool oom_explain(const char *root, const struct oom_count *before, char *buf, size_t cap);

#endif
