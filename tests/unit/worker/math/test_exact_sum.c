/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/math/exact_sum.h"

#include "hygiene.h"

#include <math.h>
#include <stdlib.h>

CDI_SUITE(exact_sum);

#define BITS (1074 + 1024 + 64)

/* A binary number of one digit a byte, from 2^-1074 upwards: the plain arithmetic that the words are checked against.
 */
struct plain {
    uint8_t digit[BITS + 64];
};

static void plain_add(struct plain *p, double x)
{
    int exponent;
    double fraction = frexp(x, &exponent); /* x = fraction * 2^exponent */
    uint64_t whole = (uint64_t)ldexp(fraction, 53);
    int at = exponent - 53 + 1074;

    for (; at < 0; at++)
        whole >>= 1; /* of a number below 2^-1022: its last bits are zeros */
    for (unsigned carry = 0; whole != 0 || carry != 0; at++, whole >>= 1) {
        unsigned sum = p->digit[at] + (unsigned)(whole & 1) + carry;

        p->digit[at] = sum & 1;
        carry = sum >> 1;
    }
}

static double plain_round(const struct plain *p)
{
    int top = BITS + 63, low;
    double x = 0;
    bool up = false, rest = false;

    while (top > 0 && p->digit[top] == 0)
        top--;
    low = top > 52 ? top - 52 : 0;
    for (int k = top; k >= low; k--)
        x = 2 * x + p->digit[k];
    if (low > 0) {
        for (int k = 0; k < low - 1; k++)
            rest = rest || p->digit[k] != 0;
        up = p->digit[low - 1] != 0 && (rest || p->digit[low] != 0);
    }
    return ldexp(x + up, low - 1074); /* exact: x + up has 53 digits, or is 2^53 */
}

static double sum_of(uint64_t *w)
{
    cdi_exact_carry(w);
    return cdi_exact_round(w);
}

static uint64_t dice = 88172645463325252u;

static uint64_t roll(void)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return dice;
}

/* Any number that is finite and not negative; its exponent is in [low, low + reach). */
static double any_number(uint64_t low, uint64_t reach)
{
    return cdi_double_of_bits((low + roll() % reach) << 52 | roll() >> 12);
}

static void expect_plain(const double *x, size_t n)
{
    struct plain p = {{0}};
    uint64_t words[CDI_EXACT_WORDS] = {0};
    double want, got;

    for (size_t k = 0; k < n; k++) {
        plain_add(&p, x[k]);
        cdi_exact_add(words, 1, x[k]);
    }
    want = plain_round(&p);
    got = sum_of(words);
    cr_assert_eq(cdi_bits_of_double(got), cdi_bits_of_double(want), "%zu numbers: %a, not %a", n, got, want);
}

Test(exact_sum, has_the_digits_of_plain_arithmetic)
{
    static const uint64_t ranges[][2] = {{0, 2047}, {0, 3}, {1000, 40}, {1000, 120}, {2040, 7}, {2046, 1}, {50, 20}};
    double x[300];

    for (size_t round = 0; round < 40; round++)
        for (size_t r = 0; r < sizeof ranges / sizeof ranges[0]; r++) {
            size_t n = 1 + roll() % (round % 4 == 0 ? 300 : 4);

            for (size_t k = 0; k < n; k++)
                x[k] = any_number(ranges[r][0], ranges[r][1]);
            expect_plain(x, n);
        }
}

Test(exact_sum, rounds_to_nearest_and_ties_to_even)
{
    for (int e = -1022; e <= 1023; e++) {
        const double one = ldexp(1, e), odd = ldexp(1 + 0x1p-52, e), half = ldexp(1, e - 53), least = 0x1p-1074;

        expect_plain((double[]){one, half}, 2);
        expect_plain((double[]){odd, half}, 2);
        expect_plain((double[]){one, half, least}, 3);
        expect_plain((double[]){one, half / 2, half / 4, half / 4}, 4);
        expect_plain((double[]){ldexp(2 - 0x1p-52, e), half * 2}, 2);
        expect_plain((double[]){odd, ldexp(1, e > -1000 ? e - 60 : e)}, 2);
    }
    expect_plain((double[]){0}, 1);
    expect_plain((double[]){0x1p-1074, 0x1p-1074}, 2);
    expect_plain((double[]){0x1.fffffffffffffp1023, 0x1p970}, 2); /* rounds up to infinity */
    expect_plain((double[]){0x1.fffffffffffffp1023, 0x1p969}, 2);
    expect_plain((double[]){0x1p1023, 0x1p1023}, 2);
}

/* In any order, in any parts, with any strides, and with carries moved at any time. */
Test(exact_sum, bits_do_not_depend_on_parts)
{
    enum { N = 5000, PARTS = 7, STRIDE = 3 };
    static double x[N];
    uint64_t all[CDI_EXACT_WORDS] = {0}, part[PARTS][CDI_EXACT_WORDS * STRIDE] = {{0}}, sum[CDI_EXACT_WORDS] = {0};

    for (size_t k = 0; k < N; k++) {
        x[k] = any_number(700, 500);
        cdi_exact_add(all, 1, x[k]);
    }
    for (size_t k = N; k-- > 0;)
        cdi_exact_add(part[roll() % PARTS] + k % STRIDE, STRIDE, x[k]);
    for (size_t r = 0; r < PARTS; r++) {
        uint64_t one[CDI_EXACT_WORDS] = {0};

        for (size_t k = 0; k < CDI_EXACT_WORDS * STRIDE; k++)
            one[k / STRIDE] += part[r][k];
        if (r % 2 == 0)
            cdi_exact_carry(one);
        for (size_t k = 0; k < CDI_EXACT_WORDS; k++)
            sum[k] += one[k];
    }
    cr_assert_eq(cdi_bits_of_double(sum_of(sum)), cdi_bits_of_double(sum_of(all)));
    cr_assert_arr_eq(sum, all, sizeof all, "the words too");
}

/* The limit of the header: the largest additions to one word, as often as words hold them. */
Test(exact_sum, words_hold_two_to_the_32_numbers_less_one)
{
    const double x = 0x1p53 - 1;
    uint64_t words[CDI_EXACT_WORDS] = {0};

    cdi_exact_add(words, 1, x);
    for (size_t k = 0; k < CDI_EXACT_LIMBS; k++) {
        cr_assert_lt(words[k], (uint64_t)1 << 32);
        words[k] *= UINT32_MAX;
    }
    cr_assert_eq(sum_of(words), x * UINT32_MAX);
    for (size_t k = 0; k < CDI_EXACT_LIMBS; k++) {
        cr_assert_lt(words[k], (uint64_t)1 << 32);
        words[k] *= UINT32_MAX; /* as many ranks */
    }
    cr_assert_eq(sum_of(words), (0x1p53 - 0x1p22 - 1) * 0x1p64); /* x * (2^64 - 2^33 + 1), rounded */
}

Test(exact_sum, nan_is_above_infinity)
{
    uint64_t words[CDI_EXACT_WORDS] = {0};

    cdi_exact_add(words, 1, 1);
    cdi_exact_add(words, 1, INFINITY);
    cr_assert_eq(sum_of(words), INFINITY);
    cdi_exact_add(words, 1, -NAN);
    cdi_exact_add(words, 1, INFINITY);
    cr_assert(isnan(sum_of(words)));
}
