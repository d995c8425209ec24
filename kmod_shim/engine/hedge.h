/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hedge.h - hedged reads: the age at which a late read is also sent to the second copy, from measured times.
 *
 * How it works
 *   Each worker measures its reads: one struct hedge_times for each donor, and one for the disk. The last 512 to 1024
 *   reads count; at 1024 all counts are halved. inflight.c asks here about each read that is in flight for long.
 *
 *   A read is slow when its age reaches both of these (hedge_slow_ns):
 *     1. the floor, hedge_s;
 *     2. what 99 in 100 recent reads of this donor took at most.
 *   It is late when its age reaches this one, too (hedge_late_ns):
 *     3. the first age at which asking pays: the second copy's usual time (its median), counted from now, ends before
 *        the read itself is expected to end. Expected is the median of those recent reads that took longer than this
 *        one has so far. Where none did, it is expected to take as long again as it has taken.
 *   What is not measured yet counts as 0: then the floor alone decides, and hedges measure the second copy.
 *
 *   A late read is asked of the second copy (hedge_decide) if
 *     - the budget allows it: 3 hedges for each 100 reads that donors answer, of which 16 are saved up at most; and
 *     - the second copy is not overloaded: 6 of its last 8 reads took over twice its usual time, the last of them less
 *       than a second ago (later nothing is known any more, and one hedge finds out); or, at the disk, its queue is
 *       full or writes wait for it (inflight.c looks).
 *
 *   A slow read is given up for lost when it is four times as old as that, when its donor has said nothing for so long,
 *   or when its donor is suspect. Then the second copy is asked, whatever its usual time, budget and load say, and it
 *   costs none of the budget.
 *
 * What follows from it
 *   A path that is slow or busy moves rule 2 by itself, so few of its reads are asked twice. A donor that hangs holds
 *   up the reads in flight for four times what is slow there; reads that come after wait for what is slow, until
 *   deadline_s makes the donor suspect. Where reads take less than the floor that is 20 ms once, and then 5 ms.
 *
 * Everything here belongs to one thread. Nothing allocates, waits, or reads a clock.
 */
#ifndef FARSIDE_HEDGE_H
#define FARSIDE_HEDGE_H

#include <stdbool.h>
#include <stdint.h>

/* Bucket i holds times from 2^(i/4) us on, roughly: four to each power of two, from 1 us to 68 s. */
#define HEDGE_BUCKETS 104u

/* How long the recent reads of one place took. All zero: none yet. */
struct hedge_times {
	uint16_t count[HEDGE_BUCKETS];
	uint32_t total;			/* sum of count */
	uint32_t fresh;			/* reads since the two figures below were made */
	uint64_t quantile_ns, usual_ns;	/* 99 in 100 took at most; the median. Both up to a quarter too long, never short */
	uint64_t last_ns;		/* when the last read ended */
	uint8_t over;			/* a bit for each of the last eight: it took over twice the usual */
};

/* In hundredths of a hedge. */
struct hedge_budget { uint32_t cents; };

/* What there is to decide on. */
struct hedge_case {
	uint64_t age_ns;		/* of the read */
	uint64_t silent_ns;		/* since its donor answered anything */
	uint64_t slow_ns, late_ns;	/* hedge_slow_ns() and hedge_late_ns() */
	bool suspect, overloaded;	/* the donor; the second copy */
};

enum hedge_verdict { HEDGE_WAIT, HEDGE_ASK, HEDGE_NO_BUDGET, HEDGE_OVERLOAD };

void hedge_budget_begin(struct hedge_budget *budget);
/* A donor has answered a read: the budget grows. */
void hedge_budget_earn(struct hedge_budget *budget);

/* A read of that place took so long, and ended now. True: quantile_ns and usual_ns were made anew. */
bool hedge_took(struct hedge_times *times, uint64_t took_ns, uint64_t now);
/* The age at which a read of that place is slow. */
uint64_t hedge_slow_ns(const struct hedge_times *times, uint64_t floor_ns);
/* The age at which it is late, where the second copy usually takes second_ns. */
uint64_t hedge_late_ns(const struct hedge_times *times, uint64_t second_ns, uint64_t floor_ns);
bool hedge_is_overloaded(const struct hedge_times *second, uint64_t now);
/* HEDGE_ASK has been paid for, where it costs something. */
enum hedge_verdict hedge_decide(const struct hedge_case *read, struct hedge_budget *budget);

#endif
