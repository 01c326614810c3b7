/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"
#include "hygiene.h"
#include "protocol/flight.h"
#include "protocol/flight_crash.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

CDI_SUITE(flight_crash);

/* A page as a new process finds it, with both sides mapped. */
static struct cdi_flight *make_pages(struct cdi_flight **worker, int *fd)
{
    struct cdi_flight *agent;
    char env[128];

    cr_assert_eq(cdi_flight_create(&agent, 3, fd, NULL), CDDP_OK);
    cdi_flight_env(agent, *fd, *fd, env, sizeof env);
    cr_assert_eq(cdi_flight_attach(worker, env, NULL), CDDP_OK);
    return agent;
}

static void free_pages(struct cdi_flight *agent, struct cdi_flight *worker, int fd)
{
    cdi_flight_release(worker);
    cdi_flight_release(agent);
    (void)close(fd);
}

Test(flight_crash, agent_sees_what_the_worker_has_noted)
{
    struct cdi_flight *worker, *agent;
    struct cdi_flight_crash *c, copy;
    int fd;

    agent = make_pages(&worker, &fd);
    c = cdi_flight_crash(worker);
    cr_assert_eq(cdi_crash_look(cdi_flight_crash(agent), &copy), CDI_CRASH_NONE);
    c->signal = 11;
    c->tid = 78;
    c->pid = 77;
    c->pc = 4096;
    c->n_registers = 2;
    c->registers[1] = 5;
    atomic_store(&c->armed, CDI_CRASH_LOOKED | CDI_CRASH_BIT(11));
    cr_assert_eq(cdi_crash_look(cdi_flight_crash(agent), &copy), CDI_CRASH_NONE, "not published yet");
    cr_assert_eq(copy.signal, 0);
    cr_assert_eq(atomic_load(&copy.armed), CDI_CRASH_LOOKED | CDI_CRASH_BIT(11));
    atomic_store(&c->state, CDI_CRASH_WAITS);
    cr_assert_eq(cdi_crash_look(cdi_flight_crash(agent), &copy), CDI_CRASH_WAITS);
    cr_assert(copy.signal == 11 && copy.pid == 77 && copy.tid == 78 && copy.pc == 4096 && copy.registers[1] == 5);
    free_pages(agent, worker, fd);
}

Test(flight_crash, a_page_of_wrong_numbers_is_read_within_its_bounds)
{
    struct cdi_flight *worker, *agent;
    struct cdi_flight_crash *c, copy;
    int fd;

    agent = make_pages(&worker, &fd);
    c = cdi_flight_crash(worker);
    c->n_registers = UINT32_MAX;
    c->signal = 11;
    c->pid = c->tid = 77;
    atomic_store(&c->state, CDI_CRASH_UNREACHED);
    cr_assert_eq(cdi_crash_look(cdi_flight_crash(agent), &copy), CDI_CRASH_UNREACHED);
    cr_assert_eq(copy.n_registers, CDI_CRASH_REGISTERS);
    for (int i = 0; i < 4; i++) {
        c->signal = i == 0 ? -1 : i == 1 ? NSIG : 11;
        c->pid = i == 2 ? 0 : 77;
        c->tid = i == 3 ? INT32_MIN : 77;
        cr_assert_eq(cdi_crash_look(cdi_flight_crash(agent), &copy), CDI_CRASH_NONE, "%d", i);
        cr_assert(copy.signal == 0 && copy.pid == 0 && copy.tid == 0);
    }
    atomic_store(&c->state, UINT32_MAX);
    cr_assert_eq(cdi_crash_look(cdi_flight_crash(agent), &copy), CDI_CRASH_NONE);
    free_pages(agent, worker, fd);
}

Test(flight_crash, the_worker_calls_through_the_agents_pipe)
{
    struct cdi_flight *worker, *agent;
    struct cdi_flight_crash *c;
    char byte;
    int fd, ends[2];

    agent = make_pages(&worker, &fd);
    c = cdi_flight_crash(worker);
    cr_assert_not(cdi_crash_has_reader(c), "no agent reads stacks");
    cr_assert_not(cdi_crash_is_there(c));
    cr_assert_not(cdi_crash_tell(c));
    cr_assert_eq(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    cdi_crash_offer(cdi_flight_crash(agent), ends[1]);
    cr_assert(cdi_crash_has_reader(c) && cdi_crash_is_there(c));
    cr_assert_eq(read(ends[0], &byte, 1), -1);
    cr_assert(cdi_crash_tell(c));
    cr_assert_eq(read(ends[0], &byte, 1), 1);
    while (write(ends[1], "x", 1) == 1)
        ;
    cr_assert(cdi_crash_tell(c), "a full pipe wakes the agent, too");
    (void)close(ends[0]);
    (void)close(ends[1]);
    cr_assert_not(cdi_crash_tell(c), "the pipe is closed");
    free_pages(agent, worker, fd);
}

/* As after the agent's death, when another process has its pid. */
Test(flight_crash, no_other_file_of_that_name_gets_the_byte)
{
    struct cdi_flight *worker, *agent;
    struct cdi_flight_crash *c;
    int fd, ends[2], others[2];
    char byte;

    agent = make_pages(&worker, &fd);
    c = cdi_flight_crash(worker);
    cr_assert_eq(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    cr_assert_eq(pipe2(others, O_CLOEXEC | O_NONBLOCK), 0);
    cdi_crash_offer(cdi_flight_crash(agent), ends[1]);
    cr_assert_eq(dup2(others[1], ends[1]), ends[1]);
    cr_assert_not(cdi_crash_is_there(c));
    cr_assert_not(cdi_crash_tell(c), "another pipe");
    cr_assert_eq(read(others[0], &byte, 1), -1);
    (void)close(ends[1]);
    cr_assert_eq(open("/dev/null", O_WRONLY | O_CLOEXEC), ends[1]);
    cr_assert_not(cdi_crash_tell(c), "no pipe");
    atomic_store(&c->reader_pid, INT32_MAX);
    cr_assert_not(cdi_crash_tell(c), "no process");
    (void)close(ends[0]);
    (void)close(ends[1]);
    (void)close(others[0]);
    (void)close(others[1]);
    free_pages(agent, worker, fd);
}

Test(flight_crash, a_kept_page_outlives_its_release)
{
    struct cdi_flight *worker, *agent;
    struct cdi_flight_crash *c;
    int fd;

    agent = make_pages(&worker, &fd);
    c = cdi_flight_crash(worker);
    cdi_flight_keep(worker);
    cdi_flight_release(worker);
    atomic_store(&c->armed, CDI_CRASH_LOOKED);
    cr_assert_eq(atomic_load(&cdi_flight_crash(agent)->armed), CDI_CRASH_LOOKED);
    free_pages(agent, NULL, fd);
}

static void *tell_later(void *arg)
{
    (void)usleep(20000);
    cdi_crash_tell_read(arg);
    return NULL;
}

Test(flight_crash, the_worker_waits_for_the_agent_but_not_for_ever)
{
    struct cdi_flight *worker, *agent;
    pthread_t thread;
    int64_t before;
    int fd;

    agent = make_pages(&worker, &fd);
    before = cdi_now_ms();
    cdi_crash_wait_read(cdi_flight_crash(worker));
    cr_assert_geq(cdi_now_ms() - before, CDI_CRASH_WAIT_MS - 50);
    cr_assert_eq(pthread_create(&thread, NULL, tell_later, cdi_flight_crash(agent)), 0);
    cdi_crash_wait_read(cdi_flight_crash(worker));
    (void)pthread_join(thread, NULL);
    cr_assert_eq(atomic_load(&cdi_flight_crash(worker)->read), 1);
    before = cdi_now_ms();
    cdi_crash_wait_read(cdi_flight_crash(worker)); /* it has been read: no wait */
    cr_assert_lt(cdi_now_ms() - before, CDI_CRASH_WAIT_MS);
    free_pages(agent, worker, fd);
}
