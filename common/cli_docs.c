/* SPDX-License-Identifier: Apache-2.0 */
#include "common/cli_docs.h"

#include <string.h>

#define WIDTH 100

void cdi_wrap(FILE *to, const char *text, size_t indent)
{
    size_t column = indent;

    for (const char *p = text; *p != '\0';) {
        size_t n = strcspn(p, " ");

        if (column > indent && column + 1 + n > WIDTH) {
            (void)fprintf(to, "\n%*s", (int)indent, "");
            column = indent;
        } else if (column > indent) {
            (void)fputc(' ', to);
            column++;
        }
        (void)fprintf(to, "%.*s", (int)n, p);
        column += n;
        p += n + strspn(p + n, " ");
    }
    (void)fputc('\n', to);
}

/* ------------------------------------------------------------------------------------------------------- roff ---- */

void cdi_roff(FILE *to, const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '-')
            (void)fputs("\\-", to);
        else if (*p == '\\')
            (void)fputs("\\e", to);
        else if (*p == '\'')
            (void)fputs("\\(aq", to);
        else
            (void)fputc(*p, to);
    }
    (void)fputc('\n', to);
}

/* ------------------------------------------------------------------------------------------------------- bash ---- */

/* Writes the name of the completing function: the program's, with _ for characters that are not allowed. */
static void function_name(FILE *to, const char *program)
{
    (void)fputc('_', to);
    for (const char *p = program; *p != '\0'; p++)
        (void)fputc(*p == '-' ? '_' : *p, to);
}

void cdi_bash_begin(FILE *to, const char *program)
{
    (void)fprintf(to, "# bash completion for %s; made from its table of flags\n", program);
    function_name(to, program);
    (void)fputs("()\n{\n"
                "    local cur prev flag words\n    COMPREPLY=()\n"
                "    _get_comp_words_by_ref -n = cur prev words 2>/dev/null || {\n"
                "        cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                "        # Without bash-completion a '=' is a separate word.\n"
                "        [[ $prev == '=' ]] && prev=${COMP_WORDS[COMP_CWORD-2]}\n"
                "        [[ $cur == '=' ]] && cur=''\n    }\n"
                "    flag=$prev\n    [[ $cur == --*=* ]] && { flag=${cur%%=*} cur=${cur#*=}; }\n"
                "    case ${flag//-/_} in\n",
                to);
}

void cdi_bash_words(FILE *to, const char *flag, const char *words)
{
    (void)fprintf(to, "    __%s) COMPREPLY=($(compgen -W '", flag);
    for (const char *p = words; *p != '\0'; p++)
        (void)fputc(*p == '|' ? ' ' : *p, to);
    (void)fputs("' -- \"$cur\")); return ;;\n", to);
}

void cdi_bash_flags(FILE *to)
{
    (void)fputs("    esac\n    if [[ $cur == -* ]]; then\n        COMPREPLY=($(compgen -W '", to);
}

void cdi_bash_flag(FILE *to, const char *flag, bool takes_value)
{
    (void)fprintf(to, "--%s%s ", flag, takes_value ? "=" : "");
}

void cdi_bash_end(FILE *to, const char *program)
{
    (void)fputs("' -- \"$cur\"))\n        [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n        return\n    fi\n"
                "    COMPREPLY=($(compgen -f -- \"$cur\"))\n    compopt -o filenames\n}\n"
                "complete -F ",
                to);
    function_name(to, program);
    (void)fprintf(to, " %s\n", program);
}
