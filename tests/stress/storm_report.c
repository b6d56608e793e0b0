/* Reports for people and for programs. */
#include <stdio.h>
#include <string.h>

#include "storm.h"

#define U(x) ((unsigned long long)(x))

/* 1234567 -> "1,234,567". The last 16 results stay valid. */
static const char *grouped(uint64_t n)
{
    static char texts[16][28];
    static int next;
    char plain[24], *text = texts[next++ % 16];
    int length = snprintf(plain, sizeof plain, "%llu", U(n)), at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            text[at++] = ',';
        text[at++] = plain[i];
    }
    text[at] = '\0';
    return text;
}

void st_report_line(const st_storm *s, const st_config *config, double seconds)
{
    char text[320];
    const st_figures *f = &s->sum;
    uint64_t kills = f->kills_producers + f->kills_learners;
    st_config_text(config, text, sizeof text);
    printf("%7.1f s  %s kills (%s/s), %s of them learners; %s stops; %s samples; longest gap %.0f ms\n"
           "           round %u was %s\n",
           seconds, grouped(kills), grouped((uint64_t)((double)kills / seconds)), grouped(f->kills_learners),
           grouped(f->stops), grouped(f->delivered), (double)f->gap_ns / 1e6, s->w.round, text);
    fflush(stdout);
}

void st_report_faults(const st_storm *s)
{
    char text[320];
    st_account *a = s->w.account;
    uint32_t n = atomic_load(&a->num_faults), room = sizeof a->fault / sizeof a->fault[0];
    st_config_text(&s->w.config, text, sizeof text);
    fprintf(stderr, "  seed %llu, round %u: %s\n", U(s->w.seed), s->w.round, text);
    for (uint32_t i = 0; i < n && i < room; i++) {
        const st_fault *f = &a->fault[i];
        fprintf(stderr, "  %s: life %u, sequence %lld, position %lld: %s (%lld = 0x%llx)\n", st_fault_name[f->kind],
                f->life, (long long)f->seq, (long long)f->position, f->text, (long long)f->code, U(f->code));
    }
    if (n > room)
        fprintf(stderr, "  and %u more\n", n - room);
}

static void report_phases(const st_figures *f, int producers)
{
    uint64_t total = producers ? f->kills_producers : f->kills_learners;
    if (total == 0)
        return;
    printf("  %s were killed while", producers ? "producers" : "learners");
    for (int p = 0; p < ST_PHASES; p++)
        if (f->killed_in[producers][p] > 0)
            printf(" %s %.1f %%,", st_phase_name[p], 100.0 * (double)f->killed_in[producers][p] / (double)total);
    if (producers)
        printf(" and %s of them asleep on a full ring\n", grouped(f->killed_parked));
    else
        printf(" of %s\n", grouped(total));
}

void st_report(const st_storm *s, double seconds, const st_vitals *start, const st_vitals *warm, const st_vitals *end)
{
    const st_figures *f = &s->sum;
    uint64_t kills = f->kills_producers + f->kills_learners;
    printf("\nstorm of %.1f s, %u rounds (small, middle, big samples: %s, %s, %s), seed %llu\n", seconds, f->rounds,
           grouped(f->rounds_with[0]), grouped(f->rounds_with[1]), grouped(f->rounds_with[2]), U(s->w.seed));
    printf("  kills            %s (%s/s): %s of producers, %s of learners; %s of them while stopped\n", grouped(kills),
           grouped((uint64_t)((double)kills / seconds)), grouped(f->kills_producers), grouped(f->kills_learners),
           grouped(f->killed_stopped));
    printf("  stops            %s\n", grouped(f->stops));
    printf("  processes        %s attached, %s left without a kill, %s reaped\n", grouped(f->attached),
           grouped(f->left), grouped(f->reaped));
    printf("  samples          %s sent, %s delivered (%s/s) in %s batches\n", grouped(f->sent), grouped(f->delivered),
           grouped((uint64_t)((double)f->delivered / seconds)), grouped(f->batches));
    printf("  calls            ");
    for (int p = 0; p < ST_PATHS; p++)
        printf("%s %s%s", grouped(f->paths[p]), st_path_name[p], p + 1 < ST_PATHS ? ", " : "\n");
    printf("  slots re-opened  %s\n", grouped(f->reopened));
    printf(
        "  leases           %s of dead learners given back, %s takes undone by living ones, %s of unfinished batches\n",
        grouped(f->given_back), grouped(f->undone_takes), grouped(f->partials));
    printf("  repair           called %s times by learners that got no batch\n", grouped(f->repairs));
    printf("  longest gap      %.1f ms with a producer and a learner at work and no process stopped (at %.1f s, round "
           "%u); %.1f ms in all\n",
           (double)f->gap_ns / 1e6, f->gap_at_s, f->gap_round, (double)f->gap_any_ns / 1e6);
    printf("                   the conductor itself waited up to %.1f ms for a processor\n", (double)f->late_ns / 1e6);
    report_phases(f, 1);
    report_phases(f, 0);
    printf("  memory           %s KiB at the start, %s after the warm-up, %s at the end\n", grouped(start->rss_kib),
           grouped(warm->rss_kib), grouped(end->rss_kib));
    printf("  /dev/shm         %u entries, %s bytes at the start; %u, %s at the end; %u of them ours, %u mapped\n",
           start->shm_entries, grouped(start->shm_bytes), end->shm_entries, grouped(end->shm_bytes), end->shm_own,
           end->mapped);
    printf("  descriptors      %u at the start, %u at the end\n ", start->fds, end->fds);
    for (int k = 0; k < ST_FAULTS; k++)
        printf(" %s %s%s", st_fault_name[k], grouped(f->faults_of[k]), k + 1 < ST_FAULTS ? "," : "\n");
}

static void json_vitals(FILE *out, const char *when, const st_vitals *v)
{
    fprintf(out,
            "  \"%s\": {\"rss_kib\": %llu, \"descriptors\": %u, \"shm_entries\": %u, \"shm_own\": %u, "
            "\"shm_bytes\": %llu},\n",
            when, U(v->rss_kib), v->fds, v->shm_entries, v->shm_own, U(v->shm_bytes));
}

static void json_counts(FILE *out, const char *what, int n, const char *const *name, const uint64_t *count)
{
    fprintf(out, "  \"%s\": {", what);
    for (int i = 0; i < n; i++)
        fprintf(out, "%s\"%s\": %llu", i > 0 ? ", " : "", name[i], U(count[i]));
    fprintf(out, "},\n");
}

bool st_report_json(const st_storm *s, const st_options *o, double seconds, const st_vitals *start,
                    const st_vitals *warm, const st_vitals *end, bool passed)
{
    const st_figures *f = &s->sum;
    FILE *out = fopen(o->json, "w");
    if (out == NULL) {
        perror(o->json);
        return false;
    }
    fprintf(out, "{\n  \"seed\": %llu, \"seconds\": %.1f, \"rounds\": %u,\n", U(s->w.seed), seconds, f->rounds);
    fprintf(out,
            "  \"kills\": %llu, \"kills_producers\": %llu, \"kills_learners\": %llu, \"killed_stopped\": %llu, "
            "\"killed_parked\": %llu, \"stops\": %llu,\n",
            U(f->kills_producers + f->kills_learners), U(f->kills_producers), U(f->kills_learners),
            U(f->killed_stopped), U(f->killed_parked), U(f->stops));
    fprintf(out, "  \"attached\": %llu, \"left\": %llu, \"reaped\": %llu,\n", U(f->attached), U(f->left), U(f->reaped));
    fprintf(out,
            "  \"samples_sent\": %llu, \"samples_delivered\": %llu, \"batches\": %llu, "
            "\"samples_per_second\": %.0f,\n",
            U(f->sent), U(f->delivered), U(f->batches), (double)f->delivered / seconds);
    fprintf(out,
            "  \"reopened_slots\": %llu, \"leases_of_the_dead\": %llu, \"undone_takes\": %llu, "
            "\"partial_batches\": %llu,\n",
            U(f->reopened), U(f->given_back), U(f->undone_takes), U(f->partials));
    fprintf(out,
            "  \"longest_gap_ms\": %.3f, \"longest_gap_at_s\": %.1f, \"longest_gap_in_all_ms\": %.3f, "
            "\"longest_wait_for_a_processor_ms\": %.3f,\n",
            (double)f->gap_ns / 1e6, f->gap_at_s, (double)f->gap_any_ns / 1e6, (double)f->late_ns / 1e6);
    json_counts(out, "calls", ST_PATHS, st_path_name, f->paths);
    json_counts(out, "producers_killed_while", ST_PHASES, st_phase_name, f->killed_in[1]);
    json_counts(out, "learners_killed_while", ST_PHASES, st_phase_name, f->killed_in[0]);
    json_vitals(out, "start", start);
    json_vitals(out, "warm", warm);
    json_vitals(out, "end", end);
    json_counts(out, "faults", ST_FAULTS, st_fault_name, f->faults_of);
    fprintf(out, "  \"passed\": %s\n}\n", passed ? "true" : "false");
    return fclose(out) == 0;
}
