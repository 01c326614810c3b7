/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few functions of ncurses that --top needs, opened by name: cddprun is built, and runs, without it. Their types
 * and numbers are those of ABI 6 (libncursesw.so.6): curses.h of ncurses 6, with NCURSES_ATTR_SHIFT 8.
 */
#ifndef WATCH_CURSES_H
#define WATCH_CURSES_H

#include "common/error.h"

#include <stdbool.h>
#include <stdio.h>

#define CURSES_BOLD (1UL << 21)
#define CURSES_REVERSE (1UL << 18)
#define CURSES_KEY_DOWN 0402
#define CURSES_KEY_UP 0403
#define CURSES_KEY_HOME 0406
#define CURSES_KEY_NEXT_PAGE 0522
#define CURSES_KEY_PREVIOUS_PAGE 0523
#define CURSES_KEY_END 0550
#define CURSES_KEY_RESIZE 0632
#define CURSES_NONE (-1)

struct curses_window; /* WINDOW */
struct curses_screen; /* SCREEN */

struct curses {
    void *library;
    struct curses_screen *(*newterm)(const char *type, FILE *out, FILE *in);
    int (*endwin)(void);
    int (*cbreak)(void);
    int (*noecho)(void);
    int (*curs_set)(int visible);
    int (*keypad)(struct curses_window *w, bool on);
    int (*nodelay)(struct curses_window *w, bool on);
    int (*wgetch)(struct curses_window *w);
    int (*werase)(struct curses_window *w);
    int (*wmove)(struct curses_window *w, int y, int x);
    int (*waddnstr)(struct curses_window *w, const char *text, int n);
    int (*wattrset)(struct curses_window *w, int attributes);
    int (*wrefresh)(struct curses_window *w);
    int (*getmaxx)(const struct curses_window *w);
    int (*getmaxy)(const struct curses_window *w);
    struct curses_window **stdscr;
};

/* Opens the library. It stays open: ncurses has handlers of signals. CDDP_E_NOT_FOUND, with how to get it. */
cddp_status curses_open(struct curses *c, struct cdi_error *err);

#endif
