/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded, it makes a node bad: PLANT_CLOCK_S shifts the Unix time that a program sees by so many seconds, and
 * PLANT_DISK_S is how long a disk takes to answer. Monotonic clocks stay.
 */
#include <stdlib.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *t)
{
    const char *shift = clock == CLOCK_REALTIME ? getenv("PLANT_CLOCK_S") : NULL;
    int rc = (int)syscall(SYS_clock_gettime, clock, t);

    if (rc == 0 && shift != NULL)
        t->tv_sec += strtol(shift, NULL, 10);
    return rc;
}

int statvfs(const char *restrict path, struct statvfs *restrict out)
{
    const char *seconds = getenv("PLANT_DISK_S");

    (void)path;
    if (seconds != NULL)
        (void)sleep((unsigned)strtoul(seconds, NULL, 10));
    *out = (struct statvfs){.f_frsize = 4096, .f_blocks = 1 << 20, .f_bavail = 1 << 19};
    return 0;
}
