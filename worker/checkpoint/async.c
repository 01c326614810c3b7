/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/async.h"

#include "common/thread.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct cdi_saver {
    struct cdi_save save;
    pthread_t thread;
    bool in_progress;
    /* How ranks tell rank 0 that they have written their shards: see report. */
    char key[CDI_DRAFT_NAME];   /* the first folder; "": there was none yet */
    uint64_t n_sharded, failed; /* saves since then, and ranks that failed in them */
    atomic_bool is_canceled;
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
    free(save->ranges);
    cdi_draft_drop(save->draft);
    *save = (struct cdi_save){0};
}

cddp_status cdi_save_write_shard(const struct cdi_save *save, struct cdi_error *err)
{
    return cdi_draft_write_shard(save->dir, save->folder, (size_t)cddp_rank(save->comm),
                                 (size_t)cddp_world_size(save->comm), save->step, save->items, save->ranges,
                                 save->n_items, &save->mover, err);
}

cddp_status cdi_save_publish(struct cdi_save *save, struct cdi_error *err)
{
    struct cdi_draft *draft = save->draft;

    save->draft = NULL;
    return cdi_draft_publish(draft, save->dir, (size_t)cddp_world_size(save->comm), save->keep, err);
}

#define FAILED ((int64_t)1 << 32)

/*
 * Adds to a sum in the store, of all sharded saves of this communicator: 1 for each shard, and FAILED if it was not
 * written. No collective may be in flight beside the program's, so rank 0 looks at the sum.
 */
static cddp_status report(const struct cdi_saver *s, cddp_status st, struct cdi_error *err)
{
    const struct cdi_oob *keys = &cdi_comm_world(s->save.comm)->keys;
    char key[CDI_DRAFT_NAME + 8], text[CDI_ERROR_TEXT];
    struct cdi_error lost;
    cddp_status sent = CDDP_OK;

    if (st != CDDP_OK) {
        (void)snprintf(key, sizeof key, "%s/why", s->key);
        (void)snprintf(text, sizeof text, "%.950s, on %.60s", err->msg,
                       cdi_comm_who(s->save.comm, cddp_rank(s->save.comm)).text);
        sent = cdi_oob_set_text(keys, key, text, &lost);
    }
    if (sent == CDDP_OK)
        sent = keys->add(keys->arg, s->key, st == CDDP_OK ? 1 : 1 + FAILED, NULL, &lost);
    return st == CDDP_OK && sent != CDDP_OK ? (*err = lost, sent) : st;
}

/* On rank 0: returns the communicator's error, if it has one. Never waits. */
static cddp_status look_at_comm(cddp_comm *comm, struct cdi_error *err)
{
    const struct cdi_backend_ops *ops = cdi_comm_ops(comm);

    return ops->peek(cdi_comm_backend(comm), err);
}

/* On rank 0: waits until all ranks have reported. Returns CDDP_OK if all have written their shards. */
static cddp_status wait_for_shards(struct cdi_saver *s, struct cdi_error *err)
{
    const struct cdi_oob *keys = &cdi_comm_world(s->save.comm)->keys;
    int64_t n = (int64_t)s->n_sharded * cddp_world_size(s->save.comm), sum = 0;
    char key[CDI_DRAFT_NAME + 8], text[CDI_ERROR_TEXT];
    long pause_us = 200;

    for (bool is_broken = false;; is_broken = look_at_comm(s->save.comm, err) != CDDP_OK) {
        const struct timespec pause = {.tv_nsec = pause_us * 1000};

        /* A rank that has left has reported before. */
        if (keys->add(keys->arg, s->key, 0, &sum, is_broken ? NULL : err) != CDDP_OK)
            return is_broken ? err->status : cdi_error_wrap(err, "not all ranks have reported their shards");
        if ((sum & (FAILED - 1)) >= n)
            break;
        if (is_broken)
            return err->status;
        if (atomic_load(&s->is_canceled))
            return cdi_fail(err, CDDP_E_SYSTEM, "checkpoint: another rank could not begin to save");
        (void)nanosleep(&pause, NULL);
        pause_us = pause_us < 25000 ? pause_us * 2 : pause_us;
    }
    if (sum / FAILED == (int64_t)s->failed)
        return CDDP_OK;
    s->failed = (uint64_t)(sum / FAILED);
    (void)snprintf(key, sizeof key, "%s/why", s->key);
    if (cdi_oob_get_text(keys, key, text, sizeof text, 0, err) != CDDP_OK)
        return err->status;
    return cdi_fail(err, CDDP_E_SYSTEM, "%s", text);
}

static cddp_status write_sharded(struct cdi_saver *s, struct cdi_error *err)
{
    struct cdi_save *w = &s->save;
    cddp_status st = cdi_save_write_shard(w, err);
    struct cdi_error why;

    if (cddp_world_size(w->comm) > 1) {
        st = report(s, st, err);
        if (cddp_rank(w->comm) == 0 && wait_for_shards(s, &why) != CDDP_OK && st == CDDP_OK)
            *err = why, st = why.status;
    }
    return st == CDDP_OK && cddp_rank(w->comm) == 0 ? cdi_save_publish(w, err) : st;
}

static void *save_thread(void *arg)
{
    struct cdi_saver *s = arg;
    struct cdi_save *w = &s->save;

    cdi_thread_name("cddp-save");
    s->result.status = w->folder[0] != '\0' ? write_sharded(s, &s->result)
                                            : cdi_checkpoint_write(w->dir, w->step, w->items, w->n_items, w->keep,
                                                                   &w->mover, &s->result);
    cdi_draft_drop(w->draft);
    w->draft = NULL;
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
    if (s->save.folder[0] != '\0' && s->key[0] == '\0')
        (void)snprintf(s->key, sizeof s->key, "%s", s->save.folder);
    s->n_sharded += s->save.folder[0] != '\0';
    *save = (struct cdi_save){0};
    rc = cdi_thread_create(&s->thread, 0, save_thread, s);
    s->in_progress = rc == 0;
    if (rc == 0)
        return CDDP_OK;
    cdi_save_release(&s->save);
    return cdi_fail_errno(err, rc, "checkpoint: the background thread could not be started");
}

void cdi_saver_cancel(struct cdi_saver *saver)
{
    if (saver == NULL)
        return;
    atomic_store(&saver->is_canceled, true);
    (void)cdi_saver_wait(saver, NULL);
    atomic_store(&saver->is_canceled, false);
    saver->key[0] = '\0'; /* the sums of the ranks may differ from now on */
    saver->n_sharded = saver->failed = 0;
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
