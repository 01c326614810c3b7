/* SPDX-License-Identifier: Apache-2.0 */
/* Names of signals. glibc has them since 2.32 only, and musl not at all. */
#ifndef CDI_SIGNAL_ABBREV_H
#define CDI_SIGNAL_ABBREV_H

#include <signal.h>
#include <stddef.h>

/* Returns the name of a signal without "SIG", such as "KILL"; NULL if it has none. Static storage. */
static inline const char *cdi_signal_abbrev(int number)
{
    static const char *const names[] = {
        [SIGHUP] = "HUP",   [SIGINT] = "INT",       [SIGQUIT] = "QUIT", [SIGILL] = "ILL",     [SIGTRAP] = "TRAP",
        [SIGABRT] = "ABRT", [SIGBUS] = "BUS",       [SIGFPE] = "FPE",   [SIGKILL] = "KILL",   [SIGUSR1] = "USR1",
        [SIGSEGV] = "SEGV", [SIGUSR2] = "USR2",     [SIGPIPE] = "PIPE", [SIGALRM] = "ALRM",   [SIGTERM] = "TERM",
        [SIGCHLD] = "CHLD", [SIGSTKFLT] = "STKFLT", [SIGCONT] = "CONT", [SIGSTOP] = "STOP",   [SIGTSTP] = "TSTP",
        [SIGTTIN] = "TTIN", [SIGTTOU] = "TTOU",     [SIGURG] = "URG",   [SIGXCPU] = "XCPU",   [SIGXFSZ] = "XFSZ",
        [SIGPROF] = "PROF", [SIGVTALRM] = "VTALRM", [SIGPOLL] = "POLL", [SIGWINCH] = "WINCH", [SIGPWR] = "PWR",
        [SIGSYS] = "SYS",
    };

    return number > 0 && (size_t)number < sizeof names / sizeof *names ? names[number] : NULL;
}

#endif
