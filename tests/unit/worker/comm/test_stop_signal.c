/* SPDX-License-Identifier: Apache-2.0 */
/* Criterion runs each test in a separate process. */
#include "common/env.h"
#include "hygiene.h"
#include "protocol/flight_stop.h"
#include "worker/comm/stop_signal.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

CDI_SUITE(stop_signal);

static struct cdi_flight *agent, *page;
static int fd;

static void setup(void)
{
    char env[128];

    (void)signal(SIGTERM, SIG_DFL);
    (void)signal(SIGUSR1, SIG_DFL);
    cr_assert_eq(cdi_flight_create(&agent, 0, &fd, NULL), CDDP_OK);
    cdi_flight_env(agent, fd, fd, env, sizeof env);
    cr_assert_eq(cdi_flight_attach(&page, env, NULL), CDDP_OK);
}

static void teardown(void)
{
    cdi_flight_release(page);
    cdi_flight_release(agent);
    (void)close(fd);
}

static bool is_default(int number)
{
    struct sigaction now;

    return sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_DFL;
}

static void on_own(int number)
{
    (void)number;
}

/* Returns the signal that ends a child, which does this; 0: it exits. */
static int end_of_child(void (*act)(void))
{
    pid_t child = fork();
    int status = 0;

    if (child == 0) {
        act();
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void end_itself(void)
{
    (void)raise(SIGTERM);
}

Test(stop_signal, request_does_not_end_a_process_that_asks, .init = setup, .fini = teardown)
{
    cr_assert_eq(cdi_stop_signal_watch(page, NULL), CDDP_OK);
    cr_assert(!cdi_stop_signal_heard());
    (void)raise(SIGTERM);
    cr_assert(cdi_stop_signal_heard());
    cr_assert(is_default(SIGUSR1), "only TERM, if CDDP_STOP_SIGNALS is not set");
    cdi_stop_signal_leave(false);
    cr_assert(is_default(SIGTERM));
}

Test(stop_signal, signals_are_those_of_the_variable, .init = setup, .fini = teardown)
{
    cr_assert_eq(setenv(CDI_STOP_SIGNALS_ENV, "INT,USR1", 1), 0);
    cr_assert_eq(cdi_stop_signal_watch(page, NULL), CDDP_OK);
    cr_assert(is_default(SIGTERM) && !is_default(SIGUSR1));
    (void)raise(SIGUSR1);
    cr_assert(cdi_stop_signal_heard());
    cdi_stop_signal_leave(false);
}

Test(stop_signal, rejects_a_list_with_an_unknown_name, .init = setup, .fini = teardown)
{
    static const char *const bad[] = {"TERM,", ",", "TERM USR1", "SIGTERM", "TERM,NONSENSE"};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(setenv(CDI_STOP_SIGNALS_ENV, bad[i], 1), 0);
        cr_assert_eq(cdi_stop_signal_watch(page, NULL), CDDP_E_INVALID, "%s", bad[i]);
        cr_assert(is_default(SIGTERM));
    }
}

Test(stop_signal, handlers_of_the_program_stay, .init = setup, .fini = teardown)
{
    struct sigaction now;

    (void)signal(SIGTERM, on_own);
    cr_assert_eq(cdi_stop_signal_watch(page, NULL), CDDP_OK);
    (void)raise(SIGTERM);
    cr_assert(!cdi_stop_signal_heard());
    cdi_stop_signal_leave(false);
    cr_assert(sigaction(SIGTERM, NULL, &now) == 0 && now.sa_handler == on_own);
}

Test(stop_signal, last_communicator_restores_the_default_action, .init = setup, .fini = teardown)
{
    cr_assert_eq(cdi_stop_signal_watch(page, NULL), CDDP_OK);
    cr_assert_eq(cdi_stop_signal_watch(page, NULL), CDDP_OK);
    cdi_stop_signal_leave(false);
    cr_assert(!is_default(SIGTERM));
    cdi_stop_signal_leave(false);
    cr_assert(is_default(SIGTERM));
}

Test(stop_signal, process_that_leaves_after_an_order_keeps_the_handler, .init = setup, .fini = teardown)
{
    cr_assert_eq(cdi_stop_signal_watch(page, NULL), CDDP_OK);
    cdi_stop_signal_leave(true);
    (void)raise(SIGTERM); /* the batch system's second one */
    (void)signal(SIGTERM, SIG_DFL);
}

Test(stop_signal, child_of_fork_is_ended, .init = setup, .fini = teardown)
{
    cr_assert_eq(cdi_stop_signal_watch(page, NULL), CDDP_OK);
    cr_assert_eq(end_of_child(end_itself), SIGTERM, "such as a data loader's process");
    cr_assert(!cdi_stop_signal_heard());
    cdi_stop_signal_leave(false);
}

static void ask_after_a_failure(void)
{
    (void)cdi_stop_signal_watch(page, NULL);
    cdi_flight_tell_death(agent, 1, "rank 1 was killed");
    end_itself();
}

Test(stop_signal, process_is_ended_once_a_failure_is_known, .init = setup, .fini = teardown)
{
    cr_assert_eq(end_of_child(ask_after_a_failure), SIGTERM);
}
