/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/curses.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#define LIBRARY "libncursesw.so.6"

cddp_status curses_open(struct curses *c, struct cdi_error *err)
{
    static const char *const names[] = {"newterm",  "endwin",  "cbreak",  "noecho", "curs_set", "keypad",
                                        "nodelay",  "wgetch",  "werase",  "wmove",  "waddnstr", "wattrset",
                                        "wrefresh", "getmaxx", "getmaxy", "stdscr"};
    void *found[sizeof names / sizeof names[0]];

    _Static_assert(sizeof found == sizeof *c - offsetof(struct curses, newterm), "a name for each member");
    c->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; c->library != NULL && i < sizeof names / sizeof names[0]; i++)
        if ((found[i] = dlsym(c->library, names[i])) == NULL)
            return cdi_fail(err, CDDP_E_NOT_FOUND, "--top cannot use ncurses: %.300s", dlerror());
    if (c->library == NULL)
        return cdi_fail(err, CDDP_E_NOT_FOUND,
                        "--top needs ncurses (%.200s); install it (Debian: libncursesw6, Fedora: ncurses-libs)",
                        dlerror());
    memcpy((char *)c + offsetof(struct curses, newterm), found, sizeof found);
    return CDDP_OK;
}
