/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixtures that make a leak fail its test. Under AddressSanitizer a leak is printed but the test passes, and nothing
 * counts descriptors, so every suite is declared with CDI_SUITE(name): its tests abort() in their teardown (Criterion
 * counts that, and does not count an assertion there) if memory or a descriptor was left open.
 */
#ifndef CDI_TEST_HYGIENE_H
#define CDI_TEST_HYGIENE_H

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CDI_TEST_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define CDI_TEST_ASAN 1
#endif
#ifdef CDI_TEST_ASAN
#include <sanitizer/lsan_interface.h>
#endif

static int hygiene_fds_before;

static int hygiene_count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    if (dir == NULL)
        return -1;
    while (readdir(dir) != NULL)
        n++;
    (void)closedir(dir);
    return n;
}

static void hygiene_begin(void)
{
    hygiene_fds_before = hygiene_count_fds();
}

static void hygiene_end(void)
{
    int now = hygiene_count_fds();

    if (now != hygiene_fds_before) {
        fprintf(stderr, "descriptors leaked: %d before the test, %d after it\n", hygiene_fds_before, now);
        abort();
    }
#ifdef CDI_TEST_ASAN
    if (__lsan_do_recoverable_leak_check())
        abort();
#endif
}

/* CDI_SUITE(buf); once per suite and file. Further arguments (.timeout = 300) go to TestSuite. */
#define CDI_SUITE(name, ...) TestSuite(name, .init = hygiene_begin, .fini = hygiene_end, .timeout = 100, ##__VA_ARGS__)

#endif
