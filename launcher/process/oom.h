/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's out-of-memory killer: has it been at work in our memory cgroup? Reads files; any thread. */
#ifndef OOM_H
#define OOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How often, so far. */
struct oom_count {
    int64_t kills; /* -1: not known */
    bool machine;  /* on the whole machine: our cgroup does not say it */
};

/* root comes before the paths of /proc and /sys; "" but in tests. */
struct oom_count oom_look(const char *root);
/*
 * If it has killed since `before` was looked up, writes why, as a line of a report, into buf and returns true. Whom it
 * killed the kernel does not say: ask about a process that somebody else's SIGKILL ended.
 */
bool oom_says(const char *root, const struct oom_count *before, char *buf, size_t cap);

#endif
