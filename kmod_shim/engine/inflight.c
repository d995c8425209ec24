/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inflight.c - operations in flight on links to donors: posted, polled, hedged when late, and ended by their deadline.
 */
#include "core.h"

uint8_t *direct_base(const struct ne_device *dev, uint32_t slab)
{
	uint32_t donor = dev->slabs[slab].donor;

	if (!atomic_load_explicit(&dev->donor_direct[donor], memory_order_relaxed) ||
	    atomic_load_explicit(&dev->donor_faulty[donor], memory_order_relaxed))
		return NULL;
	return atomic_load_explicit(&dev->live[slab].base, memory_order_acquire);
}

struct ne_link *worker_link(struct worker *w, uint32_t donor)
{
	struct ne_link *link = w->links[donor];

	return link && link->ops->alive(link) ? link : NULL;
}

/* True when the slab can be asked now: *base is its memory here, or NULL for "through the link". */
bool slab_is_in_reach(struct worker *w, uint32_t slab, uint8_t **base)
{
	uint32_t donor = w->dev->slabs[slab].donor;
	bool memory = atomic_load_explicit(&w->dev->donor_direct[donor], memory_order_relaxed);

	*base = direct_base(w->dev, slab);
	if (*base)
		return true;
	if (memory && !atomic_load(&w->dev->live[slab].base))
		return false; /* taken over, its memory has not come back yet */
	return worker_link(w, donor) != NULL;
}

struct ne_io home_operation(const struct ne_device *dev, uint8_t op, uint64_t word, uint32_t page, uint32_t n,
			    void *buf)
{
	const struct ne_slab_rec *slab = &dev->slabs[H_SLAB(word)];

	return (struct ne_io){.op = op,
			      .length = n * NE_PAGE_BYTES,
			      .lease = slab->lease,
			      .token = slab->token,
			      .buf = buf,
			      .base = atomic_load(&dev->live[H_SLAB(word)].base),
			      .posted_ns = now_ns(),
			      .offset = extent_offset(word, page)};
}

/* An operation on n pages of the home; takes over the caller's entry of the slab. There must be a free one. */
struct act *act_make(struct worker *w, uint8_t op, uint8_t home, uint64_t word, uint32_t page, uint32_t n, void *buf,
		     uint32_t entered)
{
	struct act *act = w->act_free;

	w->act_free = act->next;
	*act = (struct act){
		.home = home,
		.donor = w->dev->slabs[H_SLAB(word)].donor,
		.entered = entered,
		.io = home_operation(w->dev, op, word, page, n, buf),
	};
	act->io.owner = act;
	act->prev = w->act_new;
	if (w->act_new)
		w->act_new->next = act;
	else
		w->act_old = act;
	w->act_new = act;
	return act;
}

static void act_end(struct worker *w, struct act *act)
{
	if (act->prev)
		act->prev->next = act->next;
	else
		w->act_old = act->next;
	if (act->next)
		act->next->prev = act->prev;
	else
		w->act_new = act->prev;
	slab_leave(w, act->entered);
	if (act->io.op == NE_IO_READ)
		page_read_ended(w, act->rio, act->io.status);
	else
		page_write_ended(w, act);
	act->next = w->act_free;
	w->act_free = act;
}

/* False: the link is full, and the act waits for it. It may have ended when this returns true. */
bool act_post(struct worker *w, struct act *act)
{
	struct ne_link *link = w->links[act->donor];
	int rc = link ? link->ops->post(link, &act->io) : -ENOTCONN;

	if (rc == -EAGAIN) {
		act->waiting = true;
		w->act_waiting++;
		return false;
	}
	if (rc) {
		act->io.status = rc;
		act_end(w, act);
	} else {
		if (link->ops->outstanding(link) == 1) {
			w->heard_ns[act->donor] = act->io.posted_ns;
			w->fresh[act->donor / 64] |= 1ull << act->donor % 64;
		}
		w->dirty[act->donor / 64] |= 1ull << act->donor % 64;
	}
	return true;
}

static void act_post_waiting(struct worker *w)
{
	uint64_t full[NE_DONORS_MAX / 64] = {0};
	struct act *act = w->act_old, *next;

	for (; act && w->act_waiting; act = next) {
		uint32_t donor = act->donor;

		next = act->next;
		if (!act->waiting || full[donor / 64] & 1ull << donor % 64)
			continue;
		act->waiting = false;
		w->act_waiting--;
		if (!act_post(w, act))
			full[donor / 64] |= 1ull << donor % 64;
	}
}

/* ------------------------------------------------------------------ how long reads take (hedge.h) */

/* The usual time of what is quickest besides the donor: the disk, or another donor whose times are known. */
static uint64_t quickest_second_ns(const struct worker *w, uint32_t donor)
{
	uint64_t least = w->disk ? w->disk_times.usual_ns : UINT64_MAX;

	for (uint32_t i = 0; i < w->link_n && has_replicas(w->dev); i++) {
		const struct hedge_times *times = &w->donor_times[w->link_list[i]];

		if (w->link_list[i] != donor && times->total && times->usual_ns < least)
			least = times->usual_ns;
	}
	return least == UINT64_MAX ? 0 : least;
}

static void patience_make(struct worker *w)
{
	uint64_t least = UINT64_MAX, floor_ns = hedge_floor_ns(&w->dev->params);

	for (uint32_t i = 0; i < w->link_n; i++) {
		uint64_t slow_ns = hedge_slow_ns(&w->donor_times[w->link_list[i]], floor_ns);

		least = slow_ns < least ? slow_ns : least;
	}
	w->patience_ns = w->link_n ? least : floor_ns;
}

static void late_make(struct worker *w, uint32_t donor)
{
	uint64_t second_ns = quickest_second_ns(w, donor);

	atomic_store_explicit(&w->late_ns[donor],
			      hedge_late_ns(&w->donor_times[donor], second_ns, hedge_floor_ns(&w->dev->params)),
			      memory_order_relaxed);
	patience_make(w);
}

void act_times_begin(struct worker *w, uint32_t donor)
{
	w->donor_times[donor] = (struct hedge_times){0};
	atomic_store_explicit(&w->late_ns[donor], 0, memory_order_relaxed);
	patience_make(w);
}

static void donor_took(struct worker *w, uint32_t donor, uint64_t took_ns, uint64_t now)
{
	hedge_budget_earn(&w->budget);
	if (hedge_took(&w->donor_times[donor], took_ns, now))
		late_make(w, donor);
}

void act_disk_took(struct worker *w, const struct ne_dio *dio)
{
	uint64_t now = now_ns();

	if (!dio->status)
		hedge_took(&w->disk_times, elapsed_ns(now, dio->posted_ns), now);
}

static bool link_poll(struct worker *w, uint32_t donor)
{
	struct ne_link *link = w->links[donor];
	struct ne_io *done[64];
	bool any = false;
	int n;

	do {
		uint64_t now;

		n = link->ops->poll(link, done, 64);
		if (n > 0 && done[0]->status < 0 && !w->link_err[donor] && !link->ops->alive(link))
			w->link_err[donor] = -done[0]->status; /* what it died of */
		if (n <= 0)
			break;
		now = now_ns();
		w->heard_ns[donor] = now;
		for (int i = 0; i < n; i++) {
			if (done[i]->op == NE_IO_READ && !done[i]->status)
				donor_took(w, donor, elapsed_ns(now, done[i]->posted_ns), now);
			act_end(w, done[i]->owner);
		}
		any = true;
	} while (n == 64);
	return any;
}

/* A dead link gives back what it holds, and is freed. */
static void link_end(struct worker *w, uint32_t donor)
{
	struct ne_link *link = w->links[donor];

	while (link_poll(w, donor))
		;
	w->links[donor] = NULL;
	link->ops->destroy(link);
}

/* A link whose answers nobody waits for any more ends without a word: its donor has failed, or been reached anew. */
void act_link_drop(struct worker *w, uint32_t donor)
{
	struct ne_link *link = w->links[donor];

	if (!link)
		return;
	link->ops->kill(link, ECANCELED);
	link_end(w, donor);
}

/* A link that has died is put away; its donor is suspect until the control side has made new links. */
static void link_reap(struct worker *w, uint32_t donor)
{
	uint32_t up = NE_DONOR_UP, err = w->link_err[donor] ? (uint32_t)w->link_err[donor] : ECONNRESET;

	link_end(w, donor);
	w->link_err[donor] = 0;
	w->stats.link_errors++;
	if (atomic_compare_exchange_strong(&w->dev->head->donor_state[donor], &up, NE_DONOR_SUSPECT))
		dev_event(w->dev, NE_EVENT_DONOR_SUSPECT, donor, 0, 0, 0);
	dev_event(w->dev, NE_EVENT_LINK_DOWN, donor, w->idx, err, 0);
}

/* Others come back from poll() by themselves, after a while or at once. */
static bool sleeps_on_its_socket(const struct ne_link *link)
{
	uint64_t timeout;
	short events;

	return link->asks_kernel && link->ops->wait(link, &events, &timeout) >= 0 && timeout == UINT64_MAX;
}

/* Hands posts to the wire and takes what has ended. */
bool act_poll(struct worker *w)
{
	bool any = false;

	if (w->act_waiting)
		act_post_waiting(w);
	for (uint32_t i = 0; i < w->link_n; i++) {
		uint32_t donor = w->link_list[i];
		struct ne_link *link = w->links[donor];
		uint64_t bit = 1ull << donor % 64, *quiet = &w->link_quiet[donor / 64];

		if (!link)
			continue;
		if (w->dirty[donor / 64] & bit) {
			w->dirty[donor / 64] &= ~bit;
			link->ops->submit(link);
			if (w->fresh[donor / 64] & bit && sleeps_on_its_socket(link))
				*quiet |= bit; /* no answer can be there yet */
			w->fresh[donor / 64] &= ~bit;
		}
		if (link->ops->outstanding(link) && !(*quiet & bit)) {
			bool some = link_poll(w, donor);

			any |= some;
			if (!some && sleeps_on_its_socket(link))
				*quiet |= bit;
		}
		if (!link->ops->alive(link)) {
			link_reap(w, donor);
			any = true;
		}
	}
	return any;
}

/* The donor has said nothing for the deadline, or this one operation hangs while others pass. */
static bool is_overdue(const struct worker *w, const struct act *act, uint64_t now)
{
	uint64_t deadline_ns = (uint64_t)w->dev->params.deadline_ms * 1000000;
	uint64_t age = elapsed_ns(now, act->io.posted_ns);

	return age >= deadline_ns &&
	       (elapsed_ns(now, w->heard_ns[act->donor]) >= deadline_ns || age >= 8 * deadline_ns);
}

/* The age at which act_timers() first looks at an operation: hedging may be later than the deadline, or never. */
uint64_t act_patience_ns(const struct worker *w)
{
	uint64_t deadline_ns = (uint64_t)w->dev->params.deadline_ms * 1000000;

	return w->patience_ns < deadline_ns ? w->patience_ns : deadline_ns;
}

static bool second_is_overloaded(const struct worker *w, const struct hedge_times *second, uint64_t now)
{
	if (second == &w->disk_times && (w->is_full || ne_disk_queued(w->disk)))
		return true;
	return second && hedge_is_overloaded(second, now);
}

/* Whether the second copy is to be asked now (hedge.h). A read that is refused is counted once, and looked at again. */
static bool is_to_hedge(struct worker *w, const struct act *act, uint64_t now)
{
	uint64_t age = elapsed_ns(now, act->io.posted_ns), floor_ns = hedge_floor_ns(&w->dev->params);
	uint64_t slow_ns = hedge_slow_ns(&w->donor_times[act->donor], floor_ns);
	const struct hedge_times *second = NULL;
	struct rio *rio = act->rio;
	enum hedge_verdict verdict;

	if (age < slow_ns || rio->hedged || !rio->req)
		return false;
	if (!page_second(w, rio, &second)) {
		rio->hedged = true;
		return false;
	}
	verdict = hedge_decide(
		&(struct hedge_case){
			.age_ns = age,
			.slow_ns = slow_ns,
			.silent_ns = elapsed_ns(now, w->heard_ns[act->donor]),
			.late_ns = hedge_late_ns(&w->donor_times[act->donor], second ? second->usual_ns : 0, floor_ns),
			.suspect = !donor_is(w->dev, act->donor, NE_DONOR_UP),
			.overloaded = second_is_overloaded(w, second, now),
		},
		&w->budget);
	if (verdict != HEDGE_WAIT && verdict != HEDGE_ASK && !rio->refused) {
		rio->refused = true;
		w->stats.hedges_no_budget += verdict == HEDGE_NO_BUDGET;
		w->stats.hedges_overload += verdict == HEDGE_OVERLOAD;
	}
	return verdict == HEDGE_ASK;
}

/* Hedges reads that are slow, and gives up donors that owe an answer for longer than the deadline. */
void act_timers(struct worker *w, uint64_t now)
{
	uint64_t patience_ns = act_patience_ns(w);
	struct act *act = w->act_old;

	while (act) {
		uint64_t age = elapsed_ns(now, act->io.posted_ns);

		if (age < patience_ns)
			break;
		if (is_overdue(w, act, now) && act->waiting) {
			act->waiting = false;
			w->act_waiting--;
			act->io.status = -ETIMEDOUT;
			act_end(w, act);
			act = w->act_old; /* the list may have changed anywhere */
		} else if (is_overdue(w, act, now)) {
			struct ne_link *link = w->links[act->donor];

			if (link && link->ops->alive(link)) {
				w->link_err[act->donor] = ETIMEDOUT;
				link->ops->kill(link, ETIMEDOUT);
			}
			act = act->next;
		} else if (act->io.op == NE_IO_READ && is_to_hedge(w, act, now)) {
			page_hedge(w, act->rio);
			act = w->act_old; /* each read is hedged once, so this ends */
		} else {
			act = act->next;
		}
	}
}
