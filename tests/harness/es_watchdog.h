/* The watchdog: when something hangs, its name is printed and the program aborts.
 *
 * A process has one watchdog, for what it does now: a test, a scene, an input, a phase. A child of fork() has none. */
#ifndef ES_WATCHDOG_H
#define ES_WATCHDOG_H

/* The program aborts after so many seconds, unless es_watchdog_stop() or another start comes first. The name must stay
 * valid. say may be NULL: it is called just before the abort, in a signal handler, and may print more. */
void es_watchdog_start(const char *name, unsigned seconds, void (*say)(void));
void es_watchdog_stop(void);

#endif
