/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writeback.c - payload slots on their way to the disk, in the order in which pages were written: kept back for a
 * moment, written, tried again, and given up to donors that have the page.
 */
#include "core.h"

static bool is_current(const struct ne_page *p, uint32_t slot)
{
	return stands_in(p, atomic_load(&p->a), slot);
}

/* Marks the page as being written to disk from this slot. False: somebody else's write of it is in flight. */
bool disk_mark(struct ne_page *p)
{
	uint64_t a = atomic_load(&p->a);

	return !(a & P_DBUSY) && atomic_compare_exchange_strong(&p->a, &a, a | P_DBUSY);
}

static uint32_t dop_slot(const struct worker *w, const struct dop *d, uint32_t i)
{
	return slot_number(w, d->slot_pos + i);
}

static void dop_answer(struct worker *w, struct dop *d, int err)
{
	struct req *rq = d->req;

	d->req = NULL;
	if (!rq || rq->serial != d->serial)
		return;
	if (err && rq->need_disk)
		rq->error = EIO;
	rq->disk_left--;
	if (!rq->disk_left && !rq->ops && rq->cursor == rq->pages)
		req_answer(w, rq);
}

/* Counts payload that the disk has refused for good so far: a FLUSH must not wait for it for ever. */
static void dop_stick(struct worker *w, struct dop *d, bool stuck)
{
	if (d->stuck != stuck)
		atomic_fetch_add(&w->dev->disk_stuck, stuck ? 1 : -1);
	d->stuck = stuck;
}

static void dop_free(struct worker *w, struct dop *d)
{
	dop_answer(w, d, 0);
	dop_stick(w, d, false);
	d->next = w->dop_free;
	w->dop_free = d;
}

static void dop_append(struct dop ***end, struct dop *d)
{
	d->next = NULL;
	**end = d;
	*end = &d->next;
}

/* Splits off what lies behind the first n pages. */
static struct dop *dop_split(struct worker *w, struct dop *d, uint32_t n)
{
	struct dop *rest = w->dop_free;

	w->dop_free = rest->next;
	*rest = *d;
	rest->stuck = false;
	rest->first += n;
	rest->slot_pos += n;
	rest->n -= n;
	if (rest->req && rest->req->serial == rest->serial)
		rest->req->disk_left++;
	d->n = n;
	return rest;
}

static void dop_post(struct worker *w, struct dop *d)
{
	d->dio = (struct ne_dio){.op = NE_IO_WRITE,
				 .length = d->n * NE_PAGE_BYTES,
				 .owner = d,
				 .posted_ns = now_ns(),
				 .offset = (uint64_t)d->first * NE_PAGE_BYTES,
				 .buf = ring_at(&w->slots, d->slot_pos)};
	ne_disk_post(w->disk, &d->dio);
	w->disk_dirty = true;
}

/*
 * Writes what of d is still the newest and not being written by somebody; drops what is superseded; parks the rest.
 * A page is checked again once its mark is ours: from then on newer content has to wait for us.
 */
static void dop_try(struct worker *w, struct dop *d)
{
	while (d) {
		struct dop *rest = NULL;
		uint32_t n = 0, old = 0;

		while (old < d->n && !is_current(&w->dev->page[d->first + old], dop_slot(w, d, old)))
			old++;
		if (old) { /* superseded: nobody will look for it on disk */
			if (old < d->n)
				rest = dop_split(w, d, old);
			ring_drop(&w->slots, d->slot_pos, d->n, d->hold);
			dop_free(w, d);
			d = rest;
			continue;
		}
		while (w->disk && n < d->n && n < 256) {
			struct ne_page *p = &w->dev->page[d->first + n];

			if (!disk_mark(p))
				break;
			if (!is_current(p, dop_slot(w, d, n))) {
				page_change(w->dev, p, 0, P_DBUSY);
				break;
			}
			n++;
		}
		/* its client is gone, so nobody will write it again; what the mover keeps had no client */
		if (!n && !w->disk && !w->cs->live && w->idx != NE_MOVER) {
			page_forget_slot(w->dev, &w->dev->page[d->first], dop_slot(w, d, 0));
			continue;
		}
		if (!n) {
			d->retry_ns = w->disk ? 0 : now_ns() + 10000000;
			dop_append(&w->dop_wait_end, d);
			return;
		}
		if (n < d->n)
			rest = dop_split(w, d, n);
		dop_post(w, d);
		d = rest;
	}
}

#define KEPT_NS	   50000000ull
#define KEPT_PAGES 256u

/*
 * A write that nobody waits for is kept back for a moment: what comes after it goes to the disk in the same call,
 * beside it there for the most part, and content that is replaced meanwhile never goes. It is in memory that outlives
 * us.
 */
static void dop_keep(struct worker *w, struct dop *d)
{
	if (!w->dop_kept)
		w->kept_ns = now_ns();
	dop_append(&w->dop_kept_end, d);
	w->kept_pages += d->n;
	if (w->kept_pages >= KEPT_PAGES)
		dop_hurry(w);
}

/* What is kept back goes now. */
void dop_hurry(struct worker *w)
{
	struct dop *d = w->dop_kept, *next;

	w->dop_kept = NULL;
	w->dop_kept_end = &w->dop_kept;
	w->kept_pages = 0;
	for (; d; d = next) {
		next = d->next;
		dop_try(w, d);
	}
}

/* Until what is kept back has to go; UINT64_MAX where there is nothing. */
uint64_t dop_kept_left_ns(const struct worker *w, uint64_t now)
{
	uint64_t age = elapsed_ns(now, w->kept_ns);

	if (!w->dop_kept)
		return UINT64_MAX;
	return age < KEPT_NS ? KEPT_NS - age : 0;
}

void dop_make(struct worker *w, struct req *rq, uint32_t first, uint32_t n, uint64_t slot_pos)
{
	struct dop *d = w->dop_free;

	w->dop_free = d->next;
	*d = (struct dop){.req = rq,
			  .serial = rq ? rq->serial : 0,
			  .first = first,
			  .n = n,
			  .slot_pos = slot_pos,
			  .hold = rq ? HOLD_DISK : HOLD_OLD};
	for (uint32_t i = 0; i < n; i++)
		ring_hold(&w->slots, slot_pos + i, d->hold);
	if (rq)
		rq->disk_left++;
	if (rq && !rq->need_disk) {
		dop_keep(w, d);
		return;
	}
	w->disk_awaited = true;
	dop_try(w, d);
}

static bool a_donor_has_it(const struct ne_device *dev, uint32_t page, uint64_t a)
{
	for (int h = 0; h < NE_HOMES; h++) {
		uint64_t word = atomic_load(&dev->cluster[page / NE_CLUSTER_PAGES].home[h]);

		if (a & P_R(h) && word & H_VALID && donor_is(dev, dev->slabs[H_SLAB(word)].donor, NE_DONOR_UP))
			return true;
	}
	return false;
}

/* The page has reached the disk, or cannot: if it is still this content, the slot need not be kept. */
static void page_landed(struct ne_device *dev, uint32_t page, uint32_t slot, bool good)
{
	struct ne_page *p = &dev->page[page];
	uint64_t a = atomic_load(&p->a), to;

	do {
		bool ours = stands_in(p, a, slot);

		to = a & ~P_DBUSY;
		if (ours && good)
			to = (to | P_DISK) & ~P_PEND;
		else if (ours && a_donor_has_it(dev, page, a))
			to &= ~P_PEND; /* remote alone has it from now on */
	} while (!page_swap(dev, p, &a, to));
}

/*
 * A disk write ended. One that failed is tried again; then pages that a donor has are left to it, and those that
 * nobody has stay pending for good, tried once a second: an accepted page is never dropped.
 */
void dop_done(struct worker *w, struct ne_dio *dio)
{
	struct dop *d = dio->owner;
	bool good = !dio->status;

	if (!good) {
		w->stats.disk_errors++;
		if (++d->attempts < 4) {
			for (uint32_t i = 0; i < d->n; i++)
				page_change(w->dev, &w->dev->page[d->first + i], 0, P_DBUSY);
			d->retry_ns = now_ns() + 1000000;
			dop_append(&w->dop_wait_end, d);
			return;
		}
		dev_event(w->dev, NE_EVENT_DISK_ERROR, (uint32_t)-dio->status, d->first, 0, 0);
		dop_answer(w, d, EIO);
		dop_stick(w, d, true);
	}
	for (uint32_t i = 0; i < d->n; i++)
		page_landed(w->dev, d->first + i, dop_slot(w, d, i), good);
	if (!good) {
		d->retry_ns = now_ns() + 1000000000;
		dop_append(&w->dop_wait_end, d); /* dop_try() drops what has become superseded or remote only */
		return;
	}
	w->stats.pages_out_disk += d->n;
	ring_drop(&w->slots, d->slot_pos, d->n, d->hold);
	dop_free(w, d);
}

/* Tries parked writes again. */
void dop_retry(struct worker *w, uint64_t now)
{
	struct dop *d = w->dop_wait, *next;

	w->dop_wait = NULL;
	w->dop_wait_end = &w->dop_wait;
	for (; d; d = next) {
		next = d->next;
		if (now < d->retry_ns)
			dop_append(&w->dop_wait_end, d);
		else
			dop_try(w, d);
	}
}
