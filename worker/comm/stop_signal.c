/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/stop_signal.h"

#include "common/env.h"
#include "common/signal_abbrev.h"
#include "protocol/flight_stop.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define N_SIGNALS 64

/* Read by the handler, which takes no lock. */
static _Atomic int heard;                       /* a signal; 0: none */
static _Atomic(const _Atomic uint32_t *) words; /* of the flight page; NULL: none */
static _Atomic pid_t process;

/* The rest, under the lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned n_watching;
static bool stays;

/* Gives the signal back to its default action, which ends the process as soon as the handler returns. */
static void end_by(int number)
{
    struct sigaction standard = {.sa_handler = SIG_DFL};

    (void)sigemptyset(&standard.sa_mask);
    (void)sigaction(number, &standard, NULL);
    (void)kill(getpid(), number);
}

static void on_stop(int number)
{
    const _Atomic uint32_t *said = atomic_load(&words);

    if (atomic_load(&process) != getpid() || (said != NULL && cdi_flight_said_end(said)))
        end_by(number);
    else
        atomic_store(&heard, number);
}

/* Reads "TERM,USR1" into the set, bit n-1 for signal n. */
static bool read_names(const char *text, uint64_t *set)
{
    *set = 0;
    for (const char *p = text;; p++) {
        size_t len = strcspn(p, ",");
        int found = 0;

        for (int s = 1; s <= N_SIGNALS && found == 0; s++) {
            const char *name = cdi_signal_abbrev(s);

            if (name != NULL && strlen(name) == len && memcmp(name, p, len) == 0)
                found = s;
        }
        if (found == 0)
            return false;
        *set |= UINT64_C(1) << (found - 1);
        p += len;
        if (*p == '\0')
            return true;
    }
}

static void stop_signal_install(uint64_t set)
{
    struct sigaction mine = {.sa_handler = on_stop, .sa_flags = SA_RESTART}, now;

    (void)sigemptyset(&mine.sa_mask);
    for (int s = 1; s <= N_SIGNALS; s++)
        if ((set >> (s - 1) & 1) != 0 && sigaction(s, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
            now.sa_handler == SIG_DFL)
            (void)sigaction(s, &mine, NULL);
}

static void stop_signal_uninstall(void)
{
    struct sigaction standard = {.sa_handler = SIG_DFL}, now;

    (void)sigemptyset(&standard.sa_mask);
    for (int s = 1; s <= N_SIGNALS; s++)
        if (sigaction(s, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == on_stop)
            (void)sigaction(s, &standard, NULL);
}

cddp_status cdi_stop_signal_watch(struct cdi_flight *f, struct cdi_error *err)
{
    const char *text = cdi_env_str(CDI_STOP_SIGNALS_ENV);
    uint64_t set;

    if (!read_names(text != NULL ? text : "TERM", &set))
        return cdi_fail(err, CDDP_E_INVALID, CDI_STOP_SIGNALS_ENV "='%.64s' is not a list of signals such as TERM,USR1",
                        text);
    (void)pthread_mutex_lock(&lock);
    if (atomic_load(&process) != getpid()) { /* also a child of fork(), which has inherited all of it */
        atomic_store(&process, getpid());
        atomic_store(&heard, 0);
        n_watching = 0;
        stays = false;
    }
    if (cdi_flight_has_agent(f)) {
        cdi_flight_keep(f); /* for the handler */
        atomic_store(&words, cdi_flight_said(f));
    }
    n_watching++;
    stop_signal_install(set);
    (void)pthread_mutex_unlock(&lock);
    return CDDP_OK;
}

void cdi_stop_signal_leave(bool stay)
{
    (void)pthread_mutex_lock(&lock);
    stays |= stay;
    if (n_watching > 0 && --n_watching == 0 && !stays && atomic_load(&process) == getpid())
        stop_signal_uninstall();
    (void)pthread_mutex_unlock(&lock);
}

bool cdi_stop_signal_heard(void)
{
    return atomic_load_explicit(&heard, memory_order_relaxed) != 0;
}

/* As in crash.c: libcddp.a may be a part of a library that is unloaded. */
__attribute__((destructor)) static void stop_signal_unload(void)
{
    if (!stays)
        stop_signal_uninstall();
}
