/* SPDX-License-Identifier: Apache-2.0 */
/* A limit for what must happen soon: as it stands on a calm machine, longer on a busy one. As within() in launch.py. */
#ifndef CDI_TEST_WITHIN_H
#define CDI_TEST_WITHIN_H

#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

/* ms times the number of processes per processor that want to run, now or in the last minute; at least ms. */
static inline int64_t cdi_within_ms(int64_t ms)
{
    double average = 0, busy = 1, processors = (double)sysconf(_SC_NPROCESSORS_ONLN);
    long running = 0;
    FILE *f = fopen("/proc/loadavg", "re");

    if (f == NULL)
        return ms;
    if (fscanf(f, "%lf %*f %*f %ld", &average, &running) == 2 && processors > 0) {
        average = average > (double)running ? average : (double)running;
        busy = average > processors ? average / processors : 1;
    }
    (void)fclose(f);
    return (int64_t)((double)ms * busy);
}

#endif
