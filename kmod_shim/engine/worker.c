/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.c - the loop of a worker thread: mail from the control thread, the connection (nbd.c), operations in flight
 * (inflight.c), the disk; when nothing happens, it spins or sleeps.
 *
 * It spins only while that has paid off lately and not too many others spin. A worker lives as long as its device, not
 * as its connection: payload that waits for the disk outlives the client that sent it.
 */
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "core.h"
#include "thread.h"

#define TURNS_MAX	  16u
#define LOOK_NS		  200000ull   /* how soon what waits without an event is looked at again */
#define OVERDUE_LOOK_NS	  1000000ull  /* the same for what is late already, or seldom so */
#define DISK_LOOK_NS	  10000000ull /* how soon it is looked whether the disk has written what nobody waits for */
#define NAP_NS		  100000ull   /* how long the kernel is left alone to send the rest of a request */

#define STACK_TOUCH_BYTES (64u << 10)

/* ------------------------------------------------------------------ mail from the control thread */

static void link_take(struct worker *w, uint32_t donor, struct ne_link *link)
{
	bool listed = false;

	act_link_drop(w, donor);
	w->links[donor] = link;
	for (uint32_t i = 0; i < w->link_n; i++)
		listed |= w->link_list[i] == donor;
	if (!listed)
		w->link_list[w->link_n++] = donor;
	act_times_begin(w, donor);
}

void worker_take_mail(struct worker *w)
{
	int sock;

	if (!atomic_exchange(&w->kicked, 0))
		return;
	sock = atomic_exchange(&w->sock_mail, SOCK_NONE); /* first: links posted before it are then seen too */
	for (uint32_t k = 0; k < NE_DONORS_MAX / 64; k++) {
		uint64_t bits = atomic_exchange(&w->mail_bits[k], 0);
		uint64_t failed = atomic_exchange(&w->failed_bits[k], 0); /* second: a link made since then stays */

		for (; failed; failed &= failed - 1)
			act_link_drop(w, k * 64 + (uint32_t)__builtin_ctzll(failed));
		while (bits) {
			uint32_t donor = k * 64 + (uint32_t)__builtin_ctzll(bits);
			struct ne_link *link = atomic_exchange(&w->link_mail[donor], NULL);

			bits &= bits - 1;
			if (link)
				link_take(w, donor, link);
		}
	}
	if (sock >= 0)
		conn_begin(w, sock, atomic_exchange(&w->tls_mail, NULL));
	else if (sock == SOCK_FORGET)
		w->hup = true;
}

void worker_kick(struct worker *w)
{
	uint64_t one = 1;

	atomic_store(&w->kicked, 1);
	if (write(w->kick_fd, &one, sizeof(one)) < 0)
		return; /* full: it is awake already */
}

/* ------------------------------------------------------------------ the loop */

/* What the disk has done: a worker's read, the mover's, or a page written back. */
void worker_disk_ended(struct worker *w, struct ne_dio *dio)
{
	if (dio == &w->lift.dio) {
		w->lift.ended = true;
	} else if (dio->op == NE_IO_WRITE) {
		dop_done(w, dio);
	} else {
		act_disk_took(w, dio);
		page_read_ended(w, dio->owner, dio->status);
	}
}

/* What we have for the disk is waited for from now on. */
void worker_hurry(struct worker *w)
{
	w->disk_awaited = true;
	dop_hurry(w);
}

/* Posts what waits for the disk and ends what it has done. True: something has ended. */
bool worker_disk_turn(struct worker *w)
{
	struct ne_dio *done[64];
	int n;

	if (!w->disk)
		return false;
	if (w->disk_dirty || ne_disk_outstanding(w->disk)) {
		w->disk_dirty = false;
		ne_disk_submit(w->disk);
	}
	if (!ne_disk_outstanding(w->disk)) {
		if (!w->dop_wait)
			w->disk_awaited = false;
		return false;
	}
	n = ne_disk_poll(w->disk, done, 64);
	for (int i = 0; i < n; i++)
		worker_disk_ended(w, done[i]);
	return n > 0;
}

/* Deferred requests of a connection that is not back yet after a take-over wait for it: they may have to be dropped. */
static bool may_run_deferred(const struct worker *w)
{
	return w->deferred && (w->sock >= 0 || w->hup);
}

/* Until act_timers() has something to do: the oldest read is to be hedged, or somebody may be overdue. */
static uint64_t timers_ns(const struct worker *w, uint64_t now)
{
	uint64_t patience_ns = act_patience_ns(w), age;

	if (!w->act_old)
		return UINT64_MAX;
	age = elapsed_ns(now, w->act_old->io.posted_ns);
	return age < patience_ns ? patience_ns - age + LOOK_NS : OVERDUE_LOOK_NS;
}

static uint64_t sleep_limit_ns(const struct worker *w, uint64_t now)
{
	uint64_t limit = timers_ns(w, now), kept_ns = dop_kept_left_ns(w, now);

	if (kept_ns < limit)
		limit = kept_ns;
	if (limit > DISK_LOOK_NS && w->disk && ne_disk_outstanding(w->disk))
		limit = DISK_LOOK_NS;
	if (may_run_deferred(w) || w->dop_wait || w->act_waiting)
		return LOOK_NS;
	if (limit > OVERDUE_LOOK_NS && (w->is_full || atomic_load_explicit(&w->stop, memory_order_relaxed) ||
					(w->disk && ne_disk_unsubmitted(w->disk))))
		return OVERDUE_LOOK_NS;
	return limit;
}

/* Every socket may have something. */
static void ask_all(struct worker *w)
{
	w->rx_drained = false;
	memset(w->link_quiet, 0, sizeof(w->link_quiet));
	w->turns = 0;
}

/*
 * The kernel's driver sends a write by its header and then page by page, and each part would wake us: on the processor
 * that it runs on, since we come before it, with two switches a page. After the first part it is left alone for a
 * moment, in which it sends the rest, and often the next writes too.
 */
static uint64_t nap_left_ns(struct worker *w, uint64_t now)
{
	if (!w->trickles)
		return 0;
	if (!w->nap_ns)
		w->nap_ns = now + NAP_NS;
	return elapsed_ns(w->nap_ns, now);
}

static void sleep_until_something(struct worker *w)
{
	struct pollfd p[NE_DONORS_MAX + 3] = {{.fd = w->kick_fd, .events = POLLIN}};
	uint32_t donor_of[NE_DONORS_MAX + 3], n = 1, first_link, sock_at = 0;
	uint64_t now = now_ns(), limit = sleep_limit_ns(w, now), drained, nap_ns = nap_left_ns(w, now);
	struct timespec ts;
	bool want_rx = w->sock >= 0 && !nap_ns && !w->closing && !w->is_full &&
		       w->tx_tail - w->tx_head <= TX_SOFT_BYTES && w->active < LOG_DEPTH - 1;

	if (w->disk && ne_disk_outstanding(w->disk) && (w->disk_awaited || ne_disk_queued(w->disk)))
		p[n++] = (struct pollfd){.fd = ne_disk_wait_fd(w->disk), .events = POLLIN};
	if (w->sock >= 0)
		sock_at = n;
	if (w->sock >= 0)
		p[n++] = (struct pollfd){.fd = w->sock,
					 .events = (short)((want_rx ? POLLIN : 0) | (w->tx_blocked ? POLLOUT : 0))};
	first_link = n;
	for (uint32_t i = 0; i < w->link_n; i++) {
		struct ne_link *link = w->links[w->link_list[i]];
		uint64_t timeout = UINT64_MAX;
		short events = POLLIN;
		int fd = link ? link->ops->wait(link, &events, &timeout) : -1;

		if (timeout < limit)
			limit = timeout;
		if (fd < 0)
			continue;
		donor_of[n] = w->link_list[i];
		p[n++] = (struct pollfd){.fd = fd, .events = events};
	}
	if (nap_ns && nap_ns < limit)
		limit = nap_ns;
	ts = (struct timespec){.tv_sec = (time_t)(limit / 1000000000), .tv_nsec = (long)(limit % 1000000000)};
	w->stats.sleeps++;
	w->turns = 0;
	if (ppoll(p, n, limit == UINT64_MAX ? NULL : &ts, NULL) <= 0) {
		ask_all(w);
		return;
	}
	if (want_rx) {
		w->last_rx_ns = now_ns(); /* we were listening */
		if (p[sock_at].revents)
			w->rx_drained = false;
	}
	if (sock_at && !want_rx && p[sock_at].revents & (POLLHUP | POLLERR)) {
		if (nap_ns) /* first what it has sent */
			w->trickles = w->rx_drained = false;
		else
			w->hup = true;
	}
	if (p[0].revents && read(w->kick_fd, &drained, sizeof(drained)) < 0)
		return;
	for (uint32_t i = first_link; i < n; i++) { /* an idle link has nothing to say but its end */
		struct ne_link *link = w->links[donor_of[i]];

		if (p[i].revents)
			w->link_quiet[donor_of[i] / 64] &= ~(1ull << donor_of[i] % 64);
		if (p[i].revents & (POLLIN | POLLHUP | POLLERR) && link && !link->ops->outstanding(link))
			link->ops->kill(link, ECONNRESET);
	}
}

/* Nothing to do: spin while that has paid off, else sleep. */
static void idle(struct worker *w, uint64_t now)
{
	struct ne_device *dev = w->dev;
	uint64_t spin_ns = (uint64_t)dev->params.spin_us * 1000;

	if (!w->idle_since_ns) {
		w->idle_since_ns = now;
		w->spinning = w->spin_on && atomic_fetch_add(&dev->spinners, 1) < dev->spinners_max;
		if (w->spin_on && !w->spinning)
			atomic_fetch_sub(&dev->spinners, 1);
	}
	if (w->spinning && elapsed_ns(now, w->idle_since_ns) < spin_ns) {
		w->stats.spins++;
		ask_all(w);
		sched_yield(); /* a donor's thread may want this very core */
		return;
	}
	if (w->spinning) {
		w->spinning = false;
		atomic_fetch_sub(&dev->spinners, 1);
	}
	sleep_until_something(w);
}

static void busy(struct worker *w, uint64_t now)
{
	if (!w->idle_since_ns)
		return;
	w->spin_on = elapsed_ns(now, w->idle_since_ns) < (uint64_t)w->dev->params.spin_us * 1000;
	w->idle_since_ns = 0;
	if (w->spinning) {
		w->spinning = false;
		atomic_fetch_sub(&w->dev->spinners, 1);
	}
}

/* What is kept back from the disk goes when it is time, or somebody asks. */
static void kept_turn(struct worker *w, uint64_t now)
{
	if (atomic_load_explicit(&w->hurry, memory_order_relaxed) && atomic_exchange(&w->hurry, 0))
		worker_hurry(w);
	else if (!dop_kept_left_ns(w, now) || (w->dop_kept && atomic_load_explicit(&w->stop, memory_order_relaxed)))
		dop_hurry(w);
}

static void turn(struct worker *w)
{
	uint64_t now = now_ns();
	bool any = false;

	if (++w->turns > TURNS_MAX) /* so busy that it never comes to the poll */
		ask_all(w);
	if (atomic_load_explicit(&w->kicked, memory_order_relaxed))
		worker_take_mail(w);
	if (w->sock >= 0 || w->hup)
		any |= conn_turn(w, now);
	any |= act_poll(w);
	any |= worker_disk_turn(w);
	if (may_run_deferred(w) && (any || elapsed_ns(now, w->looked_ns) >= LOOK_NS / 4))
		any |= !conn_deferred(w, now);
	if (w->dop_wait && (any || elapsed_ns(now, w->looked_ns) >= LOOK_NS / 4))
		dop_retry(w, now);
	if (elapsed_ns(now, w->looked_ns) >= LOOK_NS / 4) {
		w->looked_ns = now;
		if (w->act_old)
			act_timers(w, now);
	}
	any |= act_poll(w);
	kept_turn(w, now);
	if (w->disk_dirty)
		worker_disk_turn(w);
	if (w->sock >= 0)
		any |= conn_flush(w);
	if (any)
		busy(w, now);
	else
		idle(w, now);
}

/*
 * Asked to stop: no new requests, and a moment for what is in flight; whatever is left the successor will redo. The
 * disk gets longer, since what it still does would come on top of what the successor has written.
 */
static void wind_down(struct worker *w)
{
	uint64_t begin = now_ns(), spent;

	do {
		turn(w);
		spent = now_ns() - begin;
	} while ((spent < 200000000 && (w->act_old || w->tx_head < w->tx_tail)) ||
		 (spent < 2000000000 && w->disk && ne_disk_outstanding(w->disk)));
	if (w->sock >= 0)
		conn_flush(w);
	conn_goodbye(w);
}

#define ACTS 4096u
#define RIOS 8192u

/* A disk write has a slot at least, and after a take-over a slot may have two. */
static uint32_t dops_of(const struct worker *w)
{
	return 2 * w->slots.pages + 64;
}

/* In the thread, so that workers which never run take no memory for it. */
static void pools_chain(struct worker *w)
{
	uint32_t dops = dops_of(w);

	for (uint32_t i = 0; i < ACTS - 1; i++) {
		w->acts[i].next = &w->acts[i + 1];
		w->wops[i].next = &w->wops[i + 1];
	}
	for (uint32_t i = 0; i < RIOS - 1; i++)
		w->rios[i].next = &w->rios[i + 1];
	for (uint32_t i = 0; i < dops - 1; i++)
		w->dops[i].next = &w->dops[i + 1];
	w->act_free = w->acts;
	w->wop_free = w->wops;
	w->rio_free = w->rios;
	w->dop_free = w->dops;
}

/* A page of stack that is first touched when memory is out would be waited for by those who wait for us. */
static void stack_touch(void)
{
	volatile uint8_t pages[STACK_TOUCH_BYTES];

	for (uint32_t i = 0; i < sizeof(pages); i += NE_PAGE_BYTES)
		pages[i] = 0;
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	const uint8_t *key = w->dev->params.encrypt_disk ? w->dev->head->disk_key : NULL;
	int rc = 0;

	prctl(PR_SET_NAME, w->idx == NE_MOVER ? "fs-mover" : "fs-worker");
	stack_touch();
	pools_chain(w);
	rc = ne_seal_create(w->dev->head->disk_key, &w->seal);
	if (!rc && w->dev->disk_fd >= 0)
		/* no registered buffers: they would make all of the arena resident, 128 MiB a worker */
		rc = ne_disk_create(w->dev->disk_fd, 128, key, NULL, &w->dev->disk_faults, &w->disk);
	atomic_store(&w->start_rc, rc ? rc : 1);
	if (rc)
		return NULL;
	worker_recover_done(w);
	if (w->idx == NE_MOVER)
		return mover_main(w);
	while (!atomic_load_explicit(&w->stop, memory_order_relaxed))
		turn(w);
	wind_down(w);
	return NULL;
}

/* ------------------------------------------------------------------ taking over what another process left */

/* Called for each pending page before the thread starts, in page order. 0 or -ENOMEM. */
int worker_recover_slot(struct worker *w, uint32_t page, uint32_t slot)
{
	struct recovered *last = w->recovered_n ? &w->recovered[w->recovered_n - 1] : NULL;

	ring_hold(&w->slots, slot, HOLD_OLD);
	if (last && last->page + last->n == page && last->slot + last->n == slot && slot) {
		last->n++;
		return 0;
	}
	if (w->recovered_n == w->recovered_max) {
		uint32_t more = w->recovered_max ? 2 * w->recovered_max : 64;
		struct recovered *grown = realloc(w->recovered, more * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		w->recovered = grown;
		w->recovered_max = more;
	}
	w->recovered[w->recovered_n++] = (struct recovered){page, slot, 1};
	return 0;
}

/* In the thread: writes recovered payload to disk as if it had just come. */
void worker_recover_done(struct worker *w)
{
	for (uint32_t i = 0; i < w->recovered_n; i++)
		dop_make(w, NULL, w->recovered[i].page, w->recovered[i].n, w->recovered[i].slot);
	free(w->recovered);
	w->recovered = NULL;
	w->recovered_n = 0;
}

/* ------------------------------------------------------------------ create and destroy */

/* The next part of the pool; before there is one only its size counts. */
static void *carve(struct worker *w, uint64_t bytes)
{
	void *p = w->pool ? w->pool + w->pool_bytes : NULL;

	w->pool_bytes += (bytes + 63) & ~63ull;
	return p;
}

static void pools_make(struct worker *w)
{
	const uint8_t **src;

	w->pool_bytes = 0;
	w->slots.held = carve(w, w->slots.pages);
	w->slots.stamp = carve(w, w->slots.pages * 4ull);
	w->stage.held = carve(w, w->stage.pages);
	w->stage_word = carve(w, w->stage.pages * 8ull);
	w->stage_crc = carve(w, w->stage.pages * 4ull);
	w->inflight = carve(w, NE_SLABS_MAX * 8ull);
	w->bounce = carve(w, RX_BYTES);
	src = carve(w, (uint64_t)LOG_DEPTH * (NE_REQUEST_MAX_BYTES / NE_PAGE_BYTES) * sizeof(void *));
	w->acts = carve(w, ACTS * sizeof(struct act));
	w->wops = carve(w, ACTS * sizeof(struct wop));
	w->rios = carve(w, RIOS * sizeof(struct rio));
	w->dops = carve(w, dops_of(w) * sizeof(struct dop));
	for (uint32_t i = 0; w->pool && i < LOG_DEPTH; i++) {
		w->reqs[i].log = &w->cs->log[i];
		w->reqs[i].src = src + (uint64_t)i * (NE_REQUEST_MAX_BYTES / NE_PAGE_BYTES);
	}
	w->sync_req.log = &w->sync_log;
}

/* Places the worker on its part of the state memfd. */
int worker_create(struct ne_device *dev, uint32_t idx, struct worker **ret)
{
	struct worker *w = ne_zeros(sizeof(*w));
	uint8_t *state = dev->map + worker_offset(dev, idx);

	if (!w)
		return -ENOMEM;
	w->dev = dev;
	w->idx = idx;
	w->sock = -1;
	w->cs = (struct ne_conn_state *)state;
	w->rx = state + CONN_STATE_BYTES;
	w->tx = w->rx + RX_BYTES;
	w->slots.mem = w->tx + TX_BYTES;
	w->slots.pages = slots_per_worker(dev);
	w->stage.mem = w->slots.mem + dev->params.pending_bytes;
	w->stage.pages = STAGING_BYTES / NE_PAGE_BYTES;
	w->deferred_end = &w->deferred;
	w->dop_wait_end = &w->dop_wait;
	w->dop_kept_end = &w->dop_kept;
	hedge_budget_begin(&w->budget);
	w->patience_ns = hedge_floor_ns(&dev->params);
	atomic_store(&w->sock_mail, -1);
	w->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	pools_make(w); /* for its size */
	w->pool = ne_zeros(w->pool_bytes);
	if (w->kick_fd < 0 || !w->pool) {
		worker_destroy(w);
		return -ENOMEM;
	}
	pools_make(w);
	*ret = w;
	return 0;
}

int worker_start(struct worker *w)
{
	int rc = thread_start(&w->thread, 0, worker_main, w);

	if (rc)
		return rc;
	w->started = true;
	while (!atomic_load(&w->start_rc))
		usleep(100);
	return atomic_load(&w->start_rc) < 0 ? atomic_load(&w->start_rc) : 0;
}

void worker_stop(struct worker *w)
{
	if (!w->started)
		return;
	atomic_store(&w->stop, 1);
	worker_kick(w);
	pthread_join(w->thread, NULL);
	w->started = false;
}

void worker_destroy(struct worker *w)
{
	int sock;

	if (!w)
		return;
	worker_stop(w);
	for (uint32_t i = 0; i < NE_DONORS_MAX; i++) {
		struct ne_link *mail = atomic_exchange(&w->link_mail[i], NULL);

		if (mail)
			mail->ops->destroy(mail);
		if (w->links[i])
			ne_link_discard(w->links[i]);
	}
	ne_disk_destroy(w->disk);
	ne_seal_destroy(w->seal);
	ne_tls_end(atomic_exchange(&w->tls_mail, NULL));
	ne_tls_end(w->tls);
	sock = atomic_exchange(&w->sock_mail, -1);
	if (sock >= 0)
		close(sock);
	if (w->sock >= 0)
		close(w->sock); /* whoever holds a duplicate keeps the connection */
	if (w->kick_fd >= 0)
		close(w->kick_fd);
	free(w->recovered);
	if (w->pool)
		munmap(w->pool, w->pool_bytes);
	munmap(w, sizeof(*w));
}
