/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/async.h"

#include "common/thread.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct cdi_saver {
    struct cdi_save save;
    pthread_t thread;
    bool in_progress;
    struct cdi_error result; /* of the thread; valid after it is joined */
};

static void release_snapshot(struct cdi_save *save)
{
    if (save->snapshot != NULL)
        save->mover.ops->give_back(save->mover.b, save->snapshot);
    save->snapshot = NULL;
}

void cdi_save_release(struct cdi_save *save)
{
    release_snapshot(save);
    free(save->dir);
    free(save->items);
    free(save->names);
    free(save->block);
    for (size_t i = 0; i < save->n_states; i++)
        cdi_state_release(&save->states[i]);
    free(save->states);
    *save = (struct cdi_save){0};
}

static void *save_thread(void *arg)
{
    struct cdi_saver *s = arg;
    struct cdi_save *w = &s->save;

    cdi_thread_name("cddp-save");
    s->result.status = cdi_checkpoint_write(w->dir, w->step, w->items, w->n_items, w->keep, &w->mover, &s->result);
    release_snapshot(w); /* at once, not only when a thread waits for the save */
    return NULL;
}

static cddp_status wait_and_destroy(void *arg, struct cdi_error *err)
{
    cddp_status st = cdi_saver_wait(arg, err);

    free(arg);
    return st;
}

cddp_status cdi_saver_start(struct cdi_on_finalize *of, struct cdi_save *save, struct cdi_error *err)
{
    struct cdi_saver *s = of->arg != NULL ? of->arg : calloc(1, sizeof *s);
    int rc;

    if (s == NULL) {
        cdi_save_release(save);
        return cdi_fail(err, CDDP_E_NOMEM, "checkpoint: out of memory");
    }
    *of = (struct cdi_on_finalize){.fn = wait_and_destroy, .arg = s};
    s->save = *save;
    s->result = (struct cdi_error){.status = CDDP_OK};
    *save = (struct cdi_save){0};
    rc = cdi_thread_create(&s->thread, 0, save_thread, s);
    s->in_progress = rc == 0;
    if (rc == 0)
        return CDDP_OK;
    cdi_save_release(&s->save);
    return cdi_fail_errno(err, rc, "checkpoint: the background thread could not be started");
}

cddp_status cdi_saver_wait(struct cdi_saver *saver, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    if (saver == NULL || !saver->in_progress)
        return CDDP_OK;
    (void)pthread_join(saver->thread, NULL);
    saver->in_progress = false;
    if (saver->result.status != CDDP_OK)
        st = cdi_fail_since(err, &saver->result, "the save of step %" PRIu64 " in the background failed: %.900s",
                            saver->save.step, saver->result.msg);
    cdi_save_release(&saver->save);
    return st;
}
