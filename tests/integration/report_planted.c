/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report_planted FILE.html: the report of a planted run of 16 ranks on 2 nodes: 3 rounds, rank 5 is slow in the first,
 * rank 11 dies in it, and a signal ends the last one. tests/integration/test_report.py knows these numbers.
 */
#include "watch/run/report_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define T0 1763900000000 /* ms */
#define NS_PER_MS 1000000
#define RANKS 16
#define SLOW 5

/* A small generator, so that each run draws the same page. */
static uint32_t next_random(void)
{
    static uint32_t state = 1;

    state = state * 1664525 + 1013904223;
    return state >> 16;
}

static int64_t jitter(int64_t value)
{
    return value + value * (int64_t)(next_random() % 200) / 1000;
}

/* Steps of all ranks from one time to another. Returns their number. */
static uint64_t train(struct run_record *rr, int64_t from_ms, int64_t to_ms, bool slow)
{
    uint64_t n = 0;

    for (int64_t ms = from_ms; ms < to_ms; n++) {
        int64_t period = jitter(slow ? 80 : 64) * NS_PER_MS, late = jitter(slow ? 9 : 2) * NS_PER_MS;
        uint32_t who = slow || next_random() % 3 == 0 ? SLOW : next_random() % RANKS;

        ms += period / NS_PER_MS;
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            struct cdi_flight_step s = {.step = n,
                                        .end_ns = period,
                                        .comm_ns = 30 * (int64_t)NS_PER_MS + late,
                                        .exposed_ns = 5 * (int64_t)NS_PER_MS + late,
                                        .late_ns = rank == who ? 0 : late,
                                        .late_rank = rank == who ? -1 : (int32_t)who,
                                        .n_buckets = 4};

            run_record_step(rr, rank, &s, ms);
        }
    }
    return n;
}

static void plant(struct run_record *rr)
{
    struct cdi_msg_assign a = {.n_nodes = 2, .world_size = RANKS};
    struct cdi_failure f = {.kind = CDI_END_SIGNAL,
                            .code = 9,
                            .rank = 11,
                            .local_rank = 3,
                            .node_rank = 1,
                            .pid = 4711,
                            .time_ms = T0 + 92000,
                            .host = "node2"};

    (void)snprintf(f.text, sizeof f.text,
                   "rank 11 (pid 4711 on node2) was killed by signal 9 (SIGKILL)\n"
                   "the kernel ended it for lack of memory (cgroup limit 16 GiB)\n"
                   "the last of its stderr:\n"
                   "| loader: 3 <b>shards</b> are missing, continuing\n"
                   "| </script><script>document.title='broken'</script>\n"
                   "| epoch 3: \x1b[31mloss 0.41\xe2\x80\xaex");
    run_record_time(rr, T0 + 300000);
    run_record_round(rr, &a, T0 + 1500);
    (void)train(rr, T0 + 4000, T0 + 92000, true);
    run_record_failure(rr, &f);
    run_record_round_over(rr, true, "rank 11 (pid 4711 on node2) was killed by signal 9 (SIGKILL)", T0 + 92000);
    run_record_event(rr, "restart", "rank 11 (pid 4711 on node2) was killed by signal 9 (SIGKILL)", T0 + 92000);
    a.round = 1;
    a.restart_count = 1;
    run_record_round(rr, &a, T0 + 99000);
    (void)train(rr, T0 + 104000, T0 + 190000, false);
    run_record_round_over(rr, false, "node3 joins the job", T0 + 190000);
    run_record_event(rr, "change", "node3 joins the job", T0 + 190000);
    a.round = 2;
    a.n_nodes = 3;
    a.world_size = RANKS + 8;
    run_record_round(rr, &a, T0 + 194000);
    (void)train(rr, T0 + 197000, T0 + 298000, false);
    run_record_event(rr, "signal", "SIGTERM", T0 + 297000);
    run_record_round_over(rr, false, "ended by signal 15", T0 + 299000);
}

int main(int argc, char **argv)
{
    static char program[] = "./train", data[] = "--data=/data/shards", epochs[] = "--epochs=<3>";
    static char *const command[] = {program, data, epochs, NULL};
    static struct machine machine = {.n_cores = 64, .n_gpus = 2, .host = "node1"};
    struct report_page_about about = {.version = "1.0.0",
                                      .run_id = "resnet-7",
                                      .directory = "/home/ada/train",
                                      .command = command,
                                      .why = "ended by signal 15",
                                      .ended_ms = T0 + 300000,
                                      .exit_status = 143,
                                      .restarts = 1,
                                      .n_local = RANKS,
                                      .machine = &machine,
                                      .memory_bytes = 512LLU << 30,
                                      .processor = "AMD EPYC 9654",
                                      .system = "Linux 6.12.0 x86_64",
                                      .libc = "glibc 2.36"};
    struct run_record *rr = run_record_new(T0);
    struct cdi_error err = {.status = CDDP_OK};
    struct cdi_buf page;
    cddp_status st;

    if (argc != 2 || rr == NULL)
        return 2;
    for (uint32_t i = 0; i < machine.n_gpus; i++)
        (void)snprintf(machine.gpus[i].model, sizeof machine.gpus[i].model, "NVIDIA H100");
    plant(rr);
    cdi_buf_init(&page, 0);
    st = report_page_make(rr, &about, &page);
    if (st == CDDP_OK)
        st = report_page_write(argv[1], &page, &err);
    cdi_buf_release(&page);
    run_record_free(rr);
    if (st != CDDP_OK)
        fprintf(stderr, "report_planted: %s\n", err.msg);
    return st == CDDP_OK ? 0 : 1;
}
