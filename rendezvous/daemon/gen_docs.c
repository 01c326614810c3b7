/* SPDX-License-Identifier: Apache-2.0 */
/* Build tool: prints the man page or the bash completion of cddp-rendezvous.   daemon_texts man|bash */
#include "rendezvous/daemon/options.h"

#include <cddp/version.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "man") == 0) {
        (void)printf(".TH CDDP-RENDEZVOUS 8 \"%s\" \"cddprun %s\" \"System Administration\"\n", CDI_RELEASE_DATE,
                     CDDP_VERSION);
        daemon_options_man(stdout);
    } else if (argc == 2 && strcmp(argv[1], "bash") == 0) {
        daemon_options_bash(stdout);
    } else {
        (void)fputs("usage: daemon_texts man|bash\n", stderr);
        return 2;
    }
    return fflush(stdout) == 0 ? 0 : 1;
}
