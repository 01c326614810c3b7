/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "protocol/flight.h"
#include "protocol/flight_stop.h"

#include <string.h>
#include <unistd.h>

CDI_SUITE(flight_stop);

Test(flight_stop, agent_sees_what_the_worker_has_noted)
{
    struct cdi_flight *worker, *agent;
    struct cdi_stop_view view;
    char env[128];
    int fd;

    cr_assert_eq(cdi_flight_create(&agent, 3, &fd, NULL), CDDP_OK);
    cdi_flight_env(agent, fd, fd, env, sizeof env);
    cr_assert_eq(cdi_flight_attach(&worker, env, NULL), CDDP_OK);
    cdi_stop_look(cdi_flight_stop(agent), &view);
    cr_assert(!view.asks && view.agreed == CDI_STOP_NONE && view.step == -1);
    cdi_stop_note_asks(cdi_flight_stop(worker), true);
    cdi_stop_look(cdi_flight_stop(agent), &view);
    cr_assert(view.asks && view.agreed == CDI_STOP_NONE);
    cdi_stop_note_agreed(cdi_flight_stop(worker), CDI_STOP_RANK, 5, 120);
    cdi_stop_note_asks(cdi_flight_stop(worker), false);
    cdi_stop_look(cdi_flight_stop(agent), &view);
    cr_assert(!view.asks && view.agreed == CDI_STOP_RANK && view.rank == 5 && view.step == 120);
    cdi_stop_note_agreed(cdi_flight_stop(worker), CDI_STOP_SIGNAL, 0, -1);
    cdi_stop_look(cdi_flight_stop(agent), &view);
    cr_assert(view.agreed == CDI_STOP_SIGNAL && view.step == -1, "the rank has no reducer");
    cdi_flight_release(worker);
    cdi_flight_release(agent);
    (void)close(fd);
}

Test(flight_stop, numbers_that_no_worker_writes_count_as_none)
{
    struct cdi_flight_stop s;
    struct cdi_stop_view view;

    memset(&s, 0xff, sizeof s);
    cdi_stop_look(&s, &view);
    cr_assert(view.agreed == CDI_STOP_NONE && view.step == -1 && view.rank == -1);
    atomic_store(&s.rank, INT32_MIN);
    atomic_store(&s.step_plus_1, UINT64_C(1) << 63);
    cdi_stop_look(&s, &view);
    cr_assert(view.step == -1 && view.rank == -1);
}

Test(flight_stop, word_for_a_signal_handler_tells_of_the_end)
{
    struct cdi_flight *worker, *agent;
    char env[128];
    int fd;

    cr_assert_eq(cdi_flight_create(&agent, 3, &fd, NULL), CDDP_OK);
    cdi_flight_env(agent, fd, fd, env, sizeof env);
    cr_assert_eq(cdi_flight_attach(&worker, env, NULL), CDDP_OK);
    cdi_flight_tell_stop_wanted(agent);
    cr_assert(!cdi_flight_said_end(cdi_flight_said(worker)), "collectives work");
    cdi_flight_tell_death(agent, 1, "rank 1 was killed");
    cr_assert(cdi_flight_said_end(cdi_flight_said(worker)));
    cdi_flight_release(worker);
    cdi_flight_release(agent);
    (void)close(fd);
}
