/* SPDX-License-Identifier: Apache-2.0 */
/* mover.h - shared by the mover's two files, mover.c and lift.c. All of it runs in the mover's thread. */
#ifndef FARSIDE_MOVER_H
#define FARSIDE_MOVER_H

#include "core.h"

/* Pages on their way out of one place of a cluster. */
#define RUN_PAGES 128u

/* Pages of the mover's stage: a run from a donor; what donors are given of a run; a run from the disk (lift.c). */
#define OUTGOING_AT RUN_PAGES
#define LIFT_AT	    (2 * RUN_PAGES)
_Static_assert(LIFT_PAGES <= RUN_PAGES, "room for what donors are given of a run from the disk");

struct drain {
	struct worker *w;
	uint32_t cluster, slab;
	int home; /* the one to empty, or to copy from */
	uint64_t word;
	uint32_t at;	      /* the page of the stage where a run begins */
	uint64_t deadline_ns; /* of a single cluster's drain; a slab's stands where the control side can change it */
	uint32_t moved, left, lost;		     /* pages */
	uint64_t (*finished)[NE_CLUSTER_PAGES / 64]; /* a bit a page, by extent: it is not in the home any more */
};

/*
 * Copies the good pages of a staged run, all claimed, to every writable home but `except`; returns the bits of those
 * that have them.
 */
uint64_t run_copy(struct drain *d, uint32_t page, uint32_t n, const bool *good, int except);
/*
 * True when page `at` of the stage, a copy of the claimed page from there, is what was written. Else that copy is
 * dropped; donor: UINT32_MAX for the disk.
 */
bool copy_verify(struct worker *w, uint32_t page, uint32_t at, uint64_t from, uint32_t donor);
/* The homes (their bits in a page's word) with those bits in their word whose donor can be reached now. */
uint64_t homes_in_reach(struct worker *w, uint32_t cluster, uint64_t needed);

/*
 * Goes on with copying to donors what the disk alone has, where that is asked for; never waits for the disk. Returns in
 * how many milliseconds it wants to be called again, 1 to 1000, if the disk has not answered before.
 */
int lift_turn(struct worker *w);

#endif
