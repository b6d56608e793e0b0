#define _GNU_SOURCE
#include "es_watchdog.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *volatile watched;
static void (*volatile say_more)(void);

static void on_alarm(int signal_number)
{
    static const char text[] = "\nwatchdog: hangs: ";
    (void)signal_number;
    ssize_t ignored = write(2, text, sizeof text - 1);
    ignored += write(2, watched, strlen(watched));
    ignored += write(2, "\n", 1);
    (void)ignored;
    if (say_more != NULL)
        say_more();
    abort();
}

void es_watchdog_start(const char *name, unsigned seconds, void (*say)(void))
{
    watched = name;
    say_more = say;
    signal(SIGALRM, on_alarm);
    alarm(seconds);
}

void es_watchdog_stop(void)
{
    alarm(0);
}
