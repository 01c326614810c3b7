/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logs one line per event: `level ID text`. Ids such as RDZV-DROP are stable, so that tests and users match ids, not
 * prose. For programs; libcddp logs at debug level only, except the warnings of CDDP_DEBUG=1. Any thread. Never exits.
 */
#ifndef CDI_LOG_H
#define CDI_LOG_H

enum cdi_log_level { CDI_LOG_DEBUG, CDI_LOG_INFO, CDI_LOG_WARN, CDI_LOG_ERROR, CDI_LOG_OFF };

typedef void (*cdi_log_sink)(enum cdi_log_level level, const char *id, const char *text, void *arg);

/* Sets the receiver of lines; NULL: stderr in the form "cddprun: text", with level and id in front of the text at debug
 * level.
 */
void cdi_log_set_sink(cdi_log_sink sink, void *arg);
/* Sets the level below which lines are dropped; CDI_LOG_WARN by default. */
void cdi_log_set_level(enum cdi_log_level level);
enum cdi_log_level cdi_log_level(void);
/*
 * Returns the level of a name: "debug", "info", "warning"/"warn", "error"/"critical"/"fatal" or "off", in any case, as
 * PyTorch's LOGLEVEL has them; -1: it is not one of them.
 */
int cdi_log_level_parse(const char *name);
/* Sets the name in front of each line of the default sink, such as "cddprun". Keeps the pointer. */
void cdi_log_set_name(const char *name);

void cdi_log(enum cdi_log_level level, const char *id, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
