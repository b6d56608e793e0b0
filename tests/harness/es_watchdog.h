/* The watchdog: if something hangs, it prints the name and aborts the program.
 *
 * A process has one watchdog, for its current test, scene, input or phase. A child of fork() has none. */
#ifndef ES_WATCHDOG_H
#define ES_WATCHDOG_H

/* The program aborts after this many seconds, unless es_watchdog_stop() or another start comes first. The name must
 * stay valid. say, unless NULL, is called in a signal handler just before the abort and may print more. */
void es_watchdog_start(const char *name, unsigned seconds, void (*say)(void));
void es_watchdog_stop(void);

#endif
