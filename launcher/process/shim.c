/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cddprun-shim runs between the agent's spawn and the worker's program. Every rank pays for it, so on known processors
 * it is linked without libc, whose start takes three times as long as all of this. On other processors, and with
 * sanitizers, it is an ordinary program.
 *   cddprun-shim AGENT_PID MASK IGNORED NOFILE CPUS FILE PROGRAM [ARGS]
 * MASK and IGNORED are hexadecimal, bit n-1 for signal n; CPUS is a list such as 0-7,16-23, or "-".
 *
 * FILE is executed, PROGRAM is its argv[0]. Descriptor 3 is the flight page. Descriptor 4 is the pipe for what fails
 * (exec_failure.h). All higher descriptors are closed.
 */
#include "launcher/process/exec_failure.h"
#include "launcher/process/syscalls.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/prctl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>

#define ERRNO_FD 4
#define N_SIGNALS 64
#define FIRST_ARG 6 /* FILE */
#define CPUS_MAX 65536

struct kernel_sigaction { /* the kernel's structure; the other members are 0 for SIG_DFL and SIG_IGN */
    uintptr_t handler;
    uintptr_t rest[3];
};

/* Reads a number that snprintf has written, so there are no errors to report; -1: "-". */
static int64_t number(const char *text, unsigned base)
{
    uint64_t v = 0;

    if (*text == '-')
        return -1;
    for (; *text != '\0'; text++)
        v = v * base + (uint64_t)(*text >= 'a' ? *text - 'a' + 10 : *text - '0');
    return (int64_t)v;
}

/* For kernels before 5.9: by /proc/self/fd. */
static void close_listed(long first)
{
    struct {
        uint64_t ino;
        int64_t off;
        uint16_t len;
        uint8_t type;
        char name[];
    } * entry;
    _Alignas(8) char buf[1024];
    long dir = sys(SYS_openat, AT_FDCWD, (long)"/proc/self/fd", O_RDONLY | O_DIRECTORY, 0, 0), n;

    while (dir >= 0 && (n = sys(SYS_getdents64, dir, (long)buf, sizeof buf, 0, 0)) > 0) {
        for (long at = 0; at < n; at += entry->len) {
            long fd;

            entry = (void *)(buf + at);
            /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): the kernel has filled buf */
            fd = entry->name[0] == '.' ? -1 : (long)number(entry->name, 10);
            if (fd >= first && fd != dir)
                (void)sys(SYS_close, fd, 0, 0, 0, 0);
        }
    }
    if (dir >= 0)
        (void)sys(SYS_close, dir, 0, 0, 0, 0);
}

static void close_from(long first)
{
#ifdef SYS_close_range
    if (sys(SYS_close_range, first, 0xffffffffL, 0, 0, 0) == 0)
        return;
#endif
    close_listed(first);
}

static void restore_signals(uint64_t mask, uint64_t ignored)
{
    struct kernel_sigaction sa = {.handler = 0};

    for (int s = 1; s <= N_SIGNALS; s++) {
        sa.handler = (uintptr_t)((ignored >> (s - 1) & 1) != 0 ? SIG_IGN : SIG_DFL);
        (void)sys(SYS_rt_sigaction, s, (long)&sa, 0, sizeof mask, 0); /* fails for KILL and STOP */
    }
    (void)sys(SYS_rt_sigprocmask, SIG_SETMASK, (long)&mask, 0, sizeof mask, 0);
}

static void restore_nofile(int64_t soft)
{
    uint64_t lim[2]; /* soft, hard */

    if (soft < 0 || sys(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, (long)lim, 0) != 0)
        return;
    lim[0] = (uint64_t)soft;
    (void)sys(SYS_prlimit64, 0, RLIMIT_NOFILE, (long)lim, 0, 0);
}

/* The list consists of digits, commas and dashes only. Returns errno. */
static int shim_bind_to(const char *list)
{
    static uint64_t mask[CPUS_MAX / 64];
    uint32_t v = 0, from = UINT32_MAX; /* no dash so far */
    long rc;

    if (list[0] == '-')
        return 0;
    for (const char *p = list;; p++) {
        if (*p >= '0' && *p <= '9') {
            v = v * 10 + (uint32_t)(*p - '0');
            continue;
        }
        if (*p != '-') {
            for (uint32_t cpu = from <= v ? from : v; cpu <= v && cpu < CPUS_MAX; cpu++)
                mask[cpu / 64] |= UINT64_C(1) << cpu % 64;
            from = UINT32_MAX;
        } else {
            from = v;
        }
        v = 0;
        if (*p == '\0')
            break;
    }
    rc = sys(SYS_sched_setaffinity, 0, sizeof mask, (long)mask, 0, 0);
    return rc < 0 ? (int)-rc : 0;
}

/* argv: from FILE on. Returns errno. As execvp(3) does, a file without an interpreter's name is a shell script. */
static int exec_program(char **argv, char **env)
{
    static char shell[] = "/bin/sh";
    long rc = sys(SYS_execve, (long)argv[0], (long)(argv + 1), (long)env, 0, 0);

    if (rc == -ENOEXEC) {
        argv[1] = argv[0];
        argv[0] = shell;
        rc = sys(SYS_execve, (long)shell, (long)argv, (long)env, 0, 0);
    }
    return (int)-rc;
}

/* Tells the agent why there is no program. Returns the exit status. */
static int fail(enum exec_failure what, int error)
{
    const int word = (int)what << EXEC_ERRNO_BITS | error;

    while (sys(SYS_write, ERRNO_FD, (long)&word, sizeof word, 0, 0) == -EINTR)
        ;
    return what == EXEC_PROGRAM && error == ENOENT ? 127 : 126;
}

static int shim(long argc, char **argv, char **env)
{
    int error;

    if (argc < FIRST_ARG + 2)
        return fail(EXEC_ARGS, EINVAL);
    (void)sys(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    /* If the agent died before the line above, no signal will be sent. */
    if (sys(SYS_getppid, 0, 0, 0, 0, 0) != number(argv[1], 10))
        return fail(EXEC_AGENT, ESRCH);
    /* For Yama (security/yama/yama_lsm.c): py-spy, a child of the agent, may read this process, also after exec. */
    (void)sys(SYS_prctl, PR_SET_PTRACER, number(argv[1], 10), 0, 0, 0);
    (void)sys(SYS_fcntl, ERRNO_FD, F_SETFD, FD_CLOEXEC, 0, 0);
    close_from(ERRNO_FD + 1);
    restore_nofile(number(argv[4], 10));
    restore_signals((uint64_t)number(argv[2], 16), (uint64_t)number(argv[3], 16));
    error = shim_bind_to(argv[FIRST_ARG - 1]);
    if (error != 0)
        return fail(EXEC_CPUS, error);
    return fail(EXEC_PROGRAM, exec_program(argv + FIRST_ARG, env));
}

/* ----------------------------------------------------------------------------------------------------- start ---- */

#ifdef SHIM_FREESTANDING

#if defined __x86_64__
__asm__(".globl _start\n"
        ".type _start, @function\n"
        "_start: xor %ebp, %ebp\n"
        "        mov %rsp, %rdi\n"
        "        and $-16, %rsp\n"
        "        call begin\n");
#elif defined __aarch64__
__asm__(".globl _start\n"
        ".type _start, %function\n"
        "_start: mov x29, #0\n"
        "        mov x30, #0\n"
        "        mov x0, sp\n"
        "        bl begin\n");
#endif

/* The stack at the start: argc, argv, NULL, environment, NULL. */
__attribute__((used)) static _Noreturn void begin(long *stack)
{
    char **argv = (char **)(stack + 1);

    for (;;)
        (void)sys(SYS_exit_group, shim(stack[0], argv, argv + stack[0] + 1), 0, 0, 0, 0);
}

#else

int main(int argc, char **argv, char **env)
{
    return shim(argc, argv, env);
}

#endif
