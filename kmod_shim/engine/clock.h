/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - clocks of the engine, in nanoseconds. */
#ifndef FARSIDE_CLOCK_H
#define FARSIDE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	return clock_gettime(clock, &t) ? 0 : (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline uint64_t now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

/* Processor time that this thread has had: what others do on the machine is not in it. A system call each. */
static inline uint64_t thread_ns(void)
{
	return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

#endif
