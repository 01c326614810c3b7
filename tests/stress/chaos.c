/* SPDX-License-Identifier: Apache-2.0 */
#include "chaos.h"

#include <sched.h>
#include <time.h>

#define SHORTEST_NS 2000
#define DOUBLINGS 11 /* to 4 ms */

static _Atomic unsigned frequency;
static _Atomic uint64_t next_seed;
static _Thread_local uint64_t state;

void chaos_begin(unsigned one_in, uint64_t seed)
{
    atomic_store(&next_seed, seed * UINT64_C(0x9e3779b97f4a7c15) + 1);
    atomic_store(&frequency, one_in);
}

static uint64_t draw(void)
{
    if (state == 0) /* each thread has its own sequence */
        state = atomic_fetch_add(&next_seed, UINT64_C(0xd1342543de82ef95)) | 1;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

void chaos_point(void)
{
    unsigned one_in = atomic_load_explicit(&frequency, memory_order_relaxed);
    uint64_t n;
    struct timespec ts = {0};

    if (one_in == 0 || draw() % one_in != 0)
        return;
    n = draw();
    if (n % 2 == 0) {
        (void)sched_yield();
        return;
    }
    ts.tv_nsec = (long)SHORTEST_NS << (n >> 8) % (DOUBLINGS + 1);
    (void)nanosleep(&ts, NULL);
}
