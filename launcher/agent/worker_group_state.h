/* SPDX-License-Identifier: Apache-2.0 */
/* The workers of a node and their ends, as the files of worker_group share them. */
#ifndef LAUNCHER_AGENT_WORKER_GROUP_STATE_H
#define LAUNCHER_AGENT_WORKER_GROUP_STATE_H

#include "launcher/agent/crash.h"
#include "launcher/agent/progress.h"
#include "launcher/agent/worker_group.h"
#include "launcher/process/oom.h"

struct output {
    struct logs_stream streams[2];
    bool paused;
    struct crash_read *crash; /* NULL: the worker has not crashed */
    int64_t crash_ms;         /* when it was seen to crash; 0: not yet */
};

struct worker_group {
    struct worker_group_options opt;
    struct output *outputs;
    uint32_t n, n_open;
    uint32_t first_unstarted; /* workers from here on could not be started */
    struct cdi_error why;     /* of the first of them */
    struct oom_count ooms;    /* before the start */
    bool destroyed;
    bool failed;    /* the first failure was reported */
    bool cause_ran; /* its worker ran then: others did not fail later than it */
    bool stopped;   /* by worker_group_signal(), until it continues them */
    bool progress_read;
    int end_signal; /* the first by which the workers were to end; 0: none */
    int64_t end_ms;
    bool waits;            /* an end is not reported yet, since its cause may become known */
    int64_t wait_until_ms; /* for it; 0: no end has waited */
    uint32_t n_crashes;
    char progress[PROGRESS_TEXT];
    char error_file[PATH_MAX];
    struct worker workers[];
};

#endif
