/* SPDX-License-Identifier: Apache-2.0 */
/* A helper of the build: prints a document made from the table of flags.   flag_texts man|bash|markdown */
#include "launcher/cli/help.h"

#include <cddp/version.h>
#include <string.h>

static void man(FILE *to)
{
    fprintf(to, ".TH CDDPRUN 1 \"%s\" \"cddprun %s\" \"User Commands\"\n", CDI_RELEASE_DATE, CDDP_VERSION);
    help_man(to);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*write)(FILE *to);
    } texts[] = {{"man", man}, {"bash", help_bash}, {"markdown", help_markdown}};

    for (size_t i = 0; argc == 2 && i < sizeof texts / sizeof texts[0]; i++) {
        if (strcmp(argv[1], texts[i].name) == 0) {
            texts[i].write(stdout);
            return fflush(stdout) == 0 ? 0 : 1;
        }
    }
    fputs("usage: flag_texts man|bash|markdown\n", stderr);
    return 2;
}
