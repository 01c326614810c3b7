/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "worker/backend/nccl/device/anchor.h"

#include <stdlib.h>

CDI_SUITE(anchor);

#define SECOND 1000000000

Test(anchor, is_in_the_middle_of_what_the_host_saw)
{
    const struct cdi_anchor a = cdi_anchor_between(1000, 1021);

    cr_assert_eq(a.ns, 1010);
    cr_assert(a.ns - a.error_ns <= 1000 && a.ns + a.error_ns >= 1021);
}

Test(anchor, counts_times_from_itself)
{
    const struct cdi_anchor a = {.ns = 5000000, .error_ns = 100};

    cr_assert_eq(cdi_anchor_time(&a, 0), 5000000);
    cr_assert_eq(cdi_anchor_time(&a, 1.5f), 6500000);
    cr_assert_eq(cdi_anchor_time(&a, -0.5f), 4500000);
    cr_assert(cdi_anchor_error(&a, 0) >= 100 + CDI_ANCHOR_RESOLUTION_NS);
    cr_assert(cdi_anchor_error(&a, 1000) > cdi_anchor_error(&a, 1));
    cr_assert_eq(cdi_anchor_error(&a, 1000), cdi_anchor_error(&a, -1000));
}

/* A GPU's clock, of another rate than the host's, which gives times as cuEventElapsedTime does. */
struct clock {
    int64_t begun_ns;
    double rate;
};

static double gpu_ns(const struct clock *c, int64_t host_ns)
{
    return (double)(host_ns - c->begun_ns) * c->rate;
}

static float elapsed_ms(const struct clock *c, int64_t from_ns, int64_t to_ns)
{
    int64_t ticks = (int64_t)(gpu_ns(c, to_ns) / CDI_ANCHOR_RESOLUTION_NS) -
                    (int64_t)(gpu_ns(c, from_ns) / CDI_ANCHOR_RESOLUTION_NS);

    return (float)((double)ticks * CDI_ANCHOR_RESOLUTION_NS / 1e6);
}

static int64_t distance(int64_t a, int64_t b)
{
    return a > b ? a - b : b - a;
}

/* Two months with a new anchor after 0.1 s to 1,000 s: the error stays within its bound, and does not grow with time.
 */
Test(anchor, error_stays_within_its_bound_for_months)
{
    static const double rates[] = {1, 1 + 90e-6, 1 - 90e-6, 1 + 590e-6, 1 - 590e-6};
    unsigned seed = 3;

    for (size_t k = 0; k < sizeof rates / sizeof rates[0]; k++) {
        const struct clock clock = {.begun_ns = 77 * (int64_t)SECOND, .rate = rates[k]};
        int64_t now_ns = clock.begun_ns;

        while (now_ns < clock.begun_ns + (int64_t)60 * 86400 * SECOND) {
            int64_t early = rand_r(&seed) % 20000, late = rand_r(&seed) % 20000;
            const struct cdi_anchor a = cdi_anchor_between(now_ns - early, now_ns + late);
            int64_t age_ns = SECOND / 10;

            for (int i = rand_r(&seed) % 5; i > 0; i--)
                age_ns *= 10;
            for (int i = 0; i < 8; i++) {
                int64_t then_ns = now_ns + (int64_t)((double)age_ns * (rand_r(&seed) % 1000) / 1000.0);
                float ms = elapsed_ms(&clock, now_ns, then_ns);

                cr_assert_leq(distance(cdi_anchor_time(&a, ms), then_ns), cdi_anchor_error(&a, ms), "%f ms, rate %f",
                              (double)ms, rates[k]);
                if (age_ns <= SECOND) /* as old as one is in a program that runs steps */
                    cr_assert_leq(cdi_anchor_error(&a, ms), 20000 + 1000 + 600001, "%f ms", (double)ms);
            }
            now_ns += age_ns * 50;
        }
    }
}

/* After a day without a new anchor, a float is off by more than a step's accuracy: that is why anchors are renewed. */
Test(anchor, old_one_is_no_longer_exact)
{
    const struct clock clock = {.begun_ns = 0, .rate = 1};
    const struct cdi_anchor a = {.ns = 0, .error_ns = 0};
    int64_t day_ns = (int64_t)86400 * SECOND, worst = 0;

    for (int64_t then_ns = day_ns; then_ns < day_ns + 20000000; then_ns += 777777) {
        int64_t off = distance(cdi_anchor_time(&a, elapsed_ms(&clock, 0, then_ns)), then_ns);

        worst = off > worst ? off : worst;
    }
    cr_assert_geq(worst, 1000000);
}
