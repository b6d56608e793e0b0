#define _GNU_SOURCE
#include "es_cover.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_PLACES 65536
#define MAX_NAMES 2048

/* core_table.awk writes program.core: address, "exchange" or "-", function, file, line */
static es_place *places;      /* shared by the processes that run scenarios */
static bool here[MAX_PLACES]; /* the places of this scenario's kills */
static unsigned num_places;
static char *names[MAX_NAMES];
static unsigned num_names;

/* The only copy of a name, so that functions and files can be compared by pointer. */
static const char *intern(const char *name)
{
    for (unsigned i = 0; i < num_names; i++)
        if (strcmp(names[i], name) == 0)
            return names[i];
    if (num_names == MAX_NAMES || (names[num_names] = strdup(name)) == NULL)
        abort();
    return names[num_names++];
}

/* Runs before any fork, so that all processes share the same places. */
__attribute__((constructor)) static void load(void)
{
    places = mmap(NULL, MAX_PLACES * sizeof *places, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (places == MAP_FAILED)
        abort();
    char path[4096], function[128], file[128], kind[16];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 8);
    if (n < 0)
        abort();
    strcpy(path + n, ".core");
    FILE *f = fopen(path, "r");
    unsigned long long address;
    unsigned line;
    while (f != NULL && num_places < MAX_PLACES &&
           fscanf(f, "%llx %15s %127s %127s %u", &address, kind, function, file, &line) == 5)
        places[num_places++] = (es_place){.address = address,
                                          .function = intern(function),
                                          .file = intern(file),
                                          .line = line,
                                          .exchange = strcmp(kind, "exchange") == 0};
    if (num_places < 1000 || num_places == MAX_PLACES || !feof(f)) {
        fprintf(stderr, "%s: the table of the core's instructions is missing or broken\n", path);
        exit(1);
    }
    fclose(f);
}

static es_place *find(uint64_t pc)
{
    unsigned low = 0, high = num_places;
    while (low < high) {
        unsigned mid = (low + high) / 2;
        if (places[mid].address < pc)
            low = mid + 1;
        else
            high = mid;
    }
    return low < num_places && places[low].address == pc ? &places[low] : NULL;
}

const es_place *cover_place(uint64_t pc)
{
    return find(pc);
}

void cover_scenario(void)
{
    memset(here, 0, sizeof here);
}

void cover_kill(uint64_t pc)
{
    es_place *p = find(pc);
    if (p != NULL)
        p->killed = here[p - places] = true;
}

void cover_counts(unsigned *instructions, unsigned *functions)
{
    const char *seen[MAX_NAMES];
    *instructions = *functions = 0;
    for (unsigned i = 0; i < num_places; i++) {
        if (!here[i])
            continue;
        ++*instructions;
        unsigned n = 0;
        while (n < *functions && seen[n] != places[i].function)
            n++;
        if (n == *functions)
            seen[(*functions)++] = places[i].function;
    }
}

bool cover_visited(const char *function)
{
    bool known = false;
    for (unsigned i = 0; i < num_places; i++) {
        if (strcmp(places[i].function, function) != 0)
            continue;
        known = true;
        if (here[i])
            return true;
    }
    if (!known)
        fprintf(stderr, "    no instruction of the core belongs to %s\n", function);
    return false;
}

/* Prints the lines of a file that have an instruction without a kill. */
static void print_missed_lines(const char *file)
{
    bool any = false;
    for (unsigned line = 1; line < 2000; line++) {
        const char *function = NULL;
        for (unsigned i = 0; i < num_places && function == NULL; i++)
            if (places[i].file == file && places[i].line == line && !places[i].killed)
                function = places[i].function;
        if (function == NULL)
            continue;
        printf(any ? ", %u %s" : "      not at: %u %s", line, function);
        any = true;
    }
    if (any)
        printf("\n");
}

static const char *excuse_of(const es_excuse *excuses, const char *function)
{
    for (; excuses->function != NULL; excuses++)
        if (strcmp(excuses->function, function) == 0)
            return excuses->why;
    return NULL;
}

/* Judges one function of a file. Returns 1 if it was missed without an excuse, or has an excuse that it does not
 * need. */
static unsigned judge(const char *file, const char *function, const es_excuse *excuses, unsigned *visited)
{
    unsigned all = 0, killed = 0;
    for (unsigned i = 0; i < num_places; i++)
        if (places[i].file == file && places[i].function == function) {
            all++;
            killed += places[i].killed;
        }
    const char *why = excuse_of(excuses, function);
    *visited += killed > 0;
    if (killed > 0 && why != NULL)
        printf("      %s is excused, but a process was killed in it: remove the excuse\n", function);
    else if (killed == 0)
        printf("      no kill in %s (%u instructions): %s\n", function, all, why != NULL ? why : "NO REASON KNOWN");
    return killed == 0 ? why == NULL : why != NULL;
}

unsigned cover_report(const char *part, const char *const *files, const es_excuse *excuses, unsigned least_percent)
{
    unsigned wrong = 0, part_all = 0, part_killed = 0;
    for (; *files != NULL; files++) {
        const char *file = intern(*files), *done[MAX_NAMES];
        unsigned all = 0, killed = 0, functions = 0, visited = 0;
        for (unsigned i = 0; i < num_places; i++) {
            if (places[i].file != file)
                continue;
            all++;
            killed += places[i].killed;
            unsigned n = 0;
            while (n < functions && done[n] != places[i].function)
                n++;
            if (n == functions)
                done[functions++] = places[i].function;
        }
        for (unsigned n = 0; n < functions; n++)
            wrong += judge(file, done[n], excuses, &visited);
        printf("  %-16s killed at %u of %u instructions, in %u of %u functions\n", file, killed, all, visited,
               functions);
        print_missed_lines(file);
        wrong += all == 0;
        part_all += all;
        part_killed += killed;
    }
    printf("  %s: killed at %u of %u instructions\n", part, part_killed, part_all);
    /* Most other instructions are inlined copies of covered code, in places that no scenario reaches. */
    return wrong + (part_killed * 100 < part_all * least_percent);
}
