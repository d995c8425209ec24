/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover.c - the mover: a thread that empties slabs, writes missing second copies (for pages that only the disk has:
 * lift.c), and seals pages that donors have in the clear since an older engine wrote them. It claims pages in runs,
 * copies them to the cluster's other writable homes or leaves them to the disk, and gives the claims back; requests for
 * other pages never notice.
 *
 * After a home has lost its writable bit nobody who claims a page later will write there (core.h), so a page seen
 * unclaimed and without that home's bit is finished; when all are, the home is cleared, and when every thread has let
 * go of the slab, nothing of it is in use. [infiniswap §2.4.4; ours copies before it drops]
 *
 * A page that no other donor takes and whose disk write has failed, or has not ended, is kept in a pending slot: the
 * mover's own slots, as many as a worker's, which nothing else uses. From there it goes to the disk, or without a disk
 * to the next home of its cluster. Only when these are full is a page lost that a donor wants back.
 */
#include <poll.h>
#include <unistd.h>

#include "mover.h"

#define CLUSTER_NS    5000000000ull /* a single cluster is never in a hurry */
#define KEPT_MS	      5
#define WIND_DOWN_NS  2000000000ull
#define HEAL_PAUSE_US 100000u /* a donor that hangs has used up its deadline: no need to rest as long again */

static void doze(struct worker *w, uint64_t us)
{
	struct pollfd p = {.fd = w->kick_fd, .events = POLLIN};
	struct timespec ts = {.tv_nsec = (long)us * 1000};

	ppoll(&p, 0, &ts, NULL);
}

/* Waits for the one operation that the link holds. */
static int link_wait(struct worker *w, struct ne_link *link, struct ne_io *io)
{
	uint64_t until = now_ns() + w->dev->params.deadline_ms * 1000000ull;
	struct ne_io *done;

	link->ops->submit(link);
	while (!link->ops->poll(link, &done, 1)) {
		struct pollfd p = {.events = POLLIN};
		struct timespec ts = {.tv_nsec = 1000000};
		uint64_t timeout = UINT64_MAX;

		if (now_ns() > until || atomic_load(&w->stop))
			link->ops->kill(link, ETIMEDOUT);
		p.fd = link->ops->wait(link, &p.events, &timeout);
		if (timeout < 1000000)
			ts.tv_nsec = (long)timeout;
		if (link->ops->alive(link))
			ppoll(&p, p.fd >= 0, &ts, NULL);
	}
	return io->status;
}

/* n pages between the stage, from its page `at` on, and a home. Blocks, at most for the deadline. */
static int home_io(struct worker *w, uint8_t op, uint64_t word, uint32_t page, uint32_t n, uint32_t at)
{
	uint8_t *buf = ring_at(&w->stage, at);
	uint32_t donor = w->dev->slabs[H_SLAB(word)].donor;
	struct ne_link *link;
	uint8_t *base;
	struct ne_io io;
	int rc;

	if (donor_is(w->dev, donor, NE_DONOR_FAILED) || !slab_is_in_reach(w, H_SLAB(word), &base))
		return -ENOTCONN;
	if (base) {
		uint8_t *there = base + extent_offset(word, page);

		memcpy(op == NE_IO_READ ? buf : there, op == NE_IO_READ ? there : buf, n * NE_PAGE_BYTES);
		return 0;
	}
	link = worker_link(w, donor);
	io = home_operation(w->dev, op, word, page, n, buf);
	rc = link->ops->post(link, &io);
	return rc ? rc : link_wait(w, link, &io);
}

static int disk_io(struct worker *w, uint32_t page, uint8_t *buf)
{
	struct ne_dio dio = {.op = NE_IO_WRITE,
			     .length = NE_PAGE_BYTES,
			     .buf = buf,
			     .posted_ns = now_ns(),
			     .offset = (uint64_t)page * NE_PAGE_BYTES},
		      *done;

	if (!w->disk)
		return -ENODEV;
	ne_disk_post(w->disk, &dio);
	ne_disk_submit(w->disk);
	do {
		struct pollfd p = {.fd = ne_disk_wait_fd(w->disk), .events = POLLIN};
		int n = ne_disk_poll(w->disk, &done, 1);

		if (!n)
			poll(&p, 1, 1);
		else if (done != &dio)
			worker_disk_ended(w, done); /* a kept page's, or a page on its way to a donor */
		else
			return dio.status;
	} while (true);
}

/* Goes on with the disk writes of kept pages. */
static void kept_turn(struct worker *w)
{
	worker_disk_turn(w);
	if (w->dop_wait)
		dop_retry(w, now_ns());
	worker_disk_turn(w);
}

/* The page's last copy stands in the stage at `buf`: to disk with it. */
static bool page_save(struct drain *d, uint32_t page, uint8_t *buf)
{
	struct ne_page *p = &d->w->dev->page[page];

	for (int i = 0; i < 3; i++) {
		int rc;

		while (!disk_mark(p)) {
			if (atomic_load(&d->w->stop))
				return false;
			kept_turn(d->w); /* it may be an older write of ours */
			doze(d->w, 100);
		}
		rc = disk_io(d->w, page, buf);
		page_change(d->w->dev, p, rc ? 0 : P_DISK, P_DBUSY);
		if (!rc)
			return true;
		if (rc == -ENODEV)
			return false;
	}
	return false;
}

/* The page's last copy stands in the stage at `buf`: into a slot instead of the home, and to disk from there. */
static bool page_keep(struct drain *d, uint32_t page, const uint8_t *buf)
{
	struct worker *w = d->w;
	struct ne_page *p = &w->dev->page[page];
	uint64_t pos = ring_take(&w->slots, 1, HOLD_OLD), a;

	if (pos == UINT64_MAX)
		return false;
	memcpy(ring_at(&w->slots, pos), buf, NE_PAGE_BYTES);
	a = atomic_fetch_or(&p->a, P_WIP) | P_WIP;
	atomic_store(&p->b, (uint64_t)slot_number(w, pos) << 32 | (uint32_t)atomic_load(&p->b));
	while (!page_swap(w->dev, p, &a, (a | P_PEND) & ~(P_WIP | P_R(d->home))))
		;
	dop_make(w, NULL, page, 1, pos);
	return true;
}

bool copy_verify(struct worker *w, uint32_t page, uint32_t at, uint64_t from, uint32_t donor)
{
	struct ne_page *p = &w->dev->page[page];
	uint8_t *mem = ring_at(&w->stage, at);
	bool is_empty = from != P_DISK && page_is_zeros(mem);

	if (from != P_DISK && atomic_load(&p->a) & P_SEALED)
		ne_open_page(w->seal, mem, mem, page, content_of(atomic_load(&p->a)));
	if (ne_crc32c(mem, NE_PAGE_BYTES) == (uint32_t)atomic_load(&p->b))
		return true;
	w->stats.checksum_errors++;
	dev_event(w->dev, NE_EVENT_CHECKSUM, donor, page, is_empty, 0);
	for (uint64_t a = atomic_load(&p->a); !page_swap(w->dev, p, &a, without_copy(a, from));)
		;
	return false;
}

/* Marks which staged pages are what was written; a bad copy in the home is dropped at once. */
static void run_verify(struct drain *d, uint32_t page, uint32_t n, bool good[RUN_PAGES])
{
	for (uint32_t i = 0; i < n; i++)
		good[i] = copy_verify(d->w, page + i, i, P_R(d->home), d->w->dev->slabs[H_SLAB(d->word)].donor);
}

/*
 * From here on this content of a claimed page is sealed, as an older engine's is not: as long as no donor has it, no
 * reader can be wrong about what it finds there. One that a donor has in the clear needs a new sequence: page_renew().
 */
static void page_seal_first(struct ne_device *dev, struct ne_page *p)
{
	uint64_t a = atomic_load(&p->a);

	while (dev->sealed && !(a & (P_SEALED | P_RALL)) && !page_swap(dev, p, &a, (a & ~P_EPOCH) | dev->sealed))
		;
}

/* What donors are given of the good pages of a staged run, in its own part of the stage. */
static void run_outgoing(struct drain *d, uint32_t page, uint32_t n, const bool *good)
{
	struct worker *w = d->w;

	for (uint32_t i = 0; i < n; i++) {
		struct ne_page *p = &w->dev->page[page + i];
		uint8_t *to = ring_at(&w->stage, OUTGOING_AT + i), *from = ring_at(&w->stage, d->at + i);
		uint64_t a;

		if (good[i])
			page_seal_first(w->dev, p);
		a = atomic_load(&p->a);
		if (good[i] && a & P_SEALED)
			ne_seal_page(w->seal, to, from, page + i, content_of(a));
		else if (good[i])
			memcpy(to, from, NE_PAGE_BYTES);
	}
}

/* The good ones of a run whose outgoing pages are made, to one home. */
static bool good_to_home(struct drain *d, uint64_t word, uint32_t page, uint32_t n, const bool *good)
{
	for (uint32_t i = 0, k; i < n; i = k) {
		for (k = i + 1; k < n && good[k] == good[i]; k++)
			;
		if (good[i] && home_io(d->w, NE_IO_WRITE, word, page + i, k - i, OUTGOING_AT + i))
			return false;
	}
	return true;
}

uint64_t run_copy(struct drain *d, uint32_t page, uint32_t n, const bool *good, int except)
{
	struct ne_cluster *c = &d->w->dev->cluster[d->cluster];
	const uint64_t needed = H_VALID | H_WRITE;
	uint64_t bits = 0;

	run_outgoing(d, page, n, good);
	for (int h = 0; h < NE_HOMES; h++) {
		/* The word that was looked at is the one that is used: while one home is written the next may go. */
		uint64_t word = atomic_load(&c->home[h]);

		if (h != except && (word & needed) == needed &&
		    donor_is(d->w->dev, d->w->dev->slabs[H_SLAB(word)].donor, NE_DONOR_UP) &&
		    good_to_home(d, word, page, n, good))
			bits |= P_R(h);
	}
	return bits;
}

/* Puts the last copy of a page elsewhere. In time only where that takes no memory for long: a home may come yet. */
static bool page_rescue(struct drain *d, uint32_t page, uint8_t *staged, bool in_time)
{
	bool disk_is_well = d->w->disk && !atomic_load(&d->w->dev->disk_stuck);

	if ((disk_is_well || !in_time) && page_keep(d, page, staged))
		return true;
	return !in_time && page_save(d, page, staged);
}

/*
 * Gives up a claimed page's copy in the home, saving it first if it is the last. False: that did not succeed, and with
 * `keep` the copy stays where it is.
 */
static bool page_leave(struct drain *d, uint32_t page, uint8_t *staged, bool keep)
{
	struct ne_page *p = &d->w->dev->page[page];
	uint64_t bit = P_R(d->home), a = atomic_load(&p->a);
	bool lost;

	do {
		if (!(a & (P_SOURCES & ~bit)) && staged && page_rescue(d, page, staged, keep))
			a = atomic_load(&p->a);
		lost = a & bit && !(a & (P_SOURCES & ~bit));
		if (lost && (keep || atomic_load(&d->w->stop)))
			return false;
	} while (!page_swap(d->w->dev, p, &a, a & bit ? without_copy(a, bit) : a));
	d->left++;
	d->lost += lost;
	d->w->stats.pages_lost += lost;
	return true;
}

static bool any_is_last(const struct drain *d, uint32_t page, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!(atomic_load(&d->w->dev->page[page + i].a) & (P_SOURCES & ~P_R(d->home))))
			return true;
	return false;
}

/* The control side may shorten a drain, or say that the donor is gone, while it runs. */
static bool drain_has_time(const struct drain *d)
{
	uint64_t deadline_ns = atomic_load(&d->w->dev->live[d->slab].deadline_ns);

	return now_ns() < (deadline_ns ? deadline_ns : d->deadline_ns);
}

static bool drain_fails(const struct drain *d)
{
	const struct ne_device *dev = d->w->dev;

	return atomic_load(&dev->live[d->slab].fail) || donor_is(dev, dev->slabs[d->slab].donor, NE_DONOR_FAILED);
}

/*
 * Takes a claimed page, whose content stands in the stage at `buf`, away from its donors: into a slot, under a new
 * sequence, sealed from now on. What the disk has of it stays. False: there is no slot.
 */
static bool page_renew(struct worker *w, uint32_t page, const uint8_t *buf)
{
	struct ne_page *p = &w->dev->page[page];
	uint64_t pos = ring_take(&w->slots, 1, HOLD_OLD), a, to;

	if (pos == UINT64_MAX)
		return false;
	memcpy(ring_at(&w->slots, pos), buf, NE_PAGE_BYTES);
	a = atomic_fetch_or(&p->a, P_WIP) | P_WIP;
	atomic_store(&p->b, (uint64_t)slot_number(w, pos) << 32 | (uint32_t)atomic_load(&p->b));
	do {
		to = ((a + 1) & P_SEQ) | (a & (P_DISK | P_CLAIM | P_DBUSY)) | P_PEND | w->dev->sealed;
	} while (!page_swap(w->dev, p, &a, to));
	dop_make(w, NULL, page, 1, pos);
	return true;
}

/* Donors have this content in the clear, and what is given to them from now on is sealed. */
static bool is_to_be_sealed(const struct ne_device *dev, uint64_t a)
{
	return dev->sealed && page_is_clear(a);
}

/*
 * Which of the good pages of a run go to other homes. Those that donors have in the clear are taken away from all of
 * them first (renewed), or stay where they are if there is no slot: no new place gets such a page as it is.
 */
static void run_renew(struct drain *d, uint32_t page, uint32_t n, const bool *good, bool *outgoing, bool *renewed)
{
	for (uint32_t i = 0; i < n; i++) {
		bool is_clear = is_to_be_sealed(d->w->dev, atomic_load(&d->w->dev->page[page + i].a));

		renewed[i] = good[i] && is_clear && page_renew(d->w, page + i, ring_at(&d->w->stage, i));
		outgoing[i] = good[i] && (!is_clear || renewed[i]);
	}
}

/* Gives a renewed page, which now has `bits`, to readers: from its slot where neither a donor nor the disk has it. */
static void page_settle(struct ne_device *dev, struct ne_page *p, uint64_t bits)
{
	bool elsewhere = bits || atomic_load(&p->a) & P_DISK;

	page_change(dev, p, bits, P_CLAIM | (elsewhere ? P_PEND : 0));
}

/* A run of claimed pages that all have the home's bit. False: some are still there. */
static bool run_move(struct drain *d, uint32_t page, uint32_t n)
{
	bool good[RUN_PAGES] = {false}, outgoing[RUN_PAGES] = {false}, renewed[RUN_PAGES] = {false};
	bool fail = drain_fails(d), in_time = !fail && drain_has_time(d), all = true;
	uint64_t from = P_R(d->home), bits = 0;
	bool staged = !fail && (in_time || any_is_last(d, page, n)) && !home_io(d->w, NE_IO_READ, d->word, page, n, 0);

	if (staged) {
		run_verify(d, page, n, good);
		if (in_time) {
			run_renew(d, page, n, good, outgoing, renewed);
			bits = run_copy(d, page, n, outgoing, d->home);
		}
	}
	for (uint32_t i = 0; i < n; i++) {
		if (renewed[i]) {
			page_settle(d->w->dev, &d->w->dev->page[page + i], bits);
			d->moved += bits != 0;
			d->left += !bits;
			d->w->stats.pages_moved += bits != 0;
			continue;
		}
		if (outgoing[i] && bits) {
			page_change(d->w->dev, &d->w->dev->page[page + i], bits, from);
			d->moved++;
			d->w->stats.pages_moved++;
		} else {
			uint8_t *mem = good[i] ? ring_at(&d->w->stage, i) : NULL;

			all &= page_leave(d, page + i, mem, in_time && (good[i] || !staged));
		}
		page_change(d->w->dev, &d->w->dev->page[page + i], 0, P_CLAIM);
	}
	kept_turn(d->w); /* gives slots of renewed pages back */
	return all;
}

/* Claims pages that have `bits` of `mask`, from `page` on, one behind the other; how many. */
static uint32_t run_claim(struct drain *d, uint32_t page, uint32_t end, uint64_t mask, uint64_t bits)
{
	uint32_t n = 0;

	while (page + n < end && n < RUN_PAGES) {
		struct ne_page *p = &d->w->dev->page[page + n];

		if ((atomic_load(&p->a) & mask) != bits || !page_claim(p))
			break;
		if ((atomic_load(&p->a) & mask) != bits) {
			page_change(d->w->dev, p, 0, P_CLAIM);
			break;
		}
		n++;
	}
	return n;
}

/* True when no page of the cluster has the home's bit and none was claimed when looked at. */
static bool cluster_pass(struct drain *d)
{
	uint32_t first = d->cluster * NE_CLUSTER_PAGES, end = first + NE_CLUSTER_PAGES;
	bool all = true;

	for (uint32_t page = first; page < end && !atomic_load(&d->w->stop);) {
		uint64_t a = atomic_load(&d->w->dev->page[page].a);
		uint32_t n;

		uint64_t *finished = &d->finished[H_EXTENT(d->word)][(page - first) / 64], bit = 1ull << page % 64;

		if (*finished & bit || !(a & (P_CLAIM | P_R(d->home)))) {
			*finished |= bit; /* whoever claims it from now on does not see the home as writable */
			page++;
			continue;
		}
		n = run_claim(d, page, end, P_R(d->home), P_R(d->home));
		all &= n && run_move(d, page, n);
		page += n ? n : 1;
	}
	return all && !atomic_load(&d->w->stop);
}

static void drain_begin(struct drain *d)
{
	_Static_assert(NE_CLUSTER_PAGES / 8 * 512 <= RX_BYTES, "a bit for each page of the largest slab");
	d->finished = (void *)d->w->bounce;
	memset(d->finished, 0, NE_CLUSTER_PAGES / 8 * 512);
}

/* One round over the cluster's homes on the slab. True when none is left. */
static bool cluster_drain(struct drain *d)
{
	struct ne_cluster *c = &d->w->dev->cluster[d->cluster];
	bool all = true;

	for (int h = 0; h < NE_HOMES; h++) {
		uint64_t word = atomic_load(&c->home[h]);

		if (!(word & H_VALID) || H_SLAB(word) != d->slab)
			continue;
		worker_take_mail(d->w); /* new links, for this very drain perhaps */
		act_poll(d->w);
		kept_turn(d->w);
		d->home = h;
		d->word = atomic_fetch_and(&c->home[h], ~H_WRITE) & ~H_WRITE;
		if (!cluster_pass(d)) {
			all = false;
			continue;
		}
		atomic_store(&c->home[h], 0);
		atomic_store(&c->wanted, 0);
	}
	return all;
}

/*
 * Until every operation that entered the slab before now has left it. Who comes later counts in the other phase, unless
 * it read the phase before the flip; that one looks at its home after counting, and leaves.
 */
static void slab_settle(struct worker *w, uint32_t slab)
{
	uint32_t phase = atomic_fetch_xor(&w->dev->live[slab].phase, 1) & 1;

	for (uint32_t i = 0; i < THREADS; i++)
		while (atomic_load(&w->dev->worker[i]->inflight[slab * 2 + phase]) && !atomic_load(&w->stop))
			doze(w, 50);
}

static void slab_drain(struct worker *w, const struct job *job)
{
	struct drain d = {.w = w, .slab = job->slab};

	bool again;

	drain_begin(&d);
	do { /* what has to wait for a new home does not hold up the others */
		again = false;
		for (d.cluster = 0; d.cluster < w->dev->clusters && !atomic_load(&w->stop); d.cluster++)
			again |= !cluster_drain(&d);
		if (again)
			doze(w, 200);
	} while (again && !atomic_load(&w->stop));
	slab_settle(w, job->slab);
	slab_settle(w, job->slab); /* the other phase: nothing at all is left */
	if (atomic_load(&w->stop))
		return;						     /* the successor is told to drain it again */
	atomic_store(&w->dev->slabs[job->slab].state, NE_SLAB_GONE); /* first: see ne_slab_drain() */
	atomic_store(&w->dev->live[job->slab].deadline_ns, 0);
	dev_event(w->dev, NE_EVENT_SLAB_DRAINED, job->slab, d.moved, d.left, d.lost);
}

static void one_cluster_drain(struct worker *w, const struct job *job)
{
	struct drain d = {.w = w, .slab = job->slab, .cluster = job->cluster, .deadline_ns = now_ns() + CLUSTER_NS};

	drain_begin(&d);
	while (!cluster_drain(&d) && !atomic_load(&w->stop))
		doze(w, 200);
	slab_settle(w, job->slab);
	if (!atomic_load(&w->stop))
		dev_event(w->dev, NE_EVENT_CLUSTER_DRAINED, job->cluster, job->slab, d.left, d.lost);
}

uint64_t homes_in_reach(struct worker *w, uint32_t cluster, uint64_t needed)
{
	uint64_t bits = 0;

	for (int h = 0; h < NE_HOMES; h++) {
		uint64_t word = atomic_load(&w->dev->cluster[cluster].home[h]);
		uint8_t *base;

		if ((word & needed) == needed && donor_is(w->dev, w->dev->slabs[H_SLAB(word)].donor, NE_DONOR_UP) &&
		    slab_is_in_reach(w, H_SLAB(word), &base))
			bits |= P_R(h);
	}
	return bits;
}

/* Writes the second copy of a run of pages that stand in d->home alone, all claimed. False: some have none yet. */
static bool run_heal(struct drain *d, uint32_t page, uint32_t n)
{
	bool good[RUN_PAGES] = {false};
	uint64_t bits = 0;

	if (!home_io(d->w, NE_IO_READ, d->word, page, n, 0)) {
		run_verify(d, page, n, good);
		bits = run_copy(d, page, n, good, d->home);
	}
	for (uint32_t i = 0; i < n; i++) {
		page_change(d->w->dev, &d->w->dev->page[page + i], good[i] ? bits : 0, P_CLAIM);
		d->w->stats.pages_moved += good[i] && bits;
	}
	return bits;
}

/* Ends at the first run that fails: what is wrong with it will be wrong with the next, and it is tried again soon. */
static void cluster_heal(struct worker *w, uint32_t cluster)
{
	struct drain d = {.w = w, .cluster = cluster};
	uint32_t page = cluster * NE_CLUSTER_PAGES, end = page + NE_CLUSTER_PAGES, n;
	uint64_t from = homes_in_reach(w, cluster, H_VALID), to = homes_in_reach(w, cluster, H_VALID | H_WRITE);
	bool well = to && (from & (from - 1)); /* a donor has it, another takes it */
	const uint64_t mask = P_RALL | P_SEALED;

	for (; page < end && well && !atomic_load(&w->stop); page += n ? n : 1) {
		uint64_t a = atomic_load(&w->dev->page[page].a), copy = a & P_RALL;

		n = 0;
		if (!page_is_single(a) || !(from & copy) || !(to & ~copy) || is_to_be_sealed(w->dev, a))
			continue; /* what is to be sealed is written to all of its homes anew: cluster_seal() */
		d.home = copy == P_R(0) ? 0 : copy == P_R(1) ? 1 : 2;
		d.word = atomic_load(&w->dev->cluster[cluster].home[d.home]);
		n = run_claim(&d, page, end, mask, a & mask);
		if (n) /* else somebody writes it just now */
			well = run_heal(&d, page, n);
	}
}

/*
 * Writes a run of claimed pages, which donors have in the clear, to them anew. A page that no donor takes just now goes
 * to the disk, or stays in its slot. False: the run could not be read, or there are no slots.
 */
static bool run_seal(struct drain *d, uint32_t page, uint32_t n)
{
	bool good[RUN_PAGES] = {false}, any = false;
	uint64_t bits = 0;

	if (!home_io(d->w, NE_IO_READ, d->word, page, n, 0)) {
		run_verify(d, page, n, good);
		for (uint32_t i = 0; i < n; i++) {
			good[i] = good[i] && page_renew(d->w, page + i, ring_at(&d->w->stage, i));
			any |= good[i];
		}
		bits = any ? run_copy(d, page, n, good, NE_HOMES) : 0;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct ne_page *p = &d->w->dev->page[page + i];

		if (good[i])
			page_settle(d->w->dev, p, bits);
		else
			page_change(d->w->dev, p, 0, P_CLAIM);
	}
	kept_turn(d->w); /* gives the slots back */
	return any;
}

static void cluster_seal(struct worker *w, uint32_t cluster)
{
	const uint64_t mask = P_RALL | P_SEALED | P_PEND | P_DBUSY;
	struct drain d = {.w = w, .cluster = cluster};
	uint32_t page = cluster * NE_CLUSTER_PAGES, end = page + NE_CLUSTER_PAGES, n;
	uint64_t reach = homes_in_reach(w, cluster, H_VALID);
	bool well = reach;

	for (; page < end && well && !atomic_load(&w->stop); page += n ? n : 1) {
		uint64_t a = atomic_load(&w->dev->page[page].a), copies = a & P_RALL;

		n = 0;
		/* All of its donors at once: with one away, what that has would stay in the clear there. */
		if (!copies || copies & ~reach || (a & mask) != copies)
			continue;
		d.home = (int)__builtin_ctzll(copies / P_R0);
		d.word = atomic_load(&w->dev->cluster[cluster].home[d.home]);
		n = run_claim(&d, page, end, mask, copies);
		if (n)
			well = run_seal(&d, page, n);
	}
}

/*
 * Goes through the clusters for which `counts` has pages, while nothing more urgent is to be done: at most half of the
 * time, the rest of links and cores being the clients'. What can't be had now is looked at again each second.
 */
static void in_background(struct worker *w, const _Atomic int32_t *counts,
			  void (*cluster_do)(struct worker *, uint32_t))
{
	struct ne_device *dev = w->dev;

	for (uint32_t c = 0; c < dev->clusters && !atomic_load(&w->stop); c++) {
		uint64_t begin_ns, spent_us;

		if (atomic_load_explicit(&counts[c], memory_order_relaxed) <= 0)
			continue;
		if (atomic_load(&dev->job_head) < atomic_load(&dev->job_tail))
			return;
		begin_ns = now_ns();
		worker_take_mail(w);
		act_poll(w);
		cluster_do(w, c);
		spent_us = elapsed_ns(now_ns(), begin_ns) / 1000;
		doze(w, spent_us < HEAL_PAUSE_US ? spent_us : HEAL_PAUSE_US);
	}
}

static bool page_is_kept(const struct worker *w, const struct ne_page *p)
{
	return (atomic_load(&p->a) & (P_PEND | P_WIP)) == P_PEND &&
	       (uint32_t)(atomic_load(&p->b) >> 32) / slots_per_worker(w->dev) == w->idx;
}

/* Kept pages of a cluster to its writable homes, as far as these take them. */
static void cluster_take_kept(struct worker *w, uint32_t cluster)
{
	struct drain d = {.w = w, .cluster = cluster};
	uint32_t page = cluster * NE_CLUSTER_PAGES, end = page + NE_CLUSTER_PAGES;
	bool well = homes_in_reach(w, cluster, H_VALID | H_WRITE);

	for (; page < end && well && !atomic_load(&w->stop); page++) {
		struct ne_page *p = &w->dev->page[page];
		const bool good = true;
		uint64_t bits = 0;

		if (!page_is_kept(w, p) || !page_claim(p))
			continue;
		if (page_is_kept(w, p)) { /* and while it is claimed, it stays */
			memcpy(w->stage.mem, ring_at(&w->slots, atomic_load(&p->b) >> 32), NE_PAGE_BYTES);
			bits = run_copy(&d, page, 1, &good, NE_HOMES);
			well = bits;
		}
		page_change(w->dev, p, bits, P_CLAIM | (bits ? P_PEND : 0));
	}
}

/* Where there is no disk, kept pages wait for a donor. Looked at each second. */
static void kept_place(struct worker *w)
{
	for (uint32_t c = 0; c < w->dev->clusters && !w->disk && w->slots.used && !atomic_load(&w->stop); c++) {
		if (atomic_load(&w->dev->job_head) < atomic_load(&w->dev->job_tail))
			return;
		cluster_take_kept(w, c);
		kept_turn(w);
	}
}

/* Until there is a job, or something of the disk's to do; `most_ms` at most. */
static void rest(struct worker *w, int most_ms)
{
	bool is_writing = w->disk && ne_disk_outstanding(w->disk);
	struct pollfd p[] = {{.fd = w->kick_fd, .events = POLLIN},
			     {.fd = is_writing ? ne_disk_wait_fd(w->disk) : -1, .events = POLLIN}};
	uint64_t drained;

	if (w->disk && (is_writing || w->dop_wait) && most_ms > KEPT_MS)
		most_ms = KEPT_MS;
	if (poll(p, 2, most_ms) > 0 && p[0].revents && read(w->kick_fd, &drained, sizeof(drained)) < 0)
		return;
}

/* What the disk is doing for kept pages must not come on top of what a successor has written. */
static void wind_down(struct worker *w)
{
	for (uint64_t begin = now_ns(); w->disk && ne_disk_outstanding(w->disk) && now_ns() - begin < WIND_DOWN_NS;) {
		worker_disk_turn(w);
		doze(w, 1000);
	}
}

void *mover_main(void *arg)
{
	struct worker *w = arg;
	struct ne_device *dev = w->dev;

	while (!atomic_load(&w->stop)) {
		uint64_t head = atomic_load(&dev->job_head);

		worker_take_mail(w);
		act_poll(w); /* puts dead links away */
		kept_turn(w);
		if (head < atomic_load(&dev->job_tail)) {
			struct job job = dev->jobs[head % JOBS];

			if (job.kind == JOB_SLAB_DRAIN)
				slab_drain(w, &job);
			else
				one_cluster_drain(w, &job);
			if (!atomic_load(&w->stop))
				atomic_store(&dev->job_head, head + 1);
			continue;
		}
		if (has_replicas(dev))
			in_background(w, dev->single, cluster_heal);
		if (dev->sealed)
			in_background(w, dev->clear, cluster_seal);
		kept_place(w);
		rest(w, lift_turn(w));
	}
	wind_down(w);
	return NULL;
}
