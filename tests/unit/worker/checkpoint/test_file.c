/* SPDX-License-Identifier: Apache-2.0 */
#include "common/crc64.h"
#include "hygiene.h"
#include "items.h"
#include "scratch.h"
#include "worker/checkpoint/draft.h"
#include "worker/checkpoint/read.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

CDI_SUITE(checkpoint);

static char dir[128];

/* Makes a fresh directory; the checkpoints are written to a folder in it that does not exist yet. */
static const char *fresh_dir(void)
{
    scratch_make();
    (void)snprintf(dir, sizeof dir, "%s/ckpt", scratch);
    return dir;
}

static const char *file_of(uint64_t step)
{
    static char path[256];

    (void)snprintf(path, sizeof path, "%s/checkpoint-%020lu.cddp", dir, (unsigned long)step);
    return path;
}

static float weights[1000];
static double moments[17];
static int64_t epoch;
static uint8_t present[3];
static const cddp_checkpoint_item items[] = {{sizeof(cddp_checkpoint_item), "weights", weights, sizeof weights},
                                             {sizeof(cddp_checkpoint_item), "moments", moments, sizeof moments},
                                             {sizeof(cddp_checkpoint_item), "epoch", &epoch, sizeof epoch}};

/* Loads like a program of one process. */
static cddp_status read_newest(const cddp_checkpoint_item *list, size_t n, cddp_checkpoint_info *info,
                               struct cdi_error *err)
{
    struct cdi_checkpoint_file *f;
    cddp_status st = cdi_checkpoint_open(&f, dir, info, err);

    if (st == CDDP_OK)
        st = cdi_checkpoint_fit(f, list, NULL, n, present, err);
    if (st == CDDP_OK)
        st = cdi_checkpoint_fill(f, list, NULL, n, NULL, err);
    cdi_checkpoint_close(f);
    return st;
}

static void save(uint64_t step, int keep)
{
    struct cdi_error err;

    for (size_t i = 0; i < 1000; i++)
        weights[i] = (float)(step * 1000 + i);
    for (size_t i = 0; i < 17; i++)
        moments[i] = (double)step / (double)(i + 1);
    epoch = (int64_t)step;
    cr_assert_eq(cdi_checkpoint_write(dir, step, items, 3, keep, NULL, &err), CDDP_OK, "%s", err.msg);
}

static void forget(void)
{
    memset(weights, 0, sizeof weights);
    memset(moments, 0, sizeof moments);
    epoch = -1;
}

Test(checkpoint, restores_saved_items)
{
    cddp_checkpoint_info info = {.size = sizeof info};
    struct cdi_error err;

    (void)fresh_dir();
    save(7, 2);
    forget();
    cr_assert_eq(read_newest(items, 3, &info, &err), CDDP_OK, "%s", err.msg);
    cr_assert_eq(info.step, 7);
    cr_assert_eq(info.n_damaged, 0);
    cr_assert_eq(weights[999], 7999);
    cr_assert_eq(moments[2], 7.0 / 3);
    cr_assert_eq(epoch, 7);
    scratch_remove();
}

Test(checkpoint, keeps_newest_removes_older)
{
    (void)fresh_dir();
    for (uint64_t step = 1; step <= 5; step++)
        save(step, 2);
    cr_assert_neq(access(file_of(3), F_OK), 0);
    cr_assert_eq(access(file_of(4), F_OK), 0);
    cr_assert_eq(access(file_of(5), F_OK), 0);
    scratch_remove();
}

Test(checkpoint, keeps_all_except_abandoned_future)
{
    (void)fresh_dir();
    for (uint64_t step = 1; step <= 5; step++)
        save(step, -1);
    save(3, -1);
    for (uint64_t step = 1; step <= 5; step++)
        cr_assert_eq(access(file_of(step), F_OK), step <= 3 ? 0 : -1);
    scratch_remove();
}

Test(checkpoint, earlier_step_replaces_abandoned_future)
{
    cddp_checkpoint_info info = {.size = sizeof info};

    (void)fresh_dir();
    save(4, 2);
    save(8, 2);
    save(6, 2);
    cr_assert_eq(read_newest(items, 3, &info, NULL), CDDP_OK);
    cr_assert_eq(info.step, 6);
    scratch_remove();
}

/* ------------------------------------------------------------------------------------------------- other runs ---- */

/* Does it in another process, whose job is another one. */
static void elsewhere(void (*what)(void))
{
    pid_t pid = fork();
    int status;

    cr_assert_geq(pid, 0);
    if (pid == 0) {
        (void)alarm(30); /* an assertion that fails there does not return here */
        what();
        _exit(0);
    }
    cr_assert(waitpid(pid, &status, 0) == pid && status == 0);
}

static void load_newest(void)
{
    cddp_checkpoint_info info = {.size = sizeof info};
    struct cdi_checkpoint_file *f;
    struct cdi_error err;

    cr_assert_eq(cdi_checkpoint_open(&f, dir, &info, &err), CDDP_OK, "%s", err.msg);
    cr_assert_eq(cdi_checkpoint_own(f, &err), CDDP_OK, "%s", err.msg);
    cdi_checkpoint_close(f);
}

static void save_7_and_8(void)
{
    save(7, 2);
    save(8, 2);
}

static void load_and_save_9(void)
{
    load_newest();
    save(9, 2);
}

static void expect_refused(uint64_t step, uint64_t of)
{
    char text[64];
    struct cdi_error err;

    (void)snprintf(text, sizeof text, "the checkpoint of step %lu there was neither loaded nor saved",
                   (unsigned long)of);
    cr_assert_eq(cdi_checkpoint_write(dir, step, items, 3, 2, NULL, &err), CDDP_E_EXISTS);
    cr_assert(strstr(err.msg, text) != NULL && strstr(err.msg, dir) != NULL, "%s", err.msg);
    cr_assert(strstr(err.msg, "load it first (resume), save into another directory, or remove it") != NULL);
}

Test(checkpoint, first_save_beside_another_run_is_refused)
{
    (void)fresh_dir();
    elsewhere(save_7_and_8);
    expect_refused(3, 8);
    expect_refused(8, 8);
    expect_refused(9, 8);
    cr_assert(access(file_of(7), F_OK) == 0 && access(file_of(8), F_OK) == 0 && access(file_of(3), F_OK) != 0);
    load_newest();
    save(9, 2);
    cr_assert(access(file_of(7), F_OK) != 0 && access(file_of(8), F_OK) == 0);
    save(3, 2); /* what it has saved and loaded itself it may remove */
    cr_assert(access(file_of(8), F_OK) != 0 && access(file_of(9), F_OK) != 0);
    scratch_remove();
}

Test(checkpoint, removed_by_hand_it_may_save)
{
    (void)fresh_dir();
    elsewhere(save_7_and_8);
    expect_refused(3, 8);
    cr_assert(unlink(file_of(7)) == 0 && unlink(file_of(8)) == 0);
    save(3, 2);
    scratch_remove();
}

Test(checkpoint, job_that_saves_there_meanwhile_is_detected)
{
    (void)fresh_dir();
    save(1, 2);
    elsewhere(load_and_save_9);
    expect_refused(2, 9);
    cr_assert(access(file_of(1), F_OK) == 0 && access(file_of(9), F_OK) == 0 && access(file_of(2), F_OK) != 0);
    scratch_remove();
}

Test(checkpoint, damaged_files_do_not_refuse_and_stay)
{
    (void)fresh_dir();
    elsewhere(save_7_and_8);
    cr_assert(truncate(file_of(7), 100) == 0 && truncate(file_of(8), 100) == 0);
    save(3, 2);
    cr_assert(access(file_of(7), F_OK) == 0 && access(file_of(8), F_OK) == 0);
    save(8, 2); /* in its place */
    cr_assert(access(file_of(7), F_OK) == 0 && access(file_of(3), F_OK) == 0);
    forget();
    cr_assert_eq(read_newest(items, 3, &(cddp_checkpoint_info){.size = sizeof(cddp_checkpoint_info)}, NULL), CDDP_OK);
    cr_assert_eq(epoch, 8);
    scratch_remove();
}

/* `keep` counts whole ones: a damaged one in their number would leave no other to fall back on. */
Test(checkpoint, damaged_file_that_was_passed_over_goes_first)
{
    (void)fresh_dir();
    elsewhere(save_7_and_8);
    cr_assert_eq(truncate(file_of(8), 100), 0);
    load_newest();
    save(9, 2);
    cr_assert(access(file_of(7), F_OK) == 0 && access(file_of(8), F_OK) != 0 && access(file_of(9), F_OK) == 0);
    scratch_remove();
}

Test(checkpoint, file_under_way_of_another_process_stays)
{
    char tmp[256];
    int fd;

    (void)fresh_dir();
    save(1, 2);
    (void)snprintf(tmp, sizeof tmp, "%s/.checkpoint-0123456789abcdef.tmp", dir);
    fd = open(tmp, O_RDWR | O_CREAT | O_EXCL, 0600);
    cr_assert_eq(flock(fd, LOCK_EX), 0);
    save(2, 2);
    cr_assert_eq(access(tmp, F_OK), 0);
    (void)close(fd); /* it was killed */
    save(3, 2);
    cr_assert_neq(access(tmp, F_OK), 0);
    scratch_remove();
}

static int reads_until_error; /* 0: none fails */

/* The library's calls come here. */
ssize_t pread(int fd, void *data, size_t len, off_t offset)
{
    if (reads_until_error > 0 && --reads_until_error == 0)
        return errno = ESTALE, -1;
    return syscall(SYS_pread64, fd, data, len, offset);
}

/* As on a file system over a network: the newest one is whole, though it cannot be read now. */
Test(checkpoint, failed_read_does_not_pass_over_a_file)
{
    cddp_checkpoint_info info = {.size = sizeof info};
    struct cdi_error err;
    int at = 0;

    (void)fresh_dir();
    save(1, 2);
    save(2, 2);
    do {
        cddp_status st;

        reads_until_error = ++at;
        st = read_newest(items, 3, &info, &err);
        cr_assert(st == (reads_until_error > 0 ? CDDP_OK : CDDP_E_SYSTEM), "read %d: %s", at, cddp_status_name(st));
        cr_assert(st == CDDP_OK || err.os_error == ESTALE);
    } while (reads_until_error == 0);
    cr_assert(at > 8 && info.step == 2 && info.n_damaged == 0, "%d", at); /* a header, and the items twice */
    reads_until_error = 0;
    scratch_remove();
}

static ino_t synced[8], lost; /* lost: this one's fsync fails */
static size_t n_synced;

/* The library's calls come here. */
int fsync(int fd)
{
    struct stat sb;

    cr_assert_eq(fstat(fd, &sb), 0);
    if (n_synced < sizeof synced / sizeof synced[0])
        synced[n_synced++] = sb.st_ino;
    if (lost != 0 && sb.st_ino == lost)
        return errno = EIO, -1;
    return (int)syscall(SYS_fsync, fd);
}

Test(checkpoint, new_directory_outlasts_a_power_cut)
{
    struct stat parent, own;
    size_t n_parent = 0, n_own = 0;

    (void)fresh_dir();
    save(1, 2);
    cr_assert(stat(scratch, &parent) == 0 && stat(dir, &own) == 0);
    for (size_t i = 0; i < n_synced; i++) {
        n_parent += synced[i] == parent.st_ino;
        n_own += synced[i] == own.st_ino;
    }
    cr_assert(n_synced == 3 && n_parent == 1 && n_own == 1); /* the third is the file */
    scratch_remove();
}

static bool exchanges = true;   /* a file system over a network does not exchange names */
static int renames_until_error; /* 0: none fails */

/* The library's calls come here. Not all have six arguments: the others are passed on as they happen to be. */
__attribute__((no_sanitize("address", "undefined"))) long syscall(long number, ...)
{
    long (*real)(long, ...), arg[6];
    void *found = dlsym(RTLD_NEXT, "syscall");
    va_list list;

    memcpy(&real, &found, sizeof real);
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        arg[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_renameat2 && arg[4] != 0 && !exchanges)
        return errno = EINVAL, -1;
    return real(number, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]);
}

int renameat(int old_dir, const char *old, int new_dir, const char *new)
{
    if (renames_until_error > 0 && --renames_until_error == 0)
        return errno = EIO, -1;
    return (int)syscall(SYS_renameat2, old_dir, old, new_dir, new, 0);
}

/* Saves a folder in place of the file of step 1. */
static cddp_status replace_1(void)
{
    const struct cdi_range whole[] = {{sizeof weights, 0}, {sizeof moments, 0}, {sizeof epoch, 0}};
    struct cdi_draft *d;
    struct cdi_error err;

    epoch = 5;
    cr_assert_eq(cdi_draft_begin(&d, dir, 1, &err), CDDP_OK, "%s", err.msg);
    cr_assert_eq(cdi_draft_write_shard(dir, cdi_draft_name(d), 0, 1, 1, items, whole, 3, NULL, &err), CDDP_OK);
    return cdi_draft_publish(d, dir, 1, 2, &err);
}

static void expect_epoch(int64_t expected)
{
    cddp_checkpoint_info info = {.size = sizeof info};
    struct cdi_error err;

    cr_assert_eq(read_newest(items, 3, &info, &err), CDDP_OK, "%s", err.msg);
    cr_assert(info.step == 1 && info.n_damaged == 0 && epoch == expected, "%ld", (long)epoch);
}

static size_t count_hidden(void)
{
    glob_t found = {0};
    char pattern[256];
    size_t n;

    (void)snprintf(pattern, sizeof pattern, "%s/.checkpoint-*", dir);
    (void)glob(pattern, 0, NULL, &found);
    n = found.gl_pathc;
    globfree(&found);
    return n;
}

Test(checkpoint, replacement_that_fails_keeps_the_replaced_one)
{
    struct stat sb;

    for (int k = 0; k < 2; k++) {
        exchanges = k == 0;
        (void)fresh_dir();
        save(1, 2);
        cr_assert_eq(stat(dir, &sb), 0);
        lost = sb.st_ino; /* whether the new one has the name for good is not known */
        cr_assert_eq(replace_1(), CDDP_E_SYSTEM);
        lost = 0;
        expect_epoch(5);
        cr_assert_eq(count_hidden(), 1);
        scratch_remove();
    }
    (void)fresh_dir();
    save(1, 2);
    renames_until_error = 3; /* one says that there is another one, and one puts that aside */
    cr_assert_eq(replace_1(), CDDP_E_SYSTEM);
    cr_assert_eq(renames_until_error, 0);
    expect_epoch(1);
    for (int k = 0; k < 2; k++) {
        exchanges = k == 0;
        cr_assert_eq(replace_1(), CDDP_OK);
        expect_epoch(5);
        cr_assert_eq(count_hidden(), 0);
    }
    scratch_remove();
}

Test(checkpoint, missing_directory_is_not_found)
{
    cddp_checkpoint_info info = {.size = sizeof info};
    struct cdi_error err;

    (void)fresh_dir();
    cr_assert_eq(read_newest(items, 3, &info, &err), CDDP_E_NOT_FOUND);
    (void)mkdir(dir, 0700);
    cr_assert_eq(read_newest(items, 3, &info, &err), CDDP_E_NOT_FOUND);
    scratch_remove();
}

/* Damage at every place: truncated at any length, or any byte changed; the previous one is found, or none. */
Test(checkpoint, skips_and_names_damaged_file)
{
    cddp_checkpoint_info info = {.size = sizeof info};
    struct cdi_error err;
    struct stat sb;

    (void)fresh_dir();
    save(1, 9);
    save(2, 9);
    cr_assert_eq(stat(file_of(2), &sb), 0);
    for (off_t at = 0; at < sb.st_size; at += at < 300 ? 1 : 61) {
        int fd = open(file_of(2), O_RDWR);
        uint8_t byte;

        cr_assert_eq(pread(fd, &byte, 1, at), 1);
        byte ^= 0x10;
        cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
        forget();
        /* Padding between items has no meaning. */
        cr_assert_eq(read_newest(items, 3, &info, &err), CDDP_OK, "byte %ld: %s", (long)at, err.msg);
        if (info.step == 1) {
            cr_assert_eq(info.n_damaged, 1);
            cr_assert(strstr(info.damaged, file_of(2)) != NULL, "%s", info.damaged);
        }
        cr_assert_eq(weights[5], (float)(info.step * 1000 + 5));
        cr_assert_eq(moments[16], (double)info.step / 17);
        cr_assert_eq(epoch, (int64_t)info.step);
        byte ^= 0x10;
        cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
        close(fd);
    }
    for (off_t len = 0; len < sb.st_size; len += 97) {
        save(2, 9);
        cr_assert_eq(truncate(file_of(2), len), 0);
        forget();
        cr_assert_eq(read_newest(items, 3, &info, &err), CDDP_OK, "%s", err.msg);
        cr_assert_eq(info.step, 1, "cut to %ld bytes", (long)len);
        cr_assert_eq(epoch, 1);
    }
    cr_assert_eq(truncate(file_of(1), 100), 0);
    cr_assert_eq(read_newest(items, 3, &info, &err), CDDP_E_IO);
    cr_assert(strstr(err.msg, "none of the 2 checkpoints") != NULL, "%s", err.msg);
    scratch_remove();
}

/* A whole file of another format must not be skipped: the program would continue from an older state. */
Test(checkpoint, other_format_is_error)
{
    cddp_checkpoint_info info = {.size = sizeof info};
    struct cdi_error err;
    uint8_t header[4096];
    uint64_t header_bytes, crc;
    int fd;

    (void)fresh_dir();
    save(1, 9);
    save(2, 9);
    fd = open(file_of(2), O_RDWR);
    cr_assert_eq(pread(fd, header, sizeof header, 0), (ssize_t)sizeof header);
    memcpy(&header_bytes, header + 24, 8);
    header[8] = 4;
    crc = cdi_crc64(0, header, header_bytes - 8);
    memcpy(header + header_bytes - 8, &crc, 8);
    cr_assert_eq(pwrite(fd, header, sizeof header, 0), (ssize_t)sizeof header);
    (void)close(fd);
    cr_assert_eq(read_newest(items, 3, &info, &err), CDDP_E_VERSION);
    cr_assert(strstr(err.msg, "has format 4; this libcddp reads formats 2 and 3") != NULL, "%s", err.msg);
    scratch_remove();
}

/* Memory is for what the file holds, and not for the numbers in it. */
Test(checkpoint, header_that_claims_more_items_than_it_holds_is_damaged)
{
    cddp_checkpoint_info info = {.size = sizeof info};
    struct cdi_error err;
    uint8_t header[4096];
    uint64_t header_bytes, crc;
    int fd;

    (void)fresh_dir();
    save(1, 9);
    fd = open(file_of(1), O_RDWR);
    cr_assert_eq(pread(fd, header, sizeof header, 0), (ssize_t)sizeof header);
    memcpy(&header_bytes, header + 24, 8);
    memset(header + 12, 0xff, 4);
    crc = cdi_crc64(0, header, header_bytes - 8);
    memcpy(header + header_bytes - 8, &crc, 8);
    cr_assert_eq(pwrite(fd, header, sizeof header, 0), (ssize_t)sizeof header);
    (void)close(fd);
    cr_assert_eq(read_newest(items, 3, &info, &err), CDDP_E_IO);
    cr_assert(strstr(err.msg, "its header is inconsistent") != NULL, "%s", err.msg);
    scratch_remove();
}

Test(checkpoint, skips_and_names_non_file)
{
    const char *const why[] = {"cannot be opened: No such file", "cddp/index' cannot be opened", "is not a file",
                               "cannot be opened: Too many levels"};
    cddp_checkpoint_info info = {.size = sizeof info};
    struct cdi_error err;

    (void)fresh_dir();
    for (int kind = 0; kind < 4; kind++) {
        save(1, 9);
        if (kind == 0)
            cr_assert_eq(symlink("/no/such/file", file_of(2)), 0);
        else if (kind == 1)
            cr_assert_eq(mkdir(file_of(2), 0700), 0);
        else if (kind == 2)
            cr_assert_eq(mkfifo(file_of(2), 0600), 0);
        else
            cr_assert_eq(symlink(strrchr(file_of(2), '/') + 1, file_of(2)), 0);
        forget();
        cr_assert_eq(read_newest(items, 3, &info, &err), CDDP_OK, "%s", err.msg);
        cr_assert_eq(info.step, 1);
        cr_assert_eq(info.n_damaged, 1);
        cr_assert(strstr(info.damaged, why[kind]) != NULL, "%s", info.damaged);
        cr_assert_eq(epoch, 1);
        (void)(kind == 1 ? rmdir(file_of(2)) : unlink(file_of(2)));
    }
    scratch_remove();
}

Test(checkpoint, does_not_follow_link)
{
    char victim[256], tmp[256], kept[8] = "";
    struct stat sb;
    int fd;

    (void)fresh_dir();
    save(1, 9);
    (void)snprintf(victim, sizeof victim, "%s/victim", scratch);
    (void)snprintf(tmp, sizeof tmp, "%s/.checkpoint.tmp", dir);
    fd = open(victim, O_RDWR | O_CREAT, 0600);
    cr_assert_eq(write(fd, "mine", 4), 4);
    cr_assert_eq(symlink(victim, tmp), 0);
    save(2, 9);
    cr_assert_eq(pread(fd, kept, sizeof kept, 0), 4);
    cr_assert_str_eq(kept, "mine");
    (void)close(fd);
    cr_assert_eq(lstat(file_of(2), &sb), 0);
    cr_assert(S_ISREG(sb.st_mode));
    /* A killed run's leftovers do not interfere, and other users cannot read them. */
    fd = open(tmp, O_RDWR | O_CREAT, 0600);
    save(3, 9);
    cr_assert_eq(fstat(fd, &sb), 0);
    cr_assert_eq(sb.st_size, 0, "it was another file");
    (void)close(fd);
    (void)unlink(victim);
    scratch_remove();
}

Test(checkpoint, names_item_of_other_size_or_name)
{
    cddp_checkpoint_item other[] = {{sizeof(cddp_checkpoint_item), "weights", weights, sizeof weights - 4}};
    cddp_checkpoint_info info = {.size = sizeof info};
    struct cdi_error err;

    (void)fresh_dir();
    save(3, 2);
    cr_assert_eq(read_newest(other, 1, &info, &err), CDDP_E_MISMATCH);
    cr_assert(strstr(err.msg, "'weights' has 4000 bytes there and 3996") != NULL, "%s", err.msg);
    other[0].name = "bias";
    cr_assert_eq(read_newest(other, 1, &info, &err), CDDP_E_MISMATCH);
    cr_assert(strstr(err.msg, "no item 'bias'") != NULL, "%s", err.msg);
    other[0] = items[0];
    other[0].kind = CDDP_ITEM_OPTIM;
    cr_assert_eq(read_newest(other, 1, &info, &err), CDDP_E_MISMATCH);
    cr_assert(strstr(err.msg, "'weights' is memory there and an optimizer in this program") != NULL, "%s", err.msg);
    scratch_remove();
}

Test(checkpoint, full_disk_keeps_older_files)
{
    struct rlimit small = {2000, 2000};
    cddp_checkpoint_info info = {.size = sizeof info};
    struct cdi_error err;

    (void)fresh_dir();
    save(1, 2);
    (void)signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    cr_assert_eq(cdi_checkpoint_write(dir, 2, items, 3, 2, NULL, &err), CDDP_E_SYSTEM);
    cr_assert(strstr(err.msg, "was not written") != NULL, "%s", err.msg);
    cr_assert_neq(access(file_of(2), F_OK), 0);
    forget();
    cr_assert_eq(read_newest(items, 3, &info, &err), CDDP_OK);
    cr_assert_eq(info.step, 1);
    scratch_remove();
}

static cddp_status check(cddp_checkpoint_item item)
{
    struct cdi_error err;

    return cdi_checkpoint_check_item(&item, 0, &err);
}

Test(checkpoint, rejects_bad_items)
{
    const cddp_checkpoint_item twice[] = {item_memory("a", weights, 4), item_memory("a", weights, 4)};
    char name[300];

    cr_assert_eq(cdi_checkpoint_check_items(twice, 2, false, NULL), CDDP_E_INVALID);
    cr_assert_eq(cdi_checkpoint_check_items(twice, 0, false, NULL), CDDP_E_INVALID);
    cr_assert_eq(cdi_checkpoint_check_items(twice, 1, false, NULL), CDDP_OK);
    cr_assert_eq(check(item_memory("a", weights, 4)), CDDP_OK);
    cr_assert_eq(check(item_memory(NULL, weights, 4)), CDDP_E_INVALID);
    cr_assert_eq(check(item_memory("", weights, 4)), CDDP_E_INVALID);
    cr_assert_eq(check(item_memory("a", NULL, 4)), CDDP_E_INVALID);
    cr_assert_eq(check(item_memory("a", NULL, 0)), CDDP_OK);
    cr_assert_eq(check(item_of(CDDP_ITEM_OPTIM, "a", NULL)), CDDP_E_INVALID);
    cr_assert_eq(check(item_of((cddp_item_kind)5, "a", weights)), CDDP_E_INVALID);
    cr_assert_eq(check(item_of((cddp_item_kind)-1, "a", weights)), CDDP_E_INVALID);
    for (cddp_item_kind kind = CDDP_ITEM_SAMPLER; kind <= CDDP_ITEM_DDP; kind++) {
        cddp_checkpoint_item one = item_of(kind, "a", weights);

        cr_assert_eq(check(one), CDDP_OK);
        one.bytes = 4;
        cr_assert_eq(check(one), CDDP_E_INVALID);
        one.bytes = 0;
        one.flags = CDDP_ITEM_PER_RANK;
        cr_assert_eq(check(one), CDDP_E_INVALID);
    }
    memset(name, 'x', sizeof name);
    name[255] = '\0';
    cr_assert_eq(check(item_memory(name, weights, 4)), CDDP_OK);
    cr_assert_eq(check(item_of(CDDP_ITEM_DDP, name, weights)), CDDP_E_INVALID);
    name[200] = '\0';
    cr_assert_eq(check(item_of(CDDP_ITEM_DDP, name, weights)), CDDP_OK);
    name[200] = 'x';
    for (size_t len = 240; len <= 241; len++) { /* whatever the number of ranks */
        cddp_checkpoint_item own = item_memory(name, weights, 4);

        name[len] = '\0';
        own.flags = CDDP_ITEM_PER_RANK;
        cr_assert_eq(check(own), len == 240 ? CDDP_OK : CDDP_E_INVALID);
        name[len] = 'x';
    }
    name[255] = 'x';
    name[256] = '\0';
    cr_assert_eq(check(item_memory(name, weights, 4)), CDDP_E_INVALID);
}
