/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lift.c - background copy, to donors, of pages that only the disk has; one run of pages at a time.
 *
 * How it works
 *	note a run -> read it from the disk -> claim its pages -> look again -> write it to the homes -> give up claims
 *
 *   A disk may take seconds for a read, and a claim delays every writer of the page. So none is held while the disk
 *   reads: each page's sequence is noted before, and what has another by then, or another source, is left alone.
 *
 *   A run that can't be read is read again page by page, so that one bad sector costs one page. After a few failures in
 *   a row, what is left of the cluster waits but for one page of it, another one in each round over the device; the
 *   first page that can be read ends that. So what is good behind a bad area does not wait for all of it, and what is
 *   good within is found in time. What could not be copied is tried again in the next round.
 *
 * Links, disk and cores are the clients' first: after a run comes a rest as long as it took, REST_MAX_NS at most. After
 * a failure it is twice as long each time, up to 64 ms, and as long as the disk took to fail, FAILED_MAX_NS at most.
 */
#include "mover.h"

#define ROUND_NS      1000000000ull
#define REST_MAX_NS   100000000ull
#define FAILED_MAX_NS 1000000000ull
#define MILLISECOND   1000000ull
#define FAILURES_FEW  6u
#define RESUME_STEP   197u /* odd, so that in time each page of a cluster has its turn */

_Static_assert(LIFT_AT + LIFT_PAGES <= NE_CLUSTER_PAGES, "ne_device_prefault()'s part of the stage");

static bool is_ripe(const struct ne_device *dev, uint32_t page, uint64_t *a)
{
	*a = atomic_load(&dev->page[page].a);
	return page_is_on_disk_alone(*a) && !(*a & (P_CLAIM | P_WIP | P_DBUSY));
}

/* Notes the run of pages that begins at `page`, at most up to `end`; its length, 0 where there is none. */
static uint32_t run_note(struct worker *w, uint32_t page, uint32_t end)
{
	struct lift *l = &w->lift;
	bool singly = page < l->single_until || l->failures >= FAILURES_FEW;
	uint32_t most = singly ? 1 : LIFT_PAGES, n = 0;
	uint64_t a;

	while (n < most && page + n < end && is_ripe(w->dev, page + n, &a))
		l->sequence[n++] = (uint32_t)a;
	return n;
}

static void run_read(struct worker *w, uint32_t page, uint32_t n)
{
	struct lift *l = &w->lift;

	l->first = page;
	l->n = n;
	l->ended = false;
	l->begun_ns = now_ns();
	l->dio = (struct ne_dio){.op = NE_IO_READ,
				 .length = n * NE_PAGE_BYTES,
				 .offset = (uint64_t)page * NE_PAGE_BYTES,
				 .buf = ring_at(&w->stage, LIFT_AT),
				 .posted_ns = l->begun_ns};
	ne_disk_post(w->disk, &l->dio);
	ne_disk_submit(w->disk);
}

/* The rest of a cluster, from the cursor on. True: a run of it is being read. False: the cursor is behind it. */
static bool cluster_lift(struct worker *w)
{
	struct lift *l = &w->lift;
	uint32_t cluster = l->cursor / NE_CLUSTER_PAGES, end = (cluster + 1) * NE_CLUSTER_PAGES;
	bool any = atomic_load_explicit(&w->dev->disk_alone[cluster], memory_order_relaxed) > 0;
	bool well = any && homes_in_reach(w, cluster, H_VALID | H_WRITE);

	if (any && !well)
		page_tell_wanted(w, cluster);
	for (; well && l->cursor < end; l->cursor++) {
		uint32_t n = run_note(w, l->cursor, end);

		if (n) {
			run_read(w, l->cursor, n);
			return true;
		}
	}
	l->cursor = end;
	return false;
}

/* Reads the next run there is. After the last one of the device comes a rest. */
static void run_begin(struct worker *w)
{
	struct lift *l = &w->lift;

	while (l->cursor < w->dev->pages)
		if (cluster_lift(w))
			return;
	l->cursor = l->single_until = 0;
	l->resume = (l->resume + RESUME_STEP) % NE_CLUSTER_PAGES;
	l->rest_until_ns = now_ns() + ROUND_NS;
}

/* Claims page i of the run if it is what was read. */
static bool page_take(struct worker *w, uint32_t i)
{
	struct ne_page *p = &w->dev->page[w->lift.first + i];
	uint64_t a;

	if (!is_ripe(w->dev, w->lift.first + i, &a) || (uint32_t)a != w->lift.sequence[i] || !page_claim(p))
		return false;
	a = atomic_load(&p->a);
	if (page_is_on_disk_alone(a) && (uint32_t)a == w->lift.sequence[i])
		return true;
	page_change(w->dev, p, 0, P_CLAIM);
	return false;
}

/* The run stands in the stage: to the homes with what of it is still the newest. */
static void run_land(struct worker *w)
{
	struct lift *l = &w->lift;
	struct drain d = {.w = w, .cluster = l->first / NE_CLUSTER_PAGES, .at = LIFT_AT};
	bool taken[LIFT_PAGES], good[LIFT_PAGES];
	uint64_t bits;

	for (uint32_t i = 0; i < l->n; i++) {
		taken[i] = page_take(w, i);
		good[i] = taken[i] && copy_verify(w, l->first + i, LIFT_AT + i, P_DISK, UINT32_MAX);
	}
	bits = run_copy(&d, l->first, l->n, good, NE_HOMES);
	for (uint32_t i = 0; i < l->n; i++) {
		if (taken[i])
			page_change(w->dev, &w->dev->page[l->first + i], good[i] ? bits : 0, P_CLAIM);
		w->stats.pages_moved += good[i] && bits;
	}
}

/* Where to go on after a run that could not be read. */
static void run_failed(struct worker *w)
{
	struct lift *l = &w->lift;
	uint32_t cluster = l->first / NE_CLUSTER_PAGES * NE_CLUSTER_PAGES, resume = cluster + l->resume;

	w->stats.disk_errors++;
	dev_event(w->dev, NE_EVENT_DISK_ERROR, (uint32_t)-l->dio.status, l->first, 0, 0);
	if (l->failures < FAILURES_FEW)
		l->failures++;
	if (l->failures == FAILURES_FEW)
		l->cursor = l->first < resume ? resume : cluster + NE_CLUSTER_PAGES;
	else if (l->n > 1)
		l->single_until = l->first + l->n;
	else
		l->cursor = l->first + 1;
}

/* The disk has answered. */
static void run_end(struct worker *w)
{
	struct lift *l = &w->lift;
	uint64_t least = 0, most = REST_MAX_NS, now, rest;

	if (l->dio.status) {
		run_failed(w);
		least = MILLISECOND << l->failures;
		most = FAILED_MAX_NS;
	} else {
		l->failures = 0;
		run_land(w);
		l->cursor = l->first + l->n;
	}
	now = now_ns();
	rest = elapsed_ns(now, l->begun_ns);
	rest = rest < least ? least : rest;
	l->rest_until_ns = now + (rest < most ? rest : most);
	l->n = 0;
}

int lift_turn(struct worker *w)
{
	struct lift *l = &w->lift;
	uint64_t left_ms;

	if (l->n && l->ended)
		run_end(w);
	if (!l->n && w->disk && atomic_load(&w->dev->lifting) && now_ns() >= l->rest_until_ns)
		run_begin(w);
	if (l->n || !w->disk || !atomic_load(&w->dev->lifting))
		return 1000; /* the disk, or who switches it on, wakes us */
	left_ms = elapsed_ns(l->rest_until_ns, now_ns()) / MILLISECOND + 1;
	return left_ms < 1000 ? (int)left_ms : 1000;
}
