/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cddprun-shim: the moment between the agent's fork and the worker's program, which libuv gives no hook for. A
 * program of its own, with libc only, since every rank pays for each library.
 *
 *   cddprun-shim AGENT_PID MASK IGNORED NOFILE PROGRAM [ARGS]     (MASK, IGNORED: hexadecimal, bit n-1 for signal n)
 *
 * Descriptor 3 is the flight page, 4 the pipe on which errno of a failed exec goes back; nothing above is kept.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ERRNO_FD 4
#define SYSTEM_NOFILE "-" /* leave RLIMIT_NOFILE as it is */

static void close_from(int first)
{
    struct dirent *entry;
    DIR *dir;

#ifdef SYS_close_range
    if (syscall(SYS_close_range, (unsigned)first, ~0u, 0u) == 0)
        return;
#endif
    dir = opendir("/proc/self/fd");
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        int fd = (int)strtol(entry->d_name, NULL, 10);

        if (fd >= first && fd != dirfd(dir))
            (void)close(fd);
    }
    if (dir != NULL)
        (void)closedir(dir);
}

static void restore_signals(unsigned long long mask, unsigned long long ignored)
{
    sigset_t set;

    (void)sigemptyset(&set);
    for (int s = 1; s <= 64; s++) {
        if (s != SIGKILL && s != SIGSTOP)
            (void)signal(s, (ignored >> (s - 1) & 1) != 0 ? SIG_IGN : SIG_DFL);
        if ((mask >> (s - 1) & 1) != 0)
            (void)sigaddset(&set, s);
    }
    (void)sigprocmask(SIG_SETMASK, &set, NULL);
}

static void restore_nofile(const char *text)
{
    struct rlimit lim;

    if (strcmp(text, SYSTEM_NOFILE) == 0 || getrlimit(RLIMIT_NOFILE, &lim) != 0)
        return;
    lim.rlim_cur = (rlim_t)strtoull(text, NULL, 10);
    (void)setrlimit(RLIMIT_NOFILE, &lim);
}

int main(int argc, char **argv)
{
    int error;

    if (argc < 6)
        return 125;
    (void)setsid();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    /* If the agent died before the line above, no signal will come. */
    if (getppid() != (pid_t)strtol(argv[1], NULL, 10))
        return 125;
    (void)fcntl(ERRNO_FD, F_SETFD, FD_CLOEXEC);
    close_from(ERRNO_FD + 1);
    restore_nofile(argv[4]);
    restore_signals(strtoull(argv[2], NULL, 16), strtoull(argv[3], NULL, 16));
    (void)execvp(argv[5], argv + 5);
    error = errno;
    while (write(ERRNO_FD, &error, sizeof error) < 0 && errno == EINTR)
        ;
    return error == ENOENT ? 127 : 126;
}
