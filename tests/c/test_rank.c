/* The ranked set against an array of flags. */
#include <stdlib.h>
#include <string.h>

#include "es_test.h"
#include "replay/es_rank.h"

#define LARGEST 600000

static bool has[LARGEST];
static uint32_t members[LARGEST];
static uint64_t ks[LARGEST];

static const uint32_t limits[] = {1, 2, 63, 64, 65, 2047, 2048, 2049, 32769, LARGEST};
#define NUM_LIMITS (sizeof limits / sizeof limits[0])

static void flip(es_rank *s, uint32_t number)
{
    if (has[number])
        es_rank_remove(s, number);
    else
        es_rank_add(s, number);
    has[number] = !has[number];
}

/* Everything that the set says. */
static void check(const es_rank *s, uint32_t limit, es_random *r)
{
    static uint32_t got[LARGEST];
    uint32_t count = 0, absent = limit;
    bool ok = true;
    for (uint32_t i = 0; i < limit; i++) {
        ok = ok && es_rank_has(s, i) == has[i];
        if (has[i])
            members[count++] = i;
        else if (absent == limit)
            absent = i;
    }
    CHECK(ok);
    REQUIRE_EQ(es_rank_count(s), count);
    if (absent < limit)
        CHECK_EQ(es_rank_lowest_absent(s), absent);
    for (uint32_t i = 0; i < count; i++)
        ks[i] = i;
    es_rank_members(s, ks, got, count);
    CHECK(memcmp(got, members, count * sizeof *got) == 0);
    for (uint32_t i = 0; i < 50 && count > 0; i++) {
        uint32_t k = es_random_below(r, count);
        ks[i] = k;
        CHECK_EQ(es_rank_member(s, k), members[k]);
    }
    for (uint32_t n = 0; n < 50 && count > 0; n += 7) {
        es_rank_members(s, ks, got, n);
        for (uint32_t i = 0; i < n; i++)
            CHECK_EQ(got[i], members[ks[i]]);
    }
}

/* Numbers come and go at random: few, many, and in runs. */
TEST(rank_is_what_its_members_say)
{
    es_random r = es_random_new(1);
    for (uint32_t l = 0; l < NUM_LIMITS; l++) {
        uint32_t limit = limits[l];
        es_rank *s = es_rank_new(limit);
        REQUIRE(s != NULL);
        memset(has, 0, sizeof has);
        for (uint64_t round = limit < 10000 ? es_test_scaled(60) : 6; round-- > 0;) {
            for (uint32_t n = es_random_below(&r, 300); n-- > 0;)
                flip(s, es_random_below(&r, limit));
            check(s, limit, &r);
            uint32_t first = es_random_below(&r, limit), n = es_random_below(&r, limit - first + 1);
            for (uint32_t i = first; i < first + n; i++)
                if (has[i] == (round % 2 == 0))
                    flip(s, i);
            check(s, limit, &r);
        }
        es_rank_free(s);
    }
}

/* The members are 0 .. count - 1: from the start, after a hole was filled, and when the set is full. */
TEST(rank_without_holes)
{
    es_random r = es_random_new(2);
    for (uint32_t l = 0; l < NUM_LIMITS; l++) {
        uint32_t limit = limits[l];
        es_rank *s = es_rank_new(limit);
        memset(has, 0, sizeof has);
        check(s, limit, &r);
        for (uint32_t i = 0; i < limit; i++) {
            CHECK_EQ(es_rank_lowest_absent(s), i);
            flip(s, i);
            if (i == limit / 2)
                check(s, limit, &r);
        }
        check(s, limit, &r);
        for (uint32_t i = 0; i < 20; i++) {
            uint32_t hole = es_random_below(&r, limit);
            flip(s, hole);
            if (limit < 10000 || i == 0)
                check(s, limit, &r);
            CHECK_EQ(es_rank_lowest_absent(s), hole);
            flip(s, hole);
        }
        check(s, limit, &r);
        for (uint32_t i = limit; i-- > limit / 2;)
            flip(s, i);
        check(s, limit, &r);
        for (uint32_t i = 0; i < limit / 2; i++)
            flip(s, i);
        CHECK_EQ(es_rank_count(s), 0);
        check(s, limit, &r);
        es_rank_free(s);
    }
}

/* Each member is found by its rank wherever in its word it stands, whatever else is there. */
TEST(rank_finds_every_bit)
{
    es_random r = es_random_new(3);
    es_rank *s = es_rank_new(192);
    memset(has, 0, sizeof has);
    for (uint64_t round = es_test_scaled(2000) + 100; round-- > 0;) {
        uint32_t chance = 1 + es_random_below(&r, 40);
        for (uint32_t i = 0; i < 192; i++)
            if (has[i] != (es_random_below(&r, chance) == 0))
                flip(s, i);
        check(s, 192, &r);
    }
    es_rank_free(s);
}

/* The largest set that numbers of 32 bits allow. Its top node counts up to 2^32. */
TEST(rank_of_four_thousand_million)
{
    es_rank *s = es_rank_new(UINT64_C(1) << 32);
    if (s == NULL) /* this machine does not promise so much memory */
        return;
    const uint32_t numbers[] = {5, 64, 70000, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
    for (uint32_t i = 7; i-- > 0;)
        es_rank_add(s, numbers[i]);
    for (uint32_t i = 0; i < 7; i++)
        CHECK_EQ(es_rank_member(s, i), numbers[i]);
    CHECK_EQ(es_rank_lowest_absent(s), 0);
    for (uint32_t i = 0; i < 5; i++)
        es_rank_add(s, i);
    CHECK_EQ(es_rank_lowest_absent(s), 6);
    CHECK_EQ(es_rank_member(s, 11), 0xffffffff);
    CHECK(es_rank_bytes(s) < UINT64_C(800) << 20);
    es_rank_free(s);
}
