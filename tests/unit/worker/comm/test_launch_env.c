/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "worker/comm/launch_env.h"

#include <string.h>

CDI_SUITE(launch_env);

/* "NAME=VALUE" strings, up to NULL. */
static const char *const *vars;

static const char *lookup(const char *name)
{
    size_t len = strlen(name);

    for (const char *const *v = vars; *v != NULL; v++)
        if (strncmp(*v, name, len) == 0 && (*v)[len] == '=' && (*v)[len + 1] != '\0')
            return *v + len + 1;
    return NULL;
}

struct one {
    const char *what;
    const char *vars[16];
    struct cdi_launch want;
};

static const struct one good[] = {
    {"nothing", {NULL}, {.alone = true, .size = 1, .place = {0, 1, 0, 1}}},
    {"by hand",
     {"RANK=1", "WORLD_SIZE=3", "MASTER_ADDR=h", "MASTER_PORT=5"},
     {.rank = 1, .size = 3, .place = {-1, -1, -1, -1}, .host = "h", .port = 5}},
    {"a world of one by hand has a store",
     {"RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=h", "MASTER_PORT=5"},
     {.size = 1, .place = {-1, -1, -1, -1}, .host = "h", .port = 5}},
    {"an agent",
     {"RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=1", "GROUP_WORLD_SIZE=2",
      "MASTER_ADDR=h", "MASTER_PORT=5", "TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RESTART_COUNT=2"},
     {.rank = 3, .size = 4, .place = {1, 2, 1, 2}, .restart_count = 2, .host = "h", .port = 5, .hosted = true}},
    {"torchrun without its own store",
     {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=5", "TORCHELASTIC_USE_AGENT_STORE=False"},
     {.size = 2, .place = {-1, -1, -1, -1}, .host = "h", .port = 5}},
    {"Open MPI",
     {"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=0",
      "OMPI_COMM_WORLD_LOCAL_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=5", "PMI_SIZE=9", "SLURM_STEP_ID=0"},
     {.rank = 2, .size = 4, .place = {0, 2, -1, -1}, .host = "h", .port = 5}},
    {"RANK wins over Open MPI's",
     {"RANK=1", "WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1", "MASTER_ADDR=h", "MASTER_PORT=5"},
     {.rank = 1, .size = 2, .place = {-1, -1, -1, -1}, .host = "h", .port = 5}},
    {"MPICH",
     {"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2", "MASTER_ADDR=h", "MASTER_PORT=5",
      "SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_NTASKS=8"},
     {.rank = 1, .size = 2, .place = {1, 2, -1, -1}, .host = "h", .port = 5}},
    {"a Slurm step",
     {"SLURM_STEP_ID=0", "SLURM_PROCID=4", "SLURM_STEP_NUM_TASKS=6", "SLURM_NTASKS=8", "SLURM_LOCALID=0",
      "SLURM_NODEID=2", "SLURM_STEP_NUM_NODES=3", "SLURM_NNODES=4", "SLURM_STEP_TASKS_PER_NODE=2(x3)", "MASTER_ADDR=h",
      "MASTER_PORT=5"},
     {.rank = 4, .size = 6, .place = {0, 2, 2, 3}, .host = "h", .port = 5}},
    {"a step whose nodes differ, of an older Slurm",
     {"SLURM_STEP_ID=1", "SLURM_PROCID=7", "SLURM_NTASKS=8", "SLURM_LOCALID=2", "SLURM_NODEID=2", "SLURM_NNODES=3",
      "SLURM_STEP_TASKS_PER_NODE=3,2,3", "MASTER_ADDR=h", "MASTER_PORT=5"},
     {.rank = 7, .size = 8, .place = {2, 3, 2, 3}, .host = "h", .port = 5}},
    {"tasks per node that make no sense are not known",
     {"SLURM_STEP_ID=1", "SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_NODEID=1", "SLURM_NNODES=2",
      "SLURM_STEP_TASKS_PER_NODE=2(x", "MASTER_ADDR=h", "MASTER_PORT=5"},
     {.rank = 1, .size = 2, .place = {-1, -1, 1, 2}, .host = "h", .port = 5}},
    {"a batch script is not a step",
     {"SLURM_JOB_ID=7", "SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_NODEID=0"},
     {.alone = true, .size = 1, .place = {0, 1, 0, 1}}},
    {"one process under mpirun",
     {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1"},
     {.alone = true, .size = 1, .place = {0, 1, 0, 1}}},
    {"a shell that salloc opened",
     {"SLURM_STEP_ID=4294967290", "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1", "SLURM_NTASKS=8"},
     {.alone = true, .size = 1, .place = {0, 1, 0, 1}}},
};

Test(launch_env, reads_the_variables_of_each_launcher)
{
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const struct one *t = &good[i];
        struct cdi_launch got;
        struct cdi_error err;

        vars = t->vars;
        cr_assert_eq(cdi_launch_read(&got, lookup, &err), CDDP_OK, "%s: %s", t->what, err.msg);
        cr_assert_eq(got.alone, t->want.alone, "%s", t->what);
        cr_assert_eq(got.rank, t->want.rank, "%s: rank %d", t->what, got.rank);
        cr_assert_eq(got.size, t->want.size, "%s: size %d", t->what, got.size);
        cr_assert_eq(memcmp(&got.place, &t->want.place, sizeof got.place), 0, "%s: %d/%d on %d/%d", t->what,
                     got.place.local_rank, got.place.local_size, got.place.node_rank, got.place.n_nodes);
        cr_assert_eq(got.restart_count, t->want.restart_count, "%s", t->what);
        cr_assert_eq(got.hosted, t->want.hosted, "%s", t->what);
        cr_assert_eq(got.port, t->want.port, "%s", t->what);
        cr_assert(got.alone || strcmp(got.host, t->want.host) == 0, "%s", t->what);
    }
}

Test(launch_env, names_wrong_variables_with_the_remedy)
{
    static const struct {
        const char *vars[10], *words[3];
    } bad[] = {
        {{"RANK=0"}, {"WORLD_SIZE is not set", "MASTER_ADDR and MASTER_PORT together"}},
        {{"MASTER_PORT=5"}, {"RANK is not set", "cddprun"}},
        {{"RANK=0", "WORLD_SIZE=2"}, {"MASTER_ADDR is not set"}},
        {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h"}, {"MASTER_PORT is not set"}},
        {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=0"}, {"MASTER_PORT='0'"}},
        {{"RANK=2", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=1"}, {"RANK=2 is not below WORLD_SIZE=2"}},
        {{"RANK=+1", "WORLD_SIZE=2"}, {"RANK='+1'"}},
        {{"RANK=0", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=3"}, {"LOCAL_WORLD_SIZE='3'"}},
        {{"RANK=0", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=2", "LOCAL_RANK=2"}, {"LOCAL_RANK='2'"}},
        {{"RANK=0", "WORLD_SIZE=4", "GROUP_WORLD_SIZE=2", "GROUP_RANK=2"}, {"GROUP_RANK='2'"}},
        {{"TORCHELASTIC_RESTART_COUNT=x"}, {"TORCHELASTIC_RESTART_COUNT='x'"}},
        {{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2"},
         {"MASTER_ADDR is not set", "mpirun -x MASTER_ADDR=", "-x MASTER_PORT="}},
        {{"OMPI_COMM_WORLD_SIZE=2"}, {"OMPI_COMM_WORLD_RANK is not set"}},
        {{"PMI_RANK=0", "PMI_SIZE=2", "MASTER_ADDR=h"}, {"MASTER_PORT is not set", "mpiexec -genv MASTER_ADDR"}},
        {{"SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_NTASKS=2"},
         {"MASTER_ADDR is not set", "MASTER_PORT=29500", "export MASTER_ADDR=$(scontrol"}},
        {{"SLURM_STEP_ID=0", "SLURM_PROCID=2", "SLURM_NTASKS=2"}, {"SLURM_PROCID=2 is not below SLURM_NTASKS=2"}},
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct cdi_launch got;
        struct cdi_error err;

        vars = bad[i].vars;
        cr_assert_eq(cdi_launch_read(&got, lookup, &err), CDDP_E_INVALID, "case %zu", i);
        for (int w = 0; w < 3 && bad[i].words[w] != NULL; w++)
            cr_assert_not_null(strstr(err.msg, bad[i].words[w]), "case %zu: %s", i, err.msg);
    }
}
