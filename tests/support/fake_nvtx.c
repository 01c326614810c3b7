/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for libnvToolsExt.so.1: writes each call to stderr. */
#include <stdint.h>
#include <stdio.h>

int nvtxRangePushA(const char *name);
int nvtxRangePop(void);
uint64_t nvtxRangeStartA(const char *name);
void nvtxRangeEnd(uint64_t id);

static uint64_t last;

int nvtxRangePushA(const char *name)
{
    return fprintf(stderr, "push %s\n", name) > 0 ? 0 : -1;
}

int nvtxRangePop(void)
{
    return fprintf(stderr, "pop\n") > 0 ? 0 : -1;
}

uint64_t nvtxRangeStartA(const char *name)
{
    (void)fprintf(stderr, "start %s\n", name);
    return ++last;
}

void nvtxRangeEnd(uint64_t id)
{
    (void)fprintf(stderr, "end %d\n", (int)id);
}
