/* SPDX-License-Identifier: Apache-2.0 */
#include "common/natsort.h"

#include <stdbool.h>
#include <string.h>

static bool natsort_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static size_t digits(const char *s)
{
    size_t n = 0;

    while (natsort_is_digit(s[n]))
        n++;
    return n;
}

/* Compares two runs of digits as numbers, and moves both pointers to their ends. */
static int compare_numbers(const char **a, const char **b)
{
    size_t n, m;
    int order;

    while (**a == '0')
        ++*a;
    while (**b == '0')
        ++*b;
    n = digits(*a);
    m = digits(*b);
    order = n != m ? (n < m ? -1 : 1) : memcmp(*a, *b, n);
    *a += n;
    *b += m;
    return order;
}

int cdi_natsort_cmp(const char *a, const char *b)
{
    const char *x = a, *y = b;

    while (*x != '\0' && *y != '\0') {
        if (natsort_is_digit(*x) && natsort_is_digit(*y)) {
            int order = compare_numbers(&x, &y);

            if (order != 0)
                return order;
        } else if (*x != *y) {
            return (unsigned char)*x < (unsigned char)*y ? -1 : 1;
        } else {
            x++;
            y++;
        }
    }
    if (*x != *y)
        return *x == '\0' ? -1 : 1;
    return strcmp(a, b);
}
