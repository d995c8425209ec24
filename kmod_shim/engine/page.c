/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page.c - the page path: reads and writes of pages at donors, replica and disk.
 *
 * Reads try in order: pending slot, remote (checksum verified), replica, disk; if all fail, EIO. [infiniswap §2.4.3]
 * Writes: claim, then to every writable home at once and, from the same buffer, to disk; answered when remote.
 * core.h states the rules of the words changed here.
 */
#include "core.h"

struct target {
	int home;
	uint64_t word;
	uint32_t slab, entered;
	uint8_t *base; /* NULL: through the link */
};

static struct ne_page *page_of(struct worker *w, uint32_t page)
{
	return &w->dev->page[page];
}
static uint32_t req_first(const struct req *rq)
{
	return (uint32_t)(rq->log->offset / NE_PAGE_BYTES);
}

static uint32_t run_in_cluster(uint32_t page, uint32_t n)
{
	uint32_t left = NE_CLUSTER_PAGES - page % NE_CLUSTER_PAGES;

	return n < left ? n : left;
}

static void count_activity(struct worker *w, uint32_t page, uint32_t n)
{
	uint32_t *activity = w->dev->activity + (uint64_t)w->idx * w->dev->clusters;

	for (uint32_t run; n; page += run, n -= run) {
		run = run_in_cluster(page, n);
		activity[page / NE_CLUSTER_PAGES] += run;
	}
}

/* ------------------------------------------------------------------ writes */

static void unclaim(struct worker *w, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		page_change(w->dev, page_of(w, first + i), 0, P_CLAIM);
}

static bool claim_all(struct worker *w, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!page_claim(page_of(w, first + i))) {
			unclaim(w, first, i);
			return false;
		}
	return true;
}

/*
 * Gives a claimed page new content's words: one sequence up, these sources, nothing of the old ones. The disk write
 * that may be in flight for older content keeps its mark. WIP must stand when b changes.
 */
static void publish(struct ne_device *dev, struct ne_page *p, uint64_t bits, uint32_t crc, uint32_t slot)
{
	uint64_t a, to;

	atomic_store_explicit(&p->b, (uint64_t)slot << 32 | crc, memory_order_release);
	a = atomic_load_explicit(&p->a, memory_order_relaxed);
	do {
		to = ((a + 1) & P_SEQ) | bits | dev->sealed | (a & P_DBUSY);
	} while (!page_swap(dev, p, &a, to));
}

/* Homes of the cluster that take writes now; each found one is entered. */
static int targets_find(struct worker *w, uint32_t cluster, struct target t[NE_HOMES], bool *async)
{
	struct ne_cluster *c = &w->dev->cluster[cluster];
	int n = 0;

	*async = false;
	for (int h = 0; h < NE_HOMES; h++) {
		uint64_t word = atomic_load(&c->home[h]);
		uint32_t slab = H_SLAB(word), donor;

		if (!(word & H_VALID) || !(word & H_WRITE))
			continue;
		donor = w->dev->slabs[slab].donor;
		if (!donor_is(w->dev, donor, NE_DONOR_UP))
			continue;
		t[n] = (struct target){.home = h, .word = word, .slab = slab};
		if (!slab_is_in_reach(w, slab, &t[n].base))
			continue;
		if (!slab_enter(w, c, h, word, &t[n].entered)) {
			h--; /* it changed under us: look again */
			continue;
		}
		*async |= !t[n].base;
		n++;
	}
	return n;
}

static void targets_leave(struct worker *w, const struct target *t, int n)
{
	while (n--)
		slab_leave(w, t[n].entered);
}

static bool home_is_missing(struct worker *w, uint32_t cluster)
{
	struct ne_cluster *c = &w->dev->cluster[cluster];

	for (int h = 0; h < NE_HOMES; h++)
		if (atomic_load_explicit(&c->home[h], memory_order_relaxed) & H_WRITE)
			return false;
	return true;
}

void page_tell_wanted(struct worker *w, uint32_t cluster)
{
	struct ne_cluster *c = &w->dev->cluster[cluster];

	if (home_is_missing(w, cluster) && !atomic_load_explicit(&c->wanted, memory_order_relaxed) &&
	    !atomic_exchange(&c->wanted, 1))
		dev_event(w->dev, NE_EVENT_WANT, cluster, 0, 0, 0);
}

/* One non-zero page to the homes that are memory here, and its words. Returns nothing: it cannot fail. */
static void write_page(struct worker *w, uint32_t page, const uint8_t *src, uint64_t slot_pos, bool inlined,
		       const struct target *t, int targets, uint64_t keep)
{
	struct ne_page *p = page_of(w, page);
	/* As publish() will have it: only the claim's owner changes the sequence. */
	uint64_t content = content_of(((atomic_load(&p->a) + 1) & P_SEQ) | w->dev->sealed);
	uint32_t crc = 0, slot = 0;
	uint64_t bits = keep;
	bool have_crc = false;

	if (slot_pos != UINT64_MAX) {
		slot = slot_number(w, slot_pos);
		if (inlined) {
			crc = ne_copy_crc32c(ring_at(&w->slots, slot_pos), src, NE_PAGE_BYTES);
			have_crc = true;
		}
		src = ring_at(&w->slots, slot_pos);
	}
	atomic_fetch_or(&p->a, P_WIP);
	atomic_thread_fence(memory_order_seq_cst); /* the copies below come behind it */
	for (int i = 0; i < targets; i++) {
		uint8_t *there = t[i].base ? t[i].base + extent_offset(t[i].word, page) : NULL;

		if (!there)
			continue;
		if (w->dev->sealed && !have_crc)
			crc = ne_crc32c(src, NE_PAGE_BYTES);
		if (w->dev->sealed)
			ne_seal_page(w->seal, there, src, page, content);
		else if (have_crc)
			memcpy(there, src, NE_PAGE_BYTES);
		else
			crc = ne_copy_crc32c(there, src, NE_PAGE_BYTES);
		have_crc = true;
		bits |= P_R(t[i].home);
	}
	if (!have_crc)
		crc = ne_crc32c(src, NE_PAGE_BYTES);
	publish(w->dev, p, bits, crc, slot);
}

static void wop_end(struct worker *w, struct wop *wop)
{
	struct req *rq = wop->req;
	bool disk = w->dev->disk_fd >= 0;
	uint64_t drop = P_CLAIM | (!disk && wop->rbits ? P_PEND : 0);

	for (uint32_t i = 0; i < wop->n; i++)
		page_change(w->dev, page_of(w, wop->first + i), wop->rbits, drop);
	if (!wop->rbits) {
		w->stats.writes_round += wop->n;
		rq->need_disk = true;
		rq->again |= !disk;
		worker_hurry(w);
	}
	if (wop->sealed_pos != UINT64_MAX)
		ring_drop(&w->stage, wop->sealed_pos, wop->n, HOLD_REQ);
	rq->ops--;
	wop->next = w->wop_free;
	w->wop_free = wop;
}

static void count_pages_out(struct worker *w, bool second, uint32_t n)
{
	*(second ? &w->stats.pages_out_replica : &w->stats.pages_out_remote) += n;
}

void page_write_ended(struct worker *w, struct act *act)
{
	struct wop *wop = act->wop;

	if (!act->io.status) {
		count_pages_out(w, wop->rbits != 0, wop->n);
		wop->rbits |= P_R(act->home);
	}
	if (--wop->left == 0) {
		struct req *rq = wop->req;

		wop_end(w, wop);
		if (!rq->ops && rq->cursor == rq->pages)
			req_answer(w, rq);
	}
}

/* What donors are given of a run that has its words and slots: sealed, at sealed_pos of the stage, unless that is none.
 */
static uint8_t *run_outgoing(struct worker *w, uint32_t first, uint32_t n, uint64_t slot_pos, uint64_t sealed_pos)
{
	if (sealed_pos == UINT64_MAX)
		return ring_at(&w->slots, slot_pos);
	for (uint32_t i = 0; i < n; i++)
		ne_seal_page(w->seal, ring_at(&w->stage, sealed_pos + i), ring_at(&w->slots, slot_pos + i), first + i,
			     content_of(atomic_load(&page_of(w, first + i)->a)));
	return ring_at(&w->stage, sealed_pos);
}

/* A run of pages with slots, to homes behind links. The claims stay until all have answered. */
static void write_remote(struct worker *w, struct req *rq, uint32_t first, uint32_t n, uint64_t slot_pos,
			 uint64_t sealed_pos, const struct target *t, int targets)
{
	uint8_t *outgoing = run_outgoing(w, first, n, slot_pos, sealed_pos);
	struct wop *wop = w->wop_free;

	w->wop_free = wop->next;
	*wop = (struct wop){.req = rq, .first = first, .n = n, .left = 1, .sealed_pos = sealed_pos};
	rq->ops++;
	for (int i = 0; i < targets; i++) {
		struct act *act;

		if (t[i].base) {
			wop->rbits |= P_R(t[i].home);
			continue;
		}
		atomic_fetch_add(&w->inflight[t[i].entered], 1); /* the target is entered, so this is safe */
		act = act_make(w, NE_IO_WRITE, (uint8_t)t[i].home, t[i].word, first, n, outgoing, t[i].entered);
		act->wop = wop;
		wop->left++;
		act_post(w, act);
	}
	if (--wop->left == 0)
		wop_end(w, wop); /* every post failed at once */
}

static bool write_room(const struct worker *w)
{
	const struct act *a = w->act_free;

	for (int i = 0; i < NE_HOMES; i++, a = a->next)
		if (!a)
			return false;
	return w->wop_free != NULL;
}

/* Room in the stage for up to n pages to be sealed; how many. 0: none now. */
static uint32_t sealed_room(struct worker *w, uint32_t n, uint64_t *pos)
{
	*pos = UINT64_MAX;
	if (!w->dev->sealed)
		return n;
	for (; n && *pos == UINT64_MAX; n = *pos == UINT64_MAX ? n / 2 : n)
		*pos = ring_take(&w->stage, n, HOLD_REQ);
	return n;
}

/*
 * Issues the part of a write that lies in one cluster, its pages claimed. -EAGAIN: no room for another operation now;
 * rq->cursor says how far it came. -EBUSY: homes changed since write_check(); nothing was done.
 */
static int write_cluster(struct worker *w, struct req *rq, uint32_t n, const uint8_t *payload)
{
	bool disk = w->dev->disk_fd >= 0, async;
	uint32_t first = req_first(rq) + rq->cursor, cluster = first / NE_CLUSTER_PAGES;
	struct target t[NE_HOMES];
	int targets = targets_find(w, cluster, t, &async);
	uint64_t keep = async ? P_PEND | P_CLAIM : disk ? P_PEND : 0;
	uint64_t slots = rq->log->slot_pos;
	uint32_t i = 0;

	if ((!targets && !disk) || (async && slots == UINT64_MAX)) {
		targets_leave(w, t, targets);
		return -EBUSY;
	}
	if (!targets) {
		rq->need_disk = true;
		worker_hurry(w); /* its first part may be kept back */
		page_tell_wanted(w, cluster);
	}
	while (i < n) {
		uint32_t at = rq->cursor, run = 0, most = n - i;
		uint64_t sealed_pos = UINT64_MAX;

		if (async && (!write_room(w) || !(most = sealed_room(w, n - i, &sealed_pos))))
			break;
		for (; run < most; run++) {
			uint64_t pos = slots == UINT64_MAX ? slots : slots + at + run;
			const uint8_t *src =
				payload ? payload + (uint64_t)(at + run) * NE_PAGE_BYTES : ring_at(&w->slots, pos);

			if (ne_page_is_zero(src))
				break;
			write_page(w, first + i + run, src, pos, payload != NULL, t, targets, keep);
		}
		if (sealed_pos != UINT64_MAX)
			ring_drop(&w->stage, sealed_pos + run, most - run, HOLD_REQ);
		if (run && async)
			write_remote(w, rq, first + i, run, slots + at, sealed_pos, t, targets);
		if (run && disk)
			dop_make(w, rq, first + i, run, slots + at);
		for (int k = 0; k < targets && !async; k++)
			count_pages_out(w, k > 0, run);
		rq->cursor += run;
		i += run;
		for (; i < n; i++, rq->cursor++) { /* zero pages: words only */
			const uint8_t *src = payload ? payload + (uint64_t)rq->cursor * NE_PAGE_BYTES
						     : ring_at(&w->slots, slots + rq->cursor);
			struct ne_page *p = page_of(w, first + i);

			if (!ne_page_is_zero(src))
				break;
			if (payload && slots != UINT64_MAX) /* it may have to be done again from there */
				memset(ring_at(&w->slots, slots + rq->cursor), 0, NE_PAGE_BYTES);
			atomic_fetch_or(&p->a, P_WIP);
			publish(w->dev, p, 0, 0, 0);
			w->stats.pages_out_zero++;
		}
	}
	targets_leave(w, t, targets);
	count_activity(w, first, i);
	return i == n ? 0 : -EAGAIN;
}

/* Looks, pages claimed, whether every cluster of a write can be served, and whether it takes slots. */
static int write_check(struct worker *w, const struct req *rq, bool *slots)
{
	uint32_t page = req_first(rq), end = page + rq->pages;
	bool disk = w->dev->disk_fd >= 0;

	*slots = disk;
	while (page < end && !disk) {
		struct target t[NE_HOMES];
		bool async;
		int n = targets_find(w, page / NE_CLUSTER_PAGES, t, &async);

		targets_leave(w, t, n);
		if (!n)
			return -EBUSY;
		*slots |= async;
		page += run_in_cluster(page, end - page);
	}
	return 0;
}

/*
 * Starts, or goes on with, a WRITE. payload: the bytes where they were received (then rq is not logged and has no
 * slots yet); NULL: they stand in rq's slots.
 */
int page_write(struct worker *w, struct req *rq, const uint8_t *payload)
{
	uint32_t first = req_first(rq);
	bool slots;

	if (!rq->claimed) {
		int rc;

		if (!claim_all(w, first, rq->pages))
			return -EBUSY;
		rc = write_check(w, rq, &slots);
		if (!rc && payload && slots) {
			rq->log->slot_pos = ring_take(&w->slots, rq->pages, HOLD_REQ);
			rc = rq->log->slot_pos == UINT64_MAX ? -EAGAIN : 0;
		}
		if (rc) {
			unclaim(w, first, rq->pages);
			return rc;
		}
		rq->claimed = true;
		rq->cursor = 0;
		rq->again = false;
		rq->need_disk = rq->log->flags & 1; /* FUA */
	}
	while (rq->cursor < rq->pages) {
		uint32_t n = run_in_cluster(first + rq->cursor, rq->pages - rq->cursor);

		int rc = write_cluster(w, rq, n, payload);

		if (rc == -EBUSY) {
			unclaim(w, first + rq->cursor, rq->pages - rq->cursor);
			rq->claimed = false;
		}
		if (rc)
			return rc;
	}
	if (!rq->ops)
		req_answer(w, rq);
	return 0;
}

/*
 * A write is given up: a page that still stands in its slots has no content any more. Where there is a disk nothing is
 * to be done, its write holds the slots.
 */
void page_write_abandon(struct worker *w, struct req *rq)
{
	for (uint32_t i = 0; i < rq->pages && w->dev->disk_fd < 0; i++)
		page_forget_slot(w->dev, page_of(w, req_first(rq) + i), slot_number(w, rq->log->slot_pos + i));
}

/* The page does not stand in that slot any more. */
void page_forget_slot(struct ne_device *dev, struct ne_page *p, uint32_t slot)
{
	uint64_t a = atomic_load(&p->a);

	do {
		if (!stands_in(p, a, slot))
			return;
	} while (!page_swap(dev, p, &a, without_copy(a, P_PEND)));
}

/* TRIM and WRITE_ZEROES: the pages read as zeros from now on, whatever stores still hold. */
int page_zero(struct worker *w, struct req *rq)
{
	uint32_t first = req_first(rq), n = rq->pages;

	for (; rq->cursor < n; rq->cursor++) { /* page by page: all claims at once may never be had */
		struct ne_page *p = page_of(w, first + rq->cursor);

		if (!page_claim(p))
			return -EBUSY;
		atomic_fetch_or(&p->a, P_WIP);
		publish(w->dev, p, 0, 0, 0);
	}
	for (uint32_t page = first; page < first + n; page += run_in_cluster(page, first + n - page)) {
		bool whole = page % NE_CLUSTER_PAGES == 0 && first + n - page >= NE_CLUSTER_PAGES;

		if (whole && w->dev->disk_fd >= 0 && !home_is_missing(w, page / NE_CLUSTER_PAGES))
			dev_event(w->dev, NE_EVENT_CLUSTER_FREE, page / NE_CLUSTER_PAGES, 0, 0, 0);
	}
	req_answer(w, rq);
	return 0;
}

/* ------------------------------------------------------------------ reads */

enum from { FROM_ZERO, FROM_PEND, FROM_MEMORY, FROM_LINK, FROM_DISK, FROM_AGAIN, FROM_WAIT, FROM_LOST };

struct source {
	enum from from;
	uint64_t a, b; /* the words that were current */
	int home;
	uint64_t word;
	uint8_t *base;
};

static void source_offer(struct source *s, enum from from, int home, uint64_t word, uint8_t *base)
{
	static const uint8_t rank[] = {
		[FROM_MEMORY] = 5, [FROM_LINK] = 4, [FROM_DISK] = 3, [FROM_WAIT] = 1, [FROM_LOST] = 0};

	if (rank[from] > rank[s->from]) {
		s->from = from;
		s->home = home;
		s->word = word;
		s->base = base;
	}
}

/* What home h offers for the page: a suspect donor is asked only when there is nothing better. */
static void source_home(struct worker *w, struct source *s, uint32_t page, int h)
{
	uint64_t word = atomic_load(&w->dev->cluster[page / NE_CLUSTER_PAGES].home[h]);
	uint32_t donor = w->dev->slabs[H_SLAB(word)].donor;
	uint32_t state = atomic_load_explicit(&w->dev->head->donor_state[donor], memory_order_acquire);
	uint8_t *base;

	if (!(word & H_VALID))
		return;
	if (state == NE_DONOR_FAILED || state == NE_DONOR_NONE)
		return;
	if (!slab_is_in_reach(w, H_SLAB(word), &base) || (!base && state != NE_DONOR_UP))
		source_offer(s, FROM_WAIT, h, word, NULL);
	else
		source_offer(s, base ? FROM_MEMORY : FROM_LINK, h, word, base);
}

/* The best place to read a page from, with the words that say what must be found there. */
static struct source source_find(struct worker *w, uint32_t page, uint8_t avoid)
{
	struct ne_page *p = page_of(w, page);
	struct source s = {.from = FROM_AGAIN, .home = -1};

	s.a = atomic_load_explicit(&p->a, memory_order_acquire);
	if (s.a & P_WIP)
		return s;
	s.b = atomic_load_explicit(&p->b, memory_order_acquire);
	if (((atomic_load(&p->a) ^ s.a) & (P_SEQ | P_WIP | P_PEND)) != 0)
		return s;
	s.from = FROM_LOST;
	if (!(s.a & P_SOURCES)) {
		s.from = s.a & P_LOST ? FROM_LOST : FROM_ZERO;
		return s;
	}
	if (s.a & P_PEND) {
		s.from = FROM_PEND;
		return s;
	}
	if (s.a & P_DISK && !(avoid & 1 << HOME_DISK))
		source_offer(&s, FROM_DISK, HOME_DISK, 0, NULL);
	for (int h = 0; h < NE_HOMES; h++)
		if (s.a & P_R(h) && !(avoid & 1 << h))
			source_home(w, &s, page, h);
	if (s.from == FROM_LOST && atomic_load(&p->a) != s.a)
		s.from = FROM_AGAIN; /* it went elsewhere while we looked */
	return s;
}

/* That copy is not what was written: no read may find it again. */
static void copy_drop(struct worker *w, uint32_t page, const struct source *s, bool is_empty)
{
	struct ne_page *p = page_of(w, page);
	uint64_t bit = s->home == HOME_DISK ? P_DISK : P_R(s->home), a = atomic_load(&p->a);

	while (!((a ^ s->a) & P_CONTENT) && a & bit) {
		if (!page_swap(w->dev, p, &a, without_copy(a, bit)))
			continue;
		w->stats.checksum_errors++;
		dev_event(w->dev, NE_EVENT_CHECKSUM,
			  s->home == HOME_DISK ? UINT32_MAX : w->dev->slabs[H_SLAB(s->word)].donor, page, is_empty, 0);
		return;
	}
}

/* With replicas the first home is called remote, the others replica. */
static void count_page_in(struct worker *w, int home)
{
	if (home == HOME_DISK)
		w->stats.pages_in_disk++;
	else if (home && has_replicas(w->dev))
		w->stats.pages_in_replica++;
	else
		w->stats.pages_in_remote++;
}

/* Copies a page that is memory of ours or of a donor here. False: the words moved meanwhile, look again. */
static bool source_copy(struct worker *w, uint32_t page, const struct source *s, uint8_t *dst)
{
	struct ne_page *p = page_of(w, page);
	struct ne_cluster *c = &w->dev->cluster[page / NE_CLUSTER_PAGES];
	const uint8_t *there;
	uint32_t crc, entered;
	bool is_empty;

	if (s->from == FROM_ZERO) {
		memset(dst, 0, NE_PAGE_BYTES);
		w->stats.pages_in_zero++;
		return true;
	}
	if (s->from == FROM_PEND) {
		memcpy(dst, slot_memory(w->dev, (uint32_t)(s->b >> 32)), NE_PAGE_BYTES);
		atomic_thread_fence(memory_order_acquire);
		if (((atomic_load(&p->a) ^ s->a) & (P_SEQ | P_WIP | P_PEND)) != 0)
			return false;
		w->stats.pages_in_pending++;
		return true;
	}
	if (!slab_enter(w, c, s->home, s->word, &entered))
		return false;
	there = s->base + extent_offset(s->word, page);
	if (s->a & P_SEALED) {
		ne_open_page(w->seal, dst, there, page, content_of(s->a));
		crc = ne_crc32c(dst, NE_PAGE_BYTES);
	} else {
		crc = ne_copy_crc32c(dst, there, NE_PAGE_BYTES);
	}
	is_empty = crc != (uint32_t)s->b && page_is_zeros(there); /* while it is ours to look at */
	slab_leave(w, entered);
	if (crc == (uint32_t)s->b) {
		count_page_in(w, s->home);
		return true;
	}
	atomic_thread_fence(memory_order_acquire);
	if (atomic_load(&p->a) == s->a)
		copy_drop(w, page, s, is_empty);
	w->stats.reads_retried++;
	return false;
}

/* Counts the pages of a read that fails because of them: those that have no copy but in places not to be asked. */
static void count_lost(struct worker *w, uint32_t first, uint32_t n, uint8_t avoid)
{
	for (uint32_t i = 0; i < n; i++)
		w->stats.pages_lost += source_find(w, first + i, avoid).from == FROM_LOST;
}

int page_read_now(struct worker *w, struct req *rq, uint8_t *dst)
{
	uint32_t first = req_first(rq);

	for (uint32_t i = 0; i < rq->pages; i++) {
		struct source s;
		int tries = 0;

		do {
			s = source_find(w, first + i, 0);
			if (s.from == FROM_LOST) {
				count_lost(w, first, rq->pages, 0);
				return -EIO;
			}
			if (s.from > FROM_MEMORY || ++tries > 64)
				return -EAGAIN;
		} while (!source_copy(w, first + i, &s, dst + (uint64_t)i * NE_PAGE_BYTES));
	}
	count_activity(w, first, rq->pages);
	return 0;
}

#define IN_FLIGHT  ((const uint8_t *)1)
#define DISK_TRIES 16u /* of a page that is there and can't be had */

static bool page_has(const struct req *rq, uint32_t i)
{
	return rq->src[i] && rq->src[i] != IN_FLIGHT;
}

/* A page has come. Where a read that was hedged is still out for it, the second copy was quicker. */
static void count_won(struct worker *w, const struct req *rq, uint32_t page)
{
	for (struct rio *rio = rq->hedged ? rq->rios : NULL; rio; rio = rio->next)
		if (rio->hedged && !rio->won && !rio->ended && page - rio->first < rio->n) {
			rio->won = true;
			w->stats.hedges_won++;
		}
}

static struct rio *rio_make(struct worker *w, struct req *rq, uint32_t at, uint32_t n, uint8_t home)
{
	struct rio *rio = w->rio_free;
	uint64_t pos = rio ? ring_take(&w->stage, n, HOLD_REQ) : UINT64_MAX;

	if (pos == UINT64_MAX)
		return NULL;
	w->rio_free = rio->next;
	*rio = (struct rio){.req = rq, .first = req_first(rq) + at, .n = n, .at = at, .stage_pos = pos, .home = home};
	rio->next = rq->rios;
	rq->rios = rio;
	return rio;
}

static void rio_free(struct worker *w, struct rio *rio)
{
	ring_drop(&w->stage, rio->stage_pos, rio->n, HOLD_REQ);
	rio->next = w->rio_free;
	w->rio_free = rio;
}

static void rio_unlink(struct worker *w, struct req *rq, struct rio *rio)
{
	struct rio **at = &rq->rios;

	while (*at != rio)
		at = &(*at)->next;
	*at = rio->next;
	rio_free(w, rio);
}

void page_req_release(struct worker *w, struct req *rq)
{
	while (rq->rios) {
		struct rio *rio = rq->rios;

		rq->rios = rio->next;
		if (rio->ended)
			rio_free(w, rio);
		else
			rio->req = NULL;
	}
}

static void expect(struct worker *w, struct rio *rio, uint32_t i, const struct source *s)
{
	uint32_t at = ring_index(&w->stage, rio->stage_pos + i);

	w->stage_word[at] = s->a & P_CONTENT;
	w->stage_crc[at] = (uint32_t)s->b;
}

/* How many pages from i on come from the same place, one behind the other. */
static uint32_t source_run(struct worker *w, struct req *rq, uint32_t i, const struct source *s, struct source *each)
{
	uint32_t first = req_first(rq), most = run_in_cluster(first + i, rq->pages - i), n = 1;

	if (s->from == FROM_DISK && most > 256)
		most = 256;
	each[0] = *s;
	while (n < most && !page_has(rq, i + n) && rq->src[i + n] != IN_FLIGHT) {
		each[n] = source_find(w, first + i + n, rq->avoid);
		if (each[n].from != s->from || each[n].home != s->home || each[n].word != s->word)
			break;
		n++;
	}
	return n;
}

/* Asks a donor or the disk for the run that begins at page i. 0 when there is no room for it now. */
static uint32_t read_post(struct worker *w, struct req *rq, uint32_t i, const struct source *s)
{
	struct source each[NE_CLUSTER_PAGES];
	uint32_t n = source_run(w, rq, i, s, each), entered = 0;
	struct rio *rio = NULL;

	for (; n && !rio && w->act_free; n = rio ? n : n / 2) /* where staging is short, in smaller parts */
		rio = rio_make(w, rq, i, n, (uint8_t)s->home);
	if (!rio)
		return 0;
	if (s->from == FROM_LINK &&
	    !slab_enter(w, &w->dev->cluster[rio->first / NE_CLUSTER_PAGES], s->home, s->word, &entered)) {
		rio_unlink(w, rq, rio);
		return 0;
	}
	for (uint32_t k = 0; k < n; k++) {
		expect(w, rio, k, &each[k]);
		rq->src[i + k] = IN_FLIGHT;
	}
	rio->word = s->word;
	rio->posted_ns = now_ns();
	rq->ops++;
	if (s->from == FROM_DISK) {
		rio->dio = (struct ne_dio){.op = NE_IO_READ,
					   .length = n * NE_PAGE_BYTES,
					   .owner = rio,
					   .offset = (uint64_t)rio->first * NE_PAGE_BYTES,
					   .buf = ring_at(&w->stage, rio->stage_pos),
					   .posted_ns = rio->posted_ns};
		ne_disk_post(w->disk, &rio->dio);
		w->disk_dirty = true;
		w->disk_awaited = true;
	} else {
		struct act *act = act_make(w, NE_IO_READ, (uint8_t)s->home, s->word, rio->first, n,
					   ring_at(&w->stage, rio->stage_pos), entered);

		act->rio = rio;
		act_post(w, act);
	}
	return n;
}

/* A page that needs no waiting, within a request that does. */
static bool read_here(struct worker *w, struct req *rq, uint32_t i, const struct source *s)
{
	struct rio *rio = rio_make(w, rq, i, 1, HOME_HERE);

	if (!rio)
		return false;
	rio->ended = true;
	if (source_copy(w, rio->first, s, ring_at(&w->stage, rio->stage_pos))) {
		rq->src[i] = ring_at(&w->stage, rio->stage_pos);
		rq->done++;
		count_won(w, rq, rio->first);
		return true;
	}
	rio_unlink(w, rq, rio);
	return false;
}

/* Starts, or goes on with, a READ. 0: everything asked for; -EAGAIN: come back; answered when all is there. */
int page_read(struct worker *w, struct req *rq)
{
	uint32_t first = req_first(rq), i = 0;
	int rc = 0;

	rq->ops++; /* keeps it from being answered while we are here */
	while (i < rq->pages && !rq->error) {
		struct source s;

		if (rq->src[i]) {
			i++;
			continue;
		}
		s = source_find(w, first + i, rq->avoid);
		if (s.from <= FROM_MEMORY) {
			if (!read_here(w, rq, i, &s))
				rc = -EAGAIN;
			i++;
		} else if (s.from == FROM_LINK || s.from == FROM_DISK) {
			uint32_t n = read_post(w, rq, i, &s);

			if (!n)
				rc = -EAGAIN;
			i += n ? n : 1;
		} else if (s.from == FROM_LOST && !rq->avoid) {
			rq->error = EIO;
			count_lost(w, first, rq->pages, 0);
		} else {
			if (s.from == FROM_LOST)
				rq->avoid = 0;
			rc = -EAGAIN;
			i++;
		}
	}
	if (!rq->cursor) /* once a request */
		count_activity(w, first, rq->pages);
	rq->cursor = rq->pages;
	rq->ops--;
	if (rq->done == rq->pages || (rq->error && !rq->ops)) {
		req_answer(w, rq);
		return 0;
	}
	return rq->error ? 0 : rc;
}

/* False: what was asked lies elsewhere by now, maybe at another donor, which is not to be blamed for this one. */
static bool home_stands(const struct worker *w, const struct rio *rio)
{
	const struct ne_cluster *c = &w->dev->cluster[rio->first / NE_CLUSTER_PAGES];

	return rio->home >= NE_HOMES || !((atomic_load(&c->home[rio->home]) ^ rio->word) & ~H_WRITE);
}

/* Checks one page that came; false when it must be asked for again. */
static bool read_check(struct worker *w, struct rio *rio, uint32_t i)
{
	uint32_t at = ring_index(&w->stage, rio->stage_pos + i);
	uint8_t *mem = ring_at(&w->stage, rio->stage_pos + i);
	struct ne_page *p = page_of(w, rio->first + i);
	struct source s = {.home = rio->home, .a = w->stage_word[at], .word = rio->word};
	uint64_t a;

	if (s.a & P_SEALED && rio->home < NE_HOMES)
		ne_open_page(w->seal, mem, mem, rio->first + i, content_of(s.a));
	if (ne_crc32c(mem, NE_PAGE_BYTES) == w->stage_crc[at])
		return true;
	a = atomic_load(&p->a);
	if (!((a ^ s.a) & P_CONTENT) && !(a & P_WIP) && home_stands(w, rio))
		copy_drop(w, rio->first + i, &s, false);
	return false;
}

/* Pages for which nobody waits any more, as another copy came first: a donor that lies is found out all the same. */
static void check_late(struct worker *w, struct rio *rio, uint32_t i)
{
	if (rio->home < NE_HOMES)
		read_check(w, rio, i);
}

/* Another part of the request, still under way, will bring that page. */
static bool is_still_asked(const struct req *rq, uint32_t page)
{
	for (const struct rio *rio = rq->rios; rio; rio = rio->next)
		if (!rio->ended && page - rio->first < rio->n)
			return true;
	return false;
}

/*
 * Where the pages that a read of the disk did not bring could come from else, of all of them what is worst: FROM_MEMORY
 * also for a donor's link; FROM_ZERO when another part of the request brings them all.
 */
static enum from besides_disk(struct worker *w, const struct req *rq, const struct rio *rio)
{
	enum from worst = FROM_ZERO;

	for (uint32_t i = 0; i < rio->n; i++) {
		enum from from;

		if (page_has(rq, rio->at + i) || is_still_asked(rq, rio->first + i))
			continue;
		from = source_find(w, rio->first + i, 1 << HOME_DISK).from;
		if (from == FROM_LOST)
			return from;
		worst = from == FROM_WAIT || worst == FROM_WAIT ? FROM_WAIT : FROM_MEMORY;
	}
	return worst;
}

/*
 * The disk has failed a read. What no other place has is asked for a few times more, and is lost then. What a donor has
 * comes from there, also from one that is suspect and not given up yet: EIO only where that has failed for long, too.
 */
static void disk_read_failed(struct worker *w, struct req *rq, const struct rio *rio, int status)
{
	uint64_t long_ns = 8ull * w->dev->params.deadline_ms * 1000000;
	enum from left = besides_disk(w, rq, rio);
	bool often, lost;

	w->stats.disk_errors++;
	dev_event(w->dev, NE_EVENT_DISK_ERROR, (uint32_t)-status, rio->first, 0, 0);
	often = left != FROM_ZERO && ++rq->tries > DISK_TRIES;
	if (left != FROM_LOST && (left != FROM_WAIT || often))
		rq->avoid |= 1 << HOME_DISK;
	lost = left == FROM_LOST || (left == FROM_MEMORY && elapsed_ns(now_ns(), rq->start_ns) > long_ns);
	if (often && lost && !rq->error) {
		rq->error = EIO;
		if (left == FROM_LOST)
			count_lost(w, rio->first, rio->n, 1 << HOME_DISK);
		else
			w->stats.pages_lost += rio->n; /* what donors have of them can't be had either */
	}
}

void page_read_ended(struct worker *w, struct rio *rio, int status)
{
	struct req *rq = rio->req;
	bool used = false;

	rio->ended = true;
	if (!rq) {
		for (uint32_t i = 0; i < rio->n && !status; i++)
			check_late(w, rio, i);
		rio_free(w, rio);
		return;
	}
	rq->ops--;
	if (status && rio->home == HOME_DISK)
		disk_read_failed(w, rq, rio, status);
	else if (status)
		rq->avoid |= (uint8_t)(1u << rio->home); /* page_read() forgets it when nothing else is left */
	for (uint32_t i = 0; i < rio->n; i++) {
		bool has = page_has(rq, rio->at + i), good = false;

		if (has && !status)
			check_late(w, rio, i);
		if (has)
			continue;
		if (!status) {
			good = read_check(w, rio, i);
			w->stats.reads_retried += !good;
		}
		if (good) {
			rq->src[rio->at + i] = ring_at(&w->stage, rio->stage_pos + i);
			rq->done++;
			used = true;
			count_page_in(w, rio->home);
			count_won(w, rq, rio->first + i);
		} else if (!is_still_asked(rq, rio->first + i)) {
			rq->src[rio->at + i] = NULL;
		}
	}
	if (!used)
		rio_unlink(w, rq, rio); /* its room goes to who asks again */
	if (rq->done == rq->pages || (rq->error && !rq->ops))
		req_answer(w, rq);
	else if (!rq->deferred && !rq->error)
		req_defer(w, rq);
}

bool page_second(struct worker *w, const struct rio *rio, const struct hedge_times **ret)
{
	uint8_t avoid = rio->req->avoid | (uint8_t)(1u << rio->home);

	for (uint32_t i = 0; i < rio->n; i++) {
		struct source s;

		if (page_has(rio->req, rio->at + i))
			continue;
		s = source_find(w, rio->first + i, avoid);
		if (s.from == FROM_LOST || s.from == FROM_WAIT)
			continue;
		if (s.from == FROM_DISK)
			*ret = &w->disk_times;
		else if (s.from == FROM_LINK)
			*ret = &w->donor_times[w->dev->slabs[H_SLAB(s.word)].donor];
		else
			*ret = NULL;
		return true; /* its first such page says it for all of them */
	}
	return false;
}

/* The read is late: asks another copy for the same pages, where there is one. Whoever is first, wins. */
void page_hedge(struct worker *w, struct rio *rio)
{
	struct req *rq = rio->req;
	uint8_t avoid;
	bool any = false;

	rio->hedged = true;
	if (!rq)
		return;
	avoid = rq->avoid | (uint8_t)(1u << rio->home);
	for (uint32_t i = 0; i < rio->n; i++) {
		struct source s;

		if (page_has(rq, rio->at + i))
			continue;
		s = source_find(w, rio->first + i, avoid);
		if (s.from == FROM_LOST || s.from == FROM_WAIT)
			continue;
		rq->src[rio->at + i] = NULL;
		any = true;
	}
	if (!any)
		return;
	rq->avoid = avoid;
	rq->hedged = true;
	w->stats.reads_hedged++;
	if (page_read(w, rq) == -EAGAIN && !rq->deferred)
		req_defer(w, rq);
}
