/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/tasks.h"

#include "common/clock.h"
#include "common/visible.h"
#include "launcher/process/proc_state.h"
#include "launcher/process/small_file.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <unistd.h>

#define FIRST_PAUSE_NS 50000 /* between two looks whether it has stopped; */
#define STUCK_TASKS 1024
#define STUCK_LOOKS 3 /* a thread that waits for a disk is in D state, too, but not for long */
#define STUCK_PAUSE_NS 20000000
#define LONGEST_PAUSE_NS 2000000 /* doubled up to this */

static int by_number(const void *a, const void *b)
{
    const pid_t x = *(const pid_t *)a, y = *(const pid_t *)b;

    return (x > y) - (x < y);
}

int tasks_list(pid_t pid, pid_t *task, int most)
{
    char path[64];
    int n = 0;
    DIR *dir;

    (void)snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    dir = opendir(path);
    if (dir == NULL)
        return -1;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        const long tid = strtol(e->d_name, NULL, 10);

        if (tid > 0 && n < most)
            task[n] = (pid_t)tid;
        n += tid > 0;
    }
    (void)closedir(dir);
    qsort(task, (size_t)(n < most ? n : most), sizeof task[0], by_number);
    return n;
}

bool task_look(pid_t pid, pid_t tid, char name[TASK_NAME], char *state)
{
    char path[64], line[512], *open_mark, *close_mark;

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/stat", (int)pid, (int)tid);
    if (!small_file_read(path, line, sizeof line))
        return false;
    open_mark = strchr(line, '(');
    close_mark = strrchr(line, ')'); /* a name may have brackets */
    if (open_mark == NULL || close_mark == NULL || close_mark < open_mark || close_mark[1] != ' ')
        return false;
    *close_mark = '\0';
    *state = close_mark[2];
    (void)cdi_visible_line(name, TASK_NAME, open_mark + 1, strlen(open_mark + 1));
    return true;
}

static bool has_stuck_task(pid_t pid)
{
    pid_t task[STUCK_TASKS];
    int n = tasks_list(pid, task, STUCK_TASKS);
    char name[TASK_NAME], state;

    for (int i = 0; i < n && i < STUCK_TASKS; i++)
        if (task_look(pid, task[i], name, &state) && state == 'D')
            return true;
    return false;
}

bool tasks_are_stuck(pid_t pid)
{
    const struct timespec pause = {.tv_nsec = STUCK_PAUSE_NS};

    for (int i = 0; i < STUCK_LOOKS; i++) {
        if (!has_stuck_task(pid))
            return false;
        (void)nanosleep(&pause, NULL);
    }
    return !proc_is_frozen(pid);
}

/*
 * Waits for the thread to stop, by its state: a wait(2) could take the end of the process from its parent, or lose the
 * stop to it, if that is a thread of this process.
 */
static int wait_for_stop(pid_t pid, pid_t tid, int64_t deadline_ns)
{
    struct timespec pause = {.tv_nsec = FIRST_PAUSE_NS};
    char name[TASK_NAME], state;

    for (;;) {
        if (!task_look(pid, tid, name, &state) || state == 'Z' || state == 'X')
            return ESRCH;
        if (state == 't')
            return 0;
        if (cdi_now_ns() >= deadline_ns)
            return ETIMEDOUT;
        (void)nanosleep(&pause, NULL);
        pause.tv_nsec = pause.tv_nsec * 2 > LONGEST_PAUSE_NS ? LONGEST_PAUSE_NS : pause.tv_nsec * 2;
    }
}

/* The signal that the stop has kept from the thread; 0: it has stopped for us, or was stopped already. */
static int kept_signal(pid_t tid)
{
    siginfo_t info = {.si_signo = 0};

    if (ptrace(PTRACE_GETSIGINFO, tid, NULL, &info) != 0 || info.si_code >> 8 == PTRACE_EVENT_STOP)
        return 0;
    return info.si_signo;
}

/* PTRACE_SEIZE, and not PTRACE_ATTACH: no SIGSTOP that the process could see, and a stopped process stays stopped. */
int task_hold(pid_t pid, pid_t tid, int64_t deadline_ns, int *signal)
{
    int rc;

    *signal = 0;
    if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) != 0)
        return errno;
    if (ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) != 0)
        return errno;
    rc = wait_for_stop(pid, tid, deadline_ns);
    if (rc != 0)
        return rc;
    *signal = kept_signal(tid);
    return 0;
}

void task_let_go(pid_t tid, int signal)
{
    (void)ptrace(PTRACE_DETACH, tid, NULL, (void *)(uintptr_t)signal);
}
