/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI in this process. The first user initialises it once; the library finalises it at exit if it has initialised it.
 */
#include "common/clock.h"
#include "common/env.h"
#include "worker/backend/mpi/state.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MEGA ((size_t)1 << 20)

const struct cdi_host *cdi_mpi_host;

/* State of the process, and the duplicates in the order of their creation. */
static struct cdi_mpi_process process;
static struct cdi_mpi_process *duplicates;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER, calls = PTHREAD_MUTEX_INITIALIZER;
static bool is_begun, one_at_a_time;
static pid_t initialised_by; /* 0: not by libcddp */
static atomic_bool broken;

void cdi_mpi_enter(void)
{
    if (one_at_a_time)
        (void)pthread_mutex_lock(&calls);
}

int cdi_mpi_leave(int rc)
{
    if (one_at_a_time)
        (void)pthread_mutex_unlock(&calls);
    return rc;
}

cddp_status cdi_mpi_fail(int rc, const char *text, struct cdi_error *err)
{
    char why[MPI_MAX_ERROR_STRING + 1] = "";
    int len = 0;

    if (MPI_Error_string(rc, why, &len) != MPI_SUCCESS)
        (void)snprintf(why, sizeof why, "error %d", rc);
    return cdi_fail(err, CDDP_E_SYSTEM, "%s: MPI reports %.300s", text, why);
}

void cdi_mpi_process_broken(void)
{
    atomic_store(&broken, true);
}

bool cdi_mpi_process_lives(void)
{
    int finalised = 0;

    return MPI_Finalized(&finalised) == MPI_SUCCESS && !finalised;
}

/*
 * Without it, mpirun reports the end of a process as a failure. After a failure it would wait for ranks that may be
 * gone.
 */
static void finalise(void)
{
    if (getpid() != initialised_by || atomic_load(&broken) || !cdi_mpi_process_lives())
        return;
    for (struct cdi_mpi_process *p = duplicates; p != NULL; p = p->next)
        (void)MPI_Comm_free(&p->comm);
    if (is_begun)
        (void)MPI_Type_free(&process.mega);
    (void)MPI_Finalize();
}

/* ----------------------------------------------------------------------------------------------- rank and size ---- */

/* Checks the variables of each launcher before MPI_Init, which could hang in a process of another launcher. */
static cddp_status compare_launcher(const struct cdi_world *w, struct cdi_error *err)
{
    static const char *const names[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"PMI_RANK", "PMI_SIZE"}};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *rank = cdi_mpi_host->env(names[i][0]), *size = cdi_mpi_host->env(names[i][1]);

        int64_t n;

        if (rank == NULL || size == NULL ||
            (cdi_parse_int(rank, w->rank, w->rank, &n) && cdi_parse_int(size, w->size, w->size, &n)))
            continue;
        return cdi_fail(err, CDDP_E_INVALID,
                        "this process is rank %d of %d (RANK and WORLD_SIZE), but %s='%.16s' and %s='%.16s': over MPI "
                        "each rank of the job must be the same rank of MPI; let mpirun start the program itself, and "
                        "leave RANK unset",
                        w->rank, w->size, names[i][0], rank, names[i][1], size);
    }
    return CDDP_OK;
}

/* Returns the communicator whose ranks those of w are. */
static MPI_Comm base_of(const struct cdi_world *w)
{
    return w->mpi_comm != NULL ? *(const MPI_Comm *)w->mpi_comm : MPI_COMM_WORLD;
}

static const char *name_base(const struct cdi_world *w)
{
    return w->mpi_comm != NULL ? "cddp_init_options.mpi_comm" : "MPI_COMM_WORLD";
}

static cddp_status process_compare_ranks(const struct cdi_world *w, struct cdi_error *err)
{
    int rank = -1, size = -1, rc;

    if (w->mpi_comm != NULL && base_of(w) == MPI_COMM_NULL)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_init_options.mpi_comm is MPI_COMM_NULL");
    rc = CDI_MPI(MPI_Comm_rank(base_of(w), &rank));
    if (rc == MPI_SUCCESS)
        rc = CDI_MPI(MPI_Comm_size(base_of(w), &size));
    if (rc != MPI_SUCCESS)
        return cdi_mpi_fail(rc, "MPI_Comm_size", err);
    if (rank == w->rank && size == w->size)
        return CDDP_OK;
    if (w->mpi_comm != NULL)
        return cdi_fail(
            err, CDDP_E_INVALID,
            "this process is rank %d of %d of the job, but rank %d of %d of cddp_init_options.mpi_comm: give "
            "world_size and rank as that communicator has them",
            w->rank, w->size, rank, size);
    return cdi_fail(
        err, CDDP_E_INVALID,
        "this process is rank %d of %d according to its launcher (RANK and WORLD_SIZE, or the launcher's own "
        "variables), but rank %d of %d in %s: start the program with the mpirun or mpiexec of that MPI "
        "(cddprun and torchrun do not start MPI), or set CDDP_BACKEND=cpu",
        w->rank, w->size, rank, size, process.library);
}

/* ---------------------------------------------------------------------------------------------- initialisation ---- */

/* "MPICH Version:   4.0.2\n..." */
static void name_library(char *buf, size_t cap)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
    size_t n = 0;
    int len = 0;

    (void)MPI_Get_library_version(text, &len);
    for (const char *p = text; *p != '\0' && *p != ',' && *p != '\n' && n + 1 < cap; p++) {
        bool space = *p == ' ' || *p == '\t';

        if (!space || (n > 0 && buf[n - 1] != ' '))
            buf[n++] = space ? ' ' : *p;
    }
    buf[n] = '\0';
}

static cddp_status process_start_mpi(int *level, struct cdi_error *err)
{
    int begun = 0, finalised = 0, rc;

    if (MPI_Initialized(&begun) != MPI_SUCCESS || MPI_Finalized(&finalised) != MPI_SUCCESS || finalised)
        return cdi_fail(err, CDDP_E_INVALID,
                        "this program has finalised MPI, which cannot be initialised again: call "
                        "cddp_init before MPI_Finalize");
    if (begun) {
        rc = MPI_Query_thread(level);
        return rc == MPI_SUCCESS ? CDDP_OK : cdi_mpi_fail(rc, "MPI_Query_thread", err);
    }
    rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, level);
    if (rc != MPI_SUCCESS)
        return cdi_mpi_fail(rc, "MPI_Init_thread", err);
    initialised_by = getpid();
    if (atexit(finalise) != 0)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    return CDDP_OK;
}

/* Only libcddp sends on it, and its errors are returned. All ranks call this; it waits for missing ones. */
static cddp_status duplicate(struct cdi_mpi_process *p, MPI_Comm base, const struct cdi_world *w, struct cdi_error *err)
{
    int64_t deadline_ms = cdi_deadline_ms(cdi_now_ms(), w->init_timeout_ms);
    const struct timespec nap = {.tv_nsec = 200000};
    MPI_Request request;
    cddp_status st = CDDP_OK;
    int done = 0, rc = CDI_MPI(MPI_Comm_idup(base, &p->comm, &request));

    while (rc == MPI_SUCCESS && !done && st == CDDP_OK && cdi_now_ms() < deadline_ms) {
        rc = CDI_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
        if (!done)
            (void)nanosleep(&nap, NULL);
        if (!done)
            st = cdi_flight_check(w->flight, err);
    }
    if (rc == MPI_SUCCESS && !done) {
        atomic_store(&broken, true);
        return st != CDDP_OK ? st
                             : cdi_fail(err, CDDP_E_TIMEOUT, "not all ranks arrived to duplicate %s within %.4g s",
                                        name_base(w), (double)w->init_timeout_ms / 1000);
    }
    if (rc == MPI_SUCCESS)
        rc = CDI_MPI(MPI_Comm_set_errhandler(p->comm, MPI_ERRORS_RETURN));
    return rc == MPI_SUCCESS ? CDDP_OK : cdi_mpi_fail(rc, "duplicating a communicator", err);
}

static cddp_status count_tags(struct cdi_error *err)
{
    int *most = NULL, is_set = 0, rc = MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&most, &is_set);

    if (rc != MPI_SUCCESS)
        return cdi_mpi_fail(rc, "MPI_TAG_UB", err);
    process.n_communicators = (is_set ? *most : 32767) / CDI_MPI_TAGS;
    return CDDP_OK;
}

/* Once per process; with `opening`. */
static cddp_status process_begin(const struct cdi_world *w, struct cdi_error *err)
{
    int level = MPI_THREAD_SINGLE, begun = 0, rc;
    cddp_status st;

    if (w->mpi_comm != NULL && (MPI_Initialized(&begun) != MPI_SUCCESS || !begun))
        return cdi_fail(
            err, CDDP_E_INVALID,
            "cddp_init_options.mpi_comm is given, but this program has not initialised MPI: nothing was done");
    st = process_start_mpi(&level, err);
    if (st != CDDP_OK)
        return st;
    name_library(process.library, sizeof process.library);
    one_at_a_time = level < MPI_THREAD_MULTIPLE;
    process.main_only = level < MPI_THREAD_SERIALIZED;
    /* At this level calls must not overlap, and libcddp does not know when the program calls MPI. */
    process.own_threads = level == MPI_THREAD_MULTIPLE || (level == MPI_THREAD_SERIALIZED && initialised_by != 0);
    st = count_tags(err);
    if (st != CDDP_OK)
        return st;
    rc = MPI_Type_contiguous((int)MEGA, MPI_BYTE, &process.mega);
    if (rc == MPI_SUCCESS)
        rc = MPI_Type_commit(&process.mega);
    if (rc != MPI_SUCCESS)
        return cdi_mpi_fail(rc, "MPI_Type_contiguous", err);
    is_begun = true;
    return CDDP_OK;
}

cddp_status cdi_mpi_process_begin(const struct cdi_world *world, struct cdi_error *err)
{
    cddp_status st = world->mpi_comm == NULL ? compare_launcher(world, err) : CDDP_OK;

    if (st != CDDP_OK)
        return st;
    (void)pthread_mutex_lock(&opening);
    if (!is_begun)
        st = process_begin(world, err);
    if (st == CDDP_OK && !cdi_mpi_process_lives())
        st = cdi_fail(err, CDDP_E_INVALID, "this program has finalised MPI, which cannot be initialised again");
    if (st == CDDP_OK)
        st = process_compare_ranks(world, err);
    (void)pthread_mutex_unlock(&opening);
    return st;
}

bool cdi_mpi_process_main_only(void)
{
    return process.main_only;
}

/* A duplicate of a communicator with the same processes in the same order serves as well. */
static bool serves(const struct cdi_mpi_process *p, MPI_Comm base)
{
    int result = MPI_UNEQUAL;

    return CDI_MPI(MPI_Comm_compare(p->comm, base, &result)) == MPI_SUCCESS && result == MPI_CONGRUENT;
}

int cdi_mpi_process_choose(const struct cdi_world *world)
{
    int index = 0;

    (void)pthread_mutex_lock(&opening);
    for (const struct cdi_mpi_process *p = duplicates; p != NULL; p = p->next) {
        if (!serves(p, base_of(world)))
            continue;
        if (!p->in_use)
            break;
        index++;
    }
    (void)pthread_mutex_unlock(&opening);
    return index;
}

static struct cdi_mpi_process *process_find(MPI_Comm base, int index)
{
    for (struct cdi_mpi_process *p = duplicates; p != NULL; p = p->next)
        if (serves(p, base) && index-- == 0)
            return p;
    return NULL;
}

static cddp_status process_make(struct cdi_mpi_process **out, const struct cdi_world *world, struct cdi_error *err)
{
    struct cdi_mpi_process *p, **at = &duplicates;
    cddp_status st;

    if (atomic_load(&broken))
        return cdi_fail(err, CDDP_E_INVALID,
                        "an earlier failure has left MPI in an undefined state: restart the program");
    p = calloc(1, sizeof *p);
    if (p == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    *p = process;
    st = duplicate(p, base_of(world), world, err); /* without the lock: other communicators may leave meanwhile */
    if (st != CDDP_OK) {
        if (!atomic_load(&broken)) /* otherwise MPI may still write to it */
            free(p);
        return st;
    }
    (void)pthread_mutex_lock(&opening);
    while (*at != NULL)
        at = &(*at)->next;
    p->in_use = true;
    *at = *out = p;
    (void)pthread_mutex_unlock(&opening);
    return CDDP_OK;
}

cddp_status cdi_mpi_process_open(struct cdi_mpi_process **out, const struct cdi_world *world, int index,
                                 struct cdi_error *err)
{
    struct cdi_mpi_process *p;

    (void)pthread_mutex_lock(&opening);
    p = process_find(base_of(world), index);
    if (p != NULL)
        p->in_use = true;
    (void)pthread_mutex_unlock(&opening);
    *out = p;
    return p != NULL ? CDDP_OK : process_make(out, world, err);
}

int64_t cdi_mpi_process_number(const struct cdi_world *world, int index)
{
    const struct cdi_mpi_process *p;
    int64_t number;

    (void)pthread_mutex_lock(&opening);
    p = process_find(base_of(world), index);
    number = p != NULL ? p->n_used : 0;
    (void)pthread_mutex_unlock(&opening);
    return number;
}

void cdi_mpi_process_close(struct cdi_mpi_process *p, int64_t last)
{
    (void)pthread_mutex_lock(&opening);
    p->n_used = p->n_used <= last ? last + 1 : p->n_used;
    p->in_use = false;
    (void)pthread_mutex_unlock(&opening);
}
