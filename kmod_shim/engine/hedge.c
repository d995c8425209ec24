/* SPDX-License-Identifier: Apache-2.0 */
/* hedge.c - histogram of recent read times, and the rule of hedge.h over it. */
#include <string.h>

#include "hedge.h"

#define FIRST_BIT     10u /* 1.024 us: what is quicker is all the same to us */
#define RECENT	      1024u
#define REFRESH_READS 64u
#define QUANTILE      99u /* of 100; with the budget below, three times what it lets through */
#define EARN_CENTS    3u
#define HEDGE_CENTS   100u
#define SAVED_CENTS   (16u * HEDGE_CENTS)
#define LOST_TIMES    4u /* rare even in a tail that is as heavy as a busy machine's */
#define OVER_TIMES    2u
#define OVER_READS    6
#define OVER_KNOWN    8u	    /* reads that make a usual time */
#define STALE_NS      1000000000ull /* what was said of a second copy so long ago says nothing */

static uint32_t bucket_of(uint64_t ns)
{
	uint32_t bit, bucket;

	if (ns < 1ull << FIRST_BIT)
		return 0;
	bit = 63 - (uint32_t)__builtin_clzll(ns);
	bucket = 4 * (bit - FIRST_BIT) + (uint32_t)(ns >> (bit - 2) & 3);
	return bucket < HEDGE_BUCKETS ? bucket : HEDGE_BUCKETS - 1;
}

/* Where the bucket begins, which is where the one before it ends. */
static uint64_t bucket_begin_ns(uint32_t bucket)
{
	return (uint64_t)(4 + bucket % 4) << (bucket / 4 + FIRST_BIT - 2);
}

/* The end of the bucket that holds the rank-th of the reads from bucket `from` on; the first has rank 1. */
static uint64_t ranked_ns(const struct hedge_times *times, uint32_t from, uint32_t rank)
{
	uint32_t bucket = from, seen = times->count[from];

	while (seen < rank && bucket < HEDGE_BUCKETS - 1)
		seen += times->count[++bucket];
	return bucket_begin_ns(bucket + 1);
}

static void figures_make(struct hedge_times *times)
{
	times->fresh = 0;
	times->quantile_ns = ranked_ns(times, 0, (times->total * QUANTILE + 99) / 100);
	times->usual_ns = ranked_ns(times, 0, (times->total + 1) / 2);
}

static void forget_half(struct hedge_times *times)
{
	times->total = 0;
	for (uint32_t i = 0; i < HEDGE_BUCKETS; i++) {
		times->count[i] /= 2;
		times->total += times->count[i];
	}
}

bool hedge_took(struct hedge_times *times, uint64_t took_ns, uint64_t now)
{
	bool over = times->total >= OVER_KNOWN && took_ns > OVER_TIMES * times->usual_ns;

	times->over = (uint8_t)(times->over << 1 | over);
	times->last_ns = now;
	times->count[bucket_of(took_ns)]++;
	times->fresh++;
	if (++times->total == RECENT)
		forget_half(times);
	/* one that was late says at once that others may be, and of few each matters */
	if (took_ns <= times->quantile_ns && times->fresh < REFRESH_READS && times->fresh * 8 < times->total)
		return false;
	figures_make(times);
	return true;
}

uint64_t hedge_slow_ns(const struct hedge_times *times, uint64_t floor_ns)
{
	return times->quantile_ns > floor_ns ? times->quantile_ns : floor_ns;
}

/*
 * Looks at the ages where a histogram can change its mind: rules 1 and 2, then the beginning of each later bucket. From
 * the last one on no read is known that took longer.
 */
uint64_t hedge_late_ns(const struct hedge_times *times, uint64_t second_ns, uint64_t floor_ns)
{
	uint64_t age = hedge_slow_ns(times, floor_ns);
	uint32_t bucket = bucket_of(age), longer = 0;

	if (bucket_begin_ns(bucket) < age)
		bucket++; /* of its own bucket it has outlived some */
	for (uint32_t i = bucket; i < HEDGE_BUCKETS; i++)
		longer += times->count[i];
	while (longer) {
		if (age + second_ns <= ranked_ns(times, bucket, (longer + 1) / 2))
			return age;
		longer -= times->count[bucket++];
		age = bucket_begin_ns(bucket);
	}
	return age > second_ns ? age : second_ns;
}

bool hedge_is_overloaded(const struct hedge_times *second, uint64_t now)
{
	return __builtin_popcount(second->over) >= OVER_READS && now < second->last_ns + STALE_NS;
}

enum hedge_verdict hedge_decide(const struct hedge_case *read, struct hedge_budget *budget)
{
	uint64_t lost_ns = LOST_TIMES * read->slow_ns;

	if (read->age_ns < read->slow_ns)
		return HEDGE_WAIT;
	if (read->suspect || read->age_ns >= lost_ns || read->silent_ns >= lost_ns)
		return HEDGE_ASK;
	if (read->age_ns < read->late_ns)
		return HEDGE_WAIT;
	if (read->overloaded)
		return HEDGE_OVERLOAD;
	if (budget->cents < HEDGE_CENTS)
		return HEDGE_NO_BUDGET;
	budget->cents -= HEDGE_CENTS;
	return HEDGE_ASK;
}

void hedge_budget_begin(struct hedge_budget *budget)
{
	budget->cents = SAVED_CENTS;
}

void hedge_budget_earn(struct hedge_budget *budget)
{
	budget->cents = budget->cents + EARN_CENTS < SAVED_CENTS ? budget->cents + EARN_CENTS : SAVED_CENTS;
}
