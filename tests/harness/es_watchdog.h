/* A watchdog: what hangs aborts the program, and its name is printed.
 *
 * There is one, for what the process does now: a test, a scene, an input, a phase. A child of fork() has none. */
#ifndef ES_WATCHDOG_H
#define ES_WATCHDOG_H

/* From now on, unless es_watchdog_stop() or the next start comes within so many seconds, the program aborts. The name
 * must stay where it is. say, if not NULL, is called before, from a signal handler: it may say more. */
void es_watchdog_start(const char *name, unsigned seconds, void (*say)(void));
void es_watchdog_stop(void);

#endif
