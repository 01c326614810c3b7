/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/checkpoint/draft.h"

#include "common/cleanup.h"
#include "worker/checkpoint/owned.h"
#include "worker/checkpoint/read.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define EXCHANGE (1u << 1) /* RENAME_EXCHANGE of linux/fs.h */
#define TMP_PREFIX ".checkpoint"

/* Chooses a name that nobody else has. */
static cddp_status make_tmp(char tmp[CDI_DRAFT_NAME], const char *dir, struct cdi_error *err)
{
    uint64_t random;

    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return cdi_fail_errno(err, errno, "checkpoint directory '%s': no random number", dir);
    (void)snprintf(tmp, CDI_DRAFT_NAME, TMP_PREFIX "-%016" PRIx64 ".tmp", random);
    return CDDP_OK;
}

/* Removes a file, or a folder of files. Returns false if it is still there. */
static bool remove_tree(int dir_fd, const char *name)
{
    int fd = unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT
                 ? -1
                 : openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *e;

    if (fd >= 0 && d == NULL)
        (void)close(fd);
    while (d != NULL && (e = readdir(d)) != NULL)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            (void)unlinkat(fd, e->d_name, 0);
    if (d != NULL)
        (void)closedir(d);
    return faccessat(dir_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) != 0 || unlinkat(dir_fd, name, AT_REMOVEDIR) == 0;
}

/* Removes a checkpoint. A folder is hidden first: no reader finds a part of it. */
static bool remove_checkpoint(int dir_fd, const char *name)
{
    char tmp[CDI_DRAFT_NAME];

    if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
        return true;
    return make_tmp(tmp, "", NULL) == CDDP_OK && renameat(dir_fd, name, dir_fd, tmp) == 0 && remove_tree(dir_fd, tmp);
}

/*
 * Removes, of those that this process knows, old checkpoints beyond `keep`, those of later steps, which belong to a
 * round that was abandoned, and damaged ones. A failure to remove one does not fail the save.
 */
static void remove_old(int dir_fd, const struct stat *dir, const char *path, uint64_t just_written, int keep)
{
    CDI_AUTOFREE uint64_t *steps = NULL;
    size_t n = 0;
    char name[64];
    int kept = 1;

    if (cdi_checkpoint_steps(path, &steps, &n, NULL) != CDDP_OK)
        return;
    for (size_t i = 0; i < n; i++) {
        enum cdi_owned_kind kind = cdi_owned_find(dir, steps[i]);

        if (steps[i] == just_written || kind == CDI_OWNED_NOT || kind == CDI_OWNED_STRAY)
            continue;
        if (kind == CDI_OWNED_WHOLE && steps[i] < just_written && (keep < 0 || kept++ < keep))
            continue;
        (void)snprintf(name, sizeof name, CDI_CHECKPOINT_NAME, steps[i]);
        if (remove_checkpoint(dir_fd, name))
            (void)cdi_owned_put(dir, steps[i], CDI_OWNED_NOT);
    }
}

/*
 * Removes temporary files and folders that killed runs have left. One that somebody writes is locked. Where a file
 * system has no locks, one is left over that is a day older than `now`, a time of the same clock.
 */
static void remove_leftovers(int dir_fd, const char *path, time_t now)
{
    DIR *d = opendir(path);
    const struct dirent *e;

    while (d != NULL && (e = readdir(d)) != NULL) {
        size_t len = strlen(e->d_name);
        CDI_AUTOCLOSE int fd = -1;
        struct stat sb;

        if (strncmp(e->d_name, TMP_PREFIX, sizeof TMP_PREFIX - 1) != 0 || len < 4 ||
            strcmp(e->d_name + len - 4, ".tmp") != 0)
            continue;
        fd = openat(dir_fd, e->d_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0 && errno == EISDIR)
            fd = openat(dir_fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 ? errno == ELOOP /* a link */
                   : fstat(fd, &sb) == 0 && (S_ISREG(sb.st_mode) || S_ISDIR(sb.st_mode)) &&
                         (flock(fd, LOCK_EX | LOCK_NB) == 0 ||
                          (errno != EWOULDBLOCK && now - sb.st_mtime > (time_t)24 * 3600)))
            (void)remove_tree(dir_fd, e->d_name);
    }
    if (d != NULL)
        (void)closedir(d);
}

/* Opens the directory; makes it first, so that its name stays when the machine stops. Returns -1 on failure. */
static int open_dir(const char *dir, struct stat *sb, struct cdi_error *err)
{
    CDI_AUTOCLOSE int fd = -1, parent = -1;
    bool is_new = mkdir(dir, 0777) == 0;

    if (!is_new && errno != EEXIST) {
        (void)cdi_fail_errno(err, errno, "checkpoint: making the directory '%s'", dir);
        return -1;
    }
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && is_new)
        parent = openat(fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, sb) != 0 || (parent >= 0 && fsync(parent) != 0)) {
        (void)cdi_fail_errno(err, errno, "checkpoint directory '%s'", dir);
        return -1;
    }
    return cdi_steal_fd(&fd);
}

static cddp_status refuse(const char *dir, uint64_t step, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_EXISTS,
                    "checkpoint directory '%.400s': the checkpoint of step %" PRIu64
                    " there was neither loaded nor saved by this run, so nothing was saved or removed: load it first "
                    "(resume), save into another directory, or remove it",
                    dir, step);
}

/* Decides for a directory that this process has neither loaded from nor saved to. */
static cddp_status check_first(const char *dir, const struct stat *sb, const uint64_t *steps, size_t n,
                               struct cdi_error *err)
{
    struct cdi_checkpoint_file *f = NULL;
    cddp_checkpoint_info info = {.size = sizeof info};
    cddp_status st = n == 0 ? CDDP_E_NOT_FOUND : cdi_checkpoint_open(&f, dir, &info, err);

    cdi_checkpoint_close(f);
    if (st == CDDP_OK || st == CDDP_E_VERSION)
        return refuse(dir, st == CDDP_OK ? info.step : steps[0], err);
    if (st != CDDP_E_NOT_FOUND && st != CDDP_E_IO)
        return st;
    st = cdi_owned_begin(sb);
    for (size_t i = 0; i < n && st == CDDP_OK; i++)
        st = cdi_owned_put(sb, steps[i], CDI_OWNED_STRAY);
    return st == CDDP_OK ? CDDP_OK : cdi_fail(err, st, "checkpoint directory '%s': out of memory", dir);
}

cddp_status cdi_checkpoint_may_write(const char *dir, struct cdi_error *err)
{
    CDI_AUTOFREE uint64_t *steps = NULL;
    struct stat sb;
    size_t n = 0;
    cddp_status st = cdi_checkpoint_steps(dir, &steps, &n, err);

    if (st == CDDP_E_NOT_FOUND)
        return CDDP_OK;
    if (st == CDDP_OK && stat(dir, &sb) != 0)
        st = cdi_fail_errno(err, errno, "checkpoint directory '%s'", dir);
    if (st != CDDP_OK)
        return st;
    if (!cdi_owned_has(&sb))
        return check_first(dir, &sb, steps, n, err);
    for (size_t i = 0; i < n; i++)
        if (cdi_owned_find(&sb, steps[i]) == CDI_OWNED_NOT)
            return refuse(dir, steps[i], err);
    return CDDP_OK;
}

struct cdi_draft {
    int dir_fd, fd; /* fd: the file, or the folder of a sharded one; locked */
    bool is_folder, may_replace;
    uint64_t step, bytes;
    struct stat dir;
    char tmp[CDI_DRAFT_NAME], name[64];
};

const char *cdi_draft_name(const struct cdi_draft *d)
{
    return d->tmp;
}

/*
 * Exchanges a checkpoint with what has its name, one of them a folder, which rename does not replace. Then d->tmp is
 * the name of the old one.
 */
static bool exchange(struct cdi_draft *d)
{
    char old[CDI_DRAFT_NAME];
    int error;

    /* by its number: older C libraries have no function for it */
    if (syscall(SYS_renameat2, d->dir_fd, d->tmp, d->dir_fd, d->name, EXCHANGE) == 0)
        return true;
    /* A file system that cannot: for a moment there is none of this step. */
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
        return false;
    if (make_tmp(old, "", NULL) != CDDP_OK || renameat(d->dir_fd, d->name, d->dir_fd, old) != 0)
        return false;
    if (renameat(d->dir_fd, d->tmp, d->dir_fd, d->name) == 0) {
        memcpy(d->tmp, old, sizeof d->tmp);
        return true;
    }
    error = errno;
    (void)renameat(d->dir_fd, old, d->dir_fd, d->name);
    errno = error;
    return false;
}

/*
 * Gives the file its name, which replaces only a file that this process knows: another job may have saved the same step
 * meanwhile. A file system over a network may report that the name exists, though it has just made it.
 */
static cddp_status publish(struct cdi_draft *d, struct cdi_error *err)
{
    bool links = !d->may_replace && !d->is_folder, is_there, lasts;
    int rc = links ? linkat(d->dir_fd, d->tmp, d->dir_fd, d->name, 0) : -1, error = links && rc != 0 ? errno : 0;
    struct stat sb;

    if (rc == 0 || (links && fstat(d->fd, &sb) == 0 && sb.st_nlink == 2)) {
        (void)unlinkat(d->dir_fd, d->tmp, 0);
    } else {
        if (!d->may_replace && error != EEXIST && faccessat(d->dir_fd, d->name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
            error = EEXIST; /* a file system without links, or a folder */
        if (!d->may_replace && error == EEXIST)
            return CDDP_E_EXISTS;
        if (renameat(d->dir_fd, d->tmp, d->dir_fd, d->name) != 0) {
            is_there = errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR || errno == EISDIR;
            if (is_there && !d->may_replace)
                return CDDP_E_EXISTS;
            if (!is_there || !exchange(d))
                return cdi_not_written(err);
        }
    }
    lasts = fsync(d->dir_fd) == 0;
    if (lasts) /* not before the new one has the name for good */
        (void)remove_tree(d->dir_fd, d->tmp);
    d->tmp[0] = '\0';
    return lasts ? CDDP_OK : cdi_not_written(err);
}

static void draft_free(struct cdi_draft *d)
{
    if (d == NULL)
        return;
    if (d->fd >= 0)
        (void)close(d->fd);
    if (d->dir_fd >= 0)
        (void)close(d->dir_fd);
    free(d);
}

void cdi_draft_drop(struct cdi_draft *d)
{
    if (d != NULL && d->fd >= 0 && d->tmp[0] != '\0')
        (void)remove_tree(d->dir_fd, d->tmp);
    draft_free(d);
}

static void wrap_unwritten(const struct cdi_draft *d, const char *dir, struct cdi_error *err)
{
    (void)cdi_error_wrap(err, "checkpoint '%s/%s' (%" PRIu64 " bytes) was not written", dir, d->name, d->bytes);
}

static cddp_status draft_begin(struct cdi_draft *d, const char *dir, uint64_t bytes, struct cdi_error *err)
{
    struct stat file;

    d->bytes = bytes;
    if (cdi_checkpoint_may_write(dir, err) != CDDP_OK)
        return err->status;
    d->dir_fd = open_dir(dir, &d->dir, err);
    if (d->dir_fd < 0)
        return err->status;
    d->may_replace = cdi_owned_find(&d->dir, d->step) != CDI_OWNED_NOT;
    (void)snprintf(d->name, sizeof d->name, CDI_CHECKPOINT_NAME, d->step);
    /*
     * Creates a new file, and never opens an existing one: that might be a link to another file, which would be
     * overwritten, or another process's.
     */
    if (make_tmp(d->tmp, dir, err) != CDDP_OK)
        return err->status;
    if (!d->is_folder)
        d->fd = openat(d->dir_fd, d->tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    else if (mkdirat(d->dir_fd, d->tmp, 0777) == 0)
        d->fd = openat(d->dir_fd, d->tmp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (d->fd < 0 || fstat(d->fd, &file) != 0)
        return cdi_not_written(err), wrap_unwritten(d, dir, err), err->status;
    (void)flock(d->fd, LOCK_EX | LOCK_NB); /* it is in use, if anybody asks */
    remove_leftovers(d->dir_fd, dir, file.st_mtime);
    return CDDP_OK;
}

/* Publishes what was written with status st, or removes it. Frees d. */
static cddp_status draft_end(struct cdi_draft *d, const char *dir, int keep, cddp_status st, struct cdi_error *err)
{
    /* Known before it is there: a file whose name may not last is this process's, too. */
    if (st == CDDP_OK && cdi_owned_put(&d->dir, d->step, CDI_OWNED_WHOLE) != CDDP_OK)
        st = cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    if (st == CDDP_OK) {
        st = publish(d, err);
        if (st == CDDP_E_EXISTS)
            (void)cdi_owned_put(&d->dir, d->step, CDI_OWNED_NOT);
    }
    if (st == CDDP_OK)
        remove_old(d->dir_fd, &d->dir, dir, d->step, keep);
    else if (st == CDDP_E_EXISTS)
        st = refuse(dir, d->step, err);
    else
        wrap_unwritten(d, dir, err);
    if (st == CDDP_OK)
        draft_free(d);
    else
        cdi_draft_drop(d);
    return st;
}

/* Returns NULL with an error. */
static struct cdi_draft *draft_new(const char *dir, uint64_t step, bool is_folder, uint64_t bytes,
                                   struct cdi_error *err)
{
    struct cdi_draft *d = calloc(1, sizeof *d);

    if (d == NULL) {
        (void)cdi_fail(err, CDDP_E_NOMEM, "checkpoint: out of memory");
        return NULL;
    }
    *d = (struct cdi_draft){.dir_fd = -1, .fd = -1, .step = step, .is_folder = is_folder};
    if (draft_begin(d, dir, bytes, err) == CDDP_OK)
        return d;
    cdi_draft_drop(d);
    return NULL;
}

cddp_status cdi_checkpoint_write(const char *dir, uint64_t step, const cddp_checkpoint_item *items, size_t n_items,
                                 int keep, const struct cdi_mover *mover, struct cdi_error *err)
{
    const struct cdi_content c = {step, items, NULL, n_items};
    struct cdi_error why;
    struct cdi_draft *d = draft_new(dir, step, false, cdi_content_bytes(&c), &why);

    if (d == NULL)
        return cdi_fail_since(err, &why, "%s", why.msg);
    return draft_end(d, dir, keep, cdi_content_write(d->fd, &c, mover, err), err);
}

/* --------------------------------------------------------------------------------------------------- sharded ---- */

cddp_status cdi_draft_begin(struct cdi_draft **out, const char *dir, uint64_t step, struct cdi_error *err)
{
    struct cdi_error why;
    struct cdi_draft *d = draft_new(dir, step, true, 0, &why);

    if (d == NULL)
        return cdi_fail_since(err, &why, "%s", why.msg);
    *out = d;
    return CDDP_OK;
}

cddp_status cdi_draft_write_shard(const char *dir, const char *draft, size_t rank, size_t n_ranks, uint64_t step,
                                  const cddp_checkpoint_item *items, const struct cdi_range *ranges, size_t n_items,
                                  const struct cdi_mover *mover, struct cdi_error *err)
{
    static const struct cdi_range none; /* a shard of no items is one, too */
    const struct cdi_content c = {step, items, ranges != NULL ? ranges : &none, n_items};
    char path[PATH_MAX], name[64];
    CDI_AUTOCLOSE int folder = -1, fd = -1;
    cddp_status st;

    (void)snprintf(name, sizeof name, CDI_SHARD, rank, n_ranks);
    if (snprintf(path, sizeof path, "%s/%s", dir, draft) >= (int)sizeof path)
        return cdi_fail(err, CDDP_E_INVALID, "checkpoint directory '%.200s...': the path is too long", dir);
    folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0 && errno == ENOENT)
        return cdi_fail(err, CDDP_E_SYSTEM,
                        "checkpoint '%.400s/" CDI_CHECKPOINT_NAME
                        "': rank %zu does not find what rank 0 has begun there: a "
                        "sharded checkpoint needs a directory that all ranks share",
                        dir, step, rank);
    if (folder >= 0)
        fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    st = fd < 0 ? cdi_not_written(err) : cdi_content_write(fd, &c, mover, err);
    if (st == CDDP_OK && fsync(folder) != 0)
        st = cdi_not_written(err);
    return st == CDDP_OK
               ? st
               : cdi_error_wrap(err,
                                "checkpoint '%.400s/" CDI_CHECKPOINT_NAME "': '%s' (%" PRIu64 " bytes) was not written",
                                dir, step, name, cdi_content_bytes(&c));
}

cddp_status cdi_draft_publish(struct cdi_draft *d, const char *dir, size_t n_ranks, int keep, struct cdi_error *err)
{
    CDI_AUTOFREE uint8_t *index = malloc(CDI_INDEXED * n_ranks);
    const cddp_checkpoint_item item = {
        .size = sizeof item, .name = "shards", .data = index, .bytes = CDI_INDEXED * n_ranks, .kind = CDDP_ITEM_MEMORY};
    const struct cdi_content c = {d->step, &item, NULL, 1};
    CDI_AUTOCLOSE int fd = -1;
    cddp_status st = index == NULL ? cdi_fail(err, CDDP_E_NOMEM, "out of memory") : CDDP_OK;

    for (size_t k = 0; k < n_ranks && st == CDDP_OK; k++) {
        struct cdi_part p = {0};
        char path[PATH_MAX + 64];

        (void)snprintf(path, sizeof path, "%.*s/%s/" CDI_SHARD, PATH_MAX - 64, dir, d->tmp, k, n_ranks);
        st = cdi_part_read(&p, path, err);
        if (st == CDDP_OK && p.step != d->step)
            st = cdi_fail(err, CDDP_E_MISMATCH, "the file of rank %zu is of step %" PRIu64, k, p.step);
        if (index != NULL)
            cdi_index_put(index + CDI_INDEXED * k, &p);
        d->bytes += p.bytes;
        cdi_part_release(&p);
    }
    if (st == CDDP_OK) {
        fd = openat(d->fd, CDI_INDEX, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        st = fd < 0 ? cdi_not_written(err) : cdi_content_write(fd, &c, NULL, err);
    }
    if (st == CDDP_OK && fsync(d->fd) != 0)
        st = cdi_not_written(err);
    return draft_end(d, dir, keep, st, err);
}
