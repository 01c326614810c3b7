/* SPDX-License-Identifier: Apache-2.0 */
/* The collective calls over checkpoint files: rank 0 writes and reads, all ranks get its result and its bytes. */
#include "worker/checkpoint.h"
#include "worker/comm.h"

#include <stdlib.h>
#include <string.h>

/* Rank 0's result, for all. */
struct verdict {
    int32_t status;
    char msg[CDI_ERROR_TEXT];
    cddp_checkpoint_info info;
};

static cddp_status share(cddp_comm *comm, struct verdict *v, struct cdi_error *err)
{
    cddp_status st = cdi_comm_broadcast(comm, v, sizeof *v, CDDP_UINT8, 0, err);

    if (st != CDDP_OK)
        return st;
    return v->status == CDDP_OK ? CDDP_OK : cdi_fail(err, (cddp_status)v->status, "%s", v->msg);
}

/* The items as files see them: those on a device have a copy on the host. */
struct mirror {
    cddp_checkpoint_item *items;
    void *block; /* all copies, one behind the other */
};

static void mirror_release(struct mirror *m)
{
    free(m->block);
    free(m->items);
}

static cddp_status mirror_init(struct mirror *m, cddp_comm *comm, const cddp_checkpoint_item *items, size_t n,
                               struct cdi_error *err)
{
    const struct cdi_backend_ops *ops = cdi_comm_ops(comm);
    struct cdi_backend *b = cdi_comm_backend(comm);
    size_t total = 0;
    uint8_t *at;

    *m = (struct mirror){.items = calloc(n, sizeof *m->items)};
    for (size_t i = 0; i < n; i++)
        total += ops->is_device(b, items[i].data) ? items[i].bytes : 0;
    m->block = at = malloc(total > 0 ? total : 1);
    if (m->items == NULL || at == NULL) {
        mirror_release(m);
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for a copy of %zu bytes of the device's", total);
    }
    for (size_t i = 0; i < n; i++) {
        m->items[i] = items[i];
        if (!ops->is_device(b, items[i].data))
            continue;
        m->items[i].data = at;
        at += items[i].bytes;
    }
    return CDDP_OK;
}

/* Bring what differs from there to here: from the device before a save, or to it after a load. */
static cddp_status mirror_copy(cddp_comm *comm, const cddp_checkpoint_item *to, const cddp_checkpoint_item *from,
                               size_t n, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < n && st == CDDP_OK; i++)
        if (to[i].data != from[i].data)
            st = cdi_comm_ops(comm)->copy(cdi_comm_backend(comm), to[i].data, from[i].data, to[i].bytes, err);
    return st;
}

static cddp_status write_mirrored(cddp_comm *comm, const char *dir, uint64_t step, const cddp_checkpoint_item *items,
                                  size_t n_items, int keep, struct cdi_error *err)
{
    struct mirror m;
    cddp_status st = cdi_checkpoint_check_items(items, n_items, err);

    if (st != CDDP_OK)
        return st;
    st = mirror_init(&m, comm, items, n_items, err);
    if (st != CDDP_OK)
        return st;
    st = mirror_copy(comm, m.items, items, n_items, err);
    if (st == CDDP_OK)
        st = cdi_checkpoint_write(dir, step, m.items, n_items, keep, err);
    mirror_release(&m);
    return st;
}

static cddp_status read_mirrored(cddp_comm *comm, const char *dir, const cddp_checkpoint_item *items, size_t n_items,
                                 cddp_checkpoint_info *info, struct cdi_error *err)
{
    struct mirror m;
    cddp_status st = mirror_init(&m, comm, items, n_items, err);

    if (st != CDDP_OK)
        return st;
    st = cdi_checkpoint_read(dir, m.items, n_items, info, err);
    if (st == CDDP_OK)
        st = mirror_copy(comm, items, m.items, n_items, err);
    mirror_release(&m);
    return st;
}

static cddp_status check_place(const cddp_comm *comm, const char *dir, struct cdi_error *err)
{
    if (comm == NULL || dir == NULL || *dir == '\0')
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint: no communicator or no directory");
    return CDDP_OK;
}

static cddp_status save(cddp_comm *comm, const char *dir, uint64_t step, const cddp_checkpoint_item *items,
                        size_t n_items, const cddp_checkpoint_options *opt, struct cdi_error *err)
{
    struct verdict v = {0};

    if (check_place(comm, dir, err) != CDDP_OK)
        return err->status;
    if (opt != NULL && (opt->size == 0 || opt->keep < 0))
        return cdi_fail(err, CDDP_E_INVALID, "cddp_checkpoint_options: size is 0 or keep is negative");
    if (cddp_rank(comm) == 0) {
        int keep = opt == NULL || opt->keep == 0 ? 2 : opt->keep;

        v.status = write_mirrored(comm, dir, step, items, n_items, keep, err);
        memcpy(v.msg, err->msg, sizeof v.msg);
    }
    return share(comm, &v, err);
}

static cddp_status load(cddp_comm *comm, const char *dir, const cddp_checkpoint_item *items, size_t n_items,
                        cddp_checkpoint_info *info, struct cdi_error *err)
{
    struct verdict v = {0};
    cddp_status st;

    if (check_place(comm, dir, err) != CDDP_OK || cdi_checkpoint_check_items(items, n_items, err) != CDDP_OK)
        return err->status;
    if (cddp_rank(comm) == 0) {
        v.status = read_mirrored(comm, dir, items, n_items, &v.info, err);
        memcpy(v.msg, err->msg, sizeof v.msg);
    }
    st = share(comm, &v, err);
    for (size_t i = 0; st == CDDP_OK && i < n_items; i++)
        st = cdi_comm_broadcast(comm, items[i].data, items[i].bytes, CDDP_UINT8, 0, err);
    if (st == CDDP_OK && info != NULL)
        *info = v.info;
    return st;
}

cddp_status cddp_checkpoint_save(cddp_comm *comm, const char *dir, uint64_t step, const cddp_checkpoint_item *items,
                                 size_t n_items, const cddp_checkpoint_options *opt)
{
    struct cdi_error err = {CDDP_OK, ""};

    return save(comm, dir, step, items, n_items, opt, &err) == CDDP_OK ? CDDP_OK : cdi_last_error_set(&err);
}

cddp_status cddp_checkpoint_load(cddp_comm *comm, const char *dir, const cddp_checkpoint_item *items, size_t n_items,
                                 cddp_checkpoint_info *info)
{
    struct cdi_error err = {CDDP_OK, ""};

    return load(comm, dir, items, n_items, info, &err) == CDDP_OK ? CDDP_OK : cdi_last_error_set(&err);
}
