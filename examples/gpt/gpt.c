/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPT that is trained by many processes. Run: cddprun --standalone --nproc_per_node=2 gpt
 * train.c has the loop, and README.md says where everything else is.
 */
#include "state.h"
#include "train.h"

#include <errno.h>
#include <string.h>

/* An error of this rank alone: its peers hear of it rather than wait. */
static bool run(const struct options *opt, cddp_comm *comm)
{
    static struct job job;
    const int rank = cddp_rank(comm);
    cddp_status status;

    job = (struct job){.opt = opt, .comm = comm};
    if (progress_open(&job.progress, comm, opt->log, opt->resume != NULL)) {
        status = train(&job);
    } else {
        status = job_fail(&job, "cannot write %.200s: %s", opt->log, strerror(errno));
    }
    if (job.why[0] != '\0')
        cddp_abort(comm, job.why);
    if (!progress_close(&job.progress) && status == CDDP_OK)
        status = job_fail(&job, "cannot write %.200s: %s", opt->log, strerror(errno));
    if (status != CDDP_OK)
        (void)fprintf(stderr, "gpt: rank %d: %s\n", rank, job.why[0] != '\0' ? job.why : cddp_last_error());
    return status == CDDP_OK;
}

int main(int argc, char **argv)
{
    struct options opt;
    cddp_init_options init = {.size = sizeof init};
    cddp_comm *comm;
    bool ok;

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    if (!options_parse(&opt, argc, argv))
        return 2;
    if (opt.help) {
        options_help();
        return 0;
    }
    if (strcmp(opt.device, "auto") != 0)
        init.backend = strcmp(opt.device, "gpu") == 0 ? "nccl" : "cpu";
    if (cddp_init(&comm, &init) != CDDP_OK) {
        (void)fprintf(stderr, "gpt: %s\n", cddp_last_error());
        return 1;
    }
    ok = state_watch(&opt, comm) == CDDP_OK;
    if (!ok)
        (void)fprintf(stderr, "gpt: %s\n", cddp_last_error());
    ok = ok && run(&opt, comm);
    if (cddp_finalize(comm) != CDDP_OK && ok) {
        (void)fprintf(stderr, "gpt: %s\n", cddp_last_error());
        ok = false;
    }
    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        (void)fprintf(stderr, "gpt: cannot write the output\n");
        ok = false;
    }
    return ok ? 0 : 1;
}
