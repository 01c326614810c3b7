/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that prints as most C programs do: with printf, and without a word to stdio about buffers.
 *
 *   printer MODE [N]      step: three lines, and before each but the first a byte of stdin
 *                         crash: four lines, then abort()
 *                         lines: N numbered lines of 80 columns
 *                         tty: which of 0, 1 and 2 are terminals
 *                         size: the window, then again at each SIGWINCH, until stdin ends
 *                         bytes: all 256 of them, then a newline
 *                         bar: a progress bar, drawn over and over
 *                         exit: one line, then status N
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

static int step(void)
{
    char byte;

    for (int i = 1; i <= 3; i++) {
        if (i > 1 && read(STDIN_FILENO, &byte, 1) != 1)
            return 1;
        printf("step %d\n", i);
    }
    return 0;
}

static void print_size(void)
{
    struct winsize size = {0};

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0)
        printf("%d x %d\n", size.ws_col, size.ws_row);
    else
        printf("no window\n");
    (void)fflush(stdout);
}

static int window(void)
{
    struct signalfd_siginfo info;
    sigset_t set;
    int fd;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGWINCH);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    fd = signalfd(-1, &set, SFD_CLOEXEC);
    print_size();
    for (;;) {
        struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = STDIN_FILENO, .events = POLLIN}};

        if (fd < 0 || poll(p, 2, -1) < 0)
            return 1;
        if (p[0].revents != 0 && read(fd, &info, sizeof info) == (ssize_t)sizeof info)
            print_size();
        if (p[1].revents != 0)
            return 0;
    }
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    long n = argc > 2 ? strtol(argv[2], NULL, 10) : 0;

    if (strcmp(mode, "step") == 0)
        return step();
    if (strcmp(mode, "size") == 0)
        return window();
    if (strcmp(mode, "tty") == 0) {
        printf("%d %d %d\n", isatty(0), isatty(1), isatty(2));
    } else if (strcmp(mode, "crash") == 0) {
        for (int i = 1; i <= 4; i++)
            printf("step %d loss %d.5\n", i, 5 - i);
        abort();
    } else if (strcmp(mode, "lines") == 0) {
        for (long i = 0; i < n; i++)
            printf("%079ld\n", i);
    } else if (strcmp(mode, "bytes") == 0) {
        for (int i = 0; i < 256; i++)
            putchar(i);
        putchar('\n');
    } else if (strcmp(mode, "bar") == 0) {
        for (int i = 1; i <= 3; i++)
            printf("\r%d of 3%s", i, i < 3 ? " and more" : "\n");
    } else if (strcmp(mode, "exit") == 0) {
        printf("leaving\n");
        return (int)n;
    } else {
        return 2;
    }
    return fflush(stdout) == 0 ? 0 : 1;
}
