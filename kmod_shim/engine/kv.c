/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv.c - a member's half of aggregation: its region, and what it owes to each Aggregator (chunk.h has the rules).
 *
 * A push goes out on the caller's thread: it is a head in a queue and one call of the kernel. A thread of the kv's own
 * receives: it sleeps in epoll_wait() without a timeout, and wakes those that wait for results.
 *
 * A lane that ends takes nothing along. What was pushed lies in the region until its result is there, and goes out
 * again, behind what is held, on the next lane. Who makes that lane is the caller's business: ne_kv_wait_lane() names
 * it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "lane.h"
#include "reduce.h"
#include "thread.h"

enum {
	READY = 64,
	ASKED = 16,  /* states of chunks that are on their way */
	NUMBERS = 2, /* of a group: of now, and of the iteration before, which may be repeated */
	WAKE = -1,
	NOBODY = NE_MEMBERS_MAX,
};

struct held {
	uint64_t version;
	uint64_t epoch;
	uint64_t owed;	   /* a version whose contents an Aggregator wants as soon as it is here */
	uint8_t owner;	   /* NOBODY: not said yet */
	bool has_any;	   /* a version is held */
	bool is_first;	   /* it is the start: layout_start() */
	bool keeps;	   /* with the optimizer's state */
	bool is_anew;	   /* ...by this process, which may compute another gradient than the one before it pushed */
	bool is_full;	   /* the gradient of version + 1 is in the region */
	bool has_gradient; /* the gradient of version is in the region, too */
	bool owes;
	bool is_absent; /* that gradient is none, and so was the one before */
	bool was_absent;
	bool is_taken;	/* hold: the owner has it */
	bool is_pulled; /* hold: its result is wanted */
	bool has_asked; /* for the state of version `asked`... */
	bool has_given; /* ...which is here, in `given` */
	uint64_t asked;
	uint8_t *given;
};

struct numbers {
	uint64_t from;
	struct ne_hyper hyper;
};

struct aggregator {
	struct lane lane;
	bool is_there, waits_out;
	bool has_ended; /* and nobody has been told */
};

struct ne_kv {
	struct ne_kv *next; /* of this process's */
	bool is_anothers;   /* this is the copy of a child of fork() */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a waiter that does not receive has what it waits for */
	pthread_cond_t ended;	/* a lane has ended, or is lacking */
	struct waiter *waiters;
	bool has_receiver; /* one of them; the thread sleeps meanwhile */
	struct layout layout;
	uint32_t rank;
	int region, poll, wake;
	int lanes; /* what poll waits for: all lanes, and wake */
	uint8_t *at;
	struct held *held;
	struct numbers *numbers;
	struct aggregator aggregator[NE_MEMBERS_MAX];
	uint8_t *scratch;
	int dead;	  /* -errno: the job can't go on */
	bool has_started; /* with the job: it did not come anew */
	bool has_joined;  /* it came anew, and has all chunks at one version */
	bool hold;
	bool is_fetching;
	uint32_t others;  /* calls that wait for something else than a version */
	uint32_t lacking; /* chunks that are not held */
	uint64_t join_version;
	uint32_t join_next, joining; /* chunk to ask for next; how many are on their way */
	uint8_t *start;		     /* state of a start, as a master has it; NULL: none, or of no use any more */
	uint32_t first_left;	     /* chunks that are at the start */
	bool stops;
};

/* A call that waits for a version, on its caller's stack. */
struct waiter {
	uint32_t chunk; /* the first that lacks it */
	uint64_t version;
	struct waiter *next;
};

struct source {
	struct ne_kv *kv;
	uint32_t number;
};

/* ---------------------------------------------------------------------- sending */

/* The payload is sent by lanes of any kind; by shared memory it is not needed otherwise. */
static void put_inline(struct ne_kv *kv, uint32_t chunk, struct frame frame, void *payload, uint64_t bytes)
{
	struct held *held = &kv->held[chunk];
	struct part part = {payload, bytes};
	struct aggregator *to;

	if (held->owner == NOBODY || !kv->aggregator[held->owner].is_there)
		return;
	to = &kv->aggregator[held->owner];
	frame.chunk = chunk;
	frame.epoch = held->epoch;
	if (lane_put(&to->lane, &frame, &part, bytes ? 1 : 0) < 0)
		shutdown(to->lane.fd, SHUT_RDWR);
}

static void put(struct ne_kv *kv, uint32_t chunk, struct frame frame, void *payload, uint64_t bytes)
{
	uint8_t owner = kv->held[chunk].owner;

	put_inline(kv, chunk, frame, payload, owner != NOBODY && kv->aggregator[owner].lane.is_shm ? 0 : bytes);
}

static void put_ask(struct ne_kv *kv, uint32_t chunk)
{
	put(kv, chunk, (struct frame){.kind = FRAME_ASK, .iteration = kv->held[chunk].asked}, NULL, 0);
}

static void put_push(struct ne_kv *kv, uint32_t chunk, uint64_t iteration)
{
	const struct held *held = &kv->held[chunk];
	bool is_absent = iteration == held->version ? held->was_absent : held->is_absent;

	put(kv, chunk,
	    (struct frame){.kind = FRAME_PUSH, .flags = is_absent ? FRAME_ABSENT : 0, .iteration = iteration},
	    kv->at + layout_gradient(&kv->layout, chunk, iteration), layout_bytes(&kv->layout, chunk));
}

static void put_pull(struct ne_kv *kv, uint32_t chunk)
{
	put(kv, chunk, (struct frame){.kind = FRAME_PULL, .iteration = kv->held[chunk].version + 1}, NULL, 0);
}

/* On a new lane, and under a new epoch: what is held, then the push that may have been lost. */
static void introduce(struct ne_kv *kv, uint32_t chunk)
{
	struct held *held = &kv->held[chunk];
	uint16_t flags = (held->has_any ? 0 : FRAME_NOTHING) | (held->keeps ? FRAME_KEEPS : 0) |
			 (held->is_anew ? FRAME_ANEW : 0);

	put(kv, chunk, (struct frame){.kind = FRAME_HAVE, .iteration = held->version, .flags = flags}, NULL, 0);
	if (held->has_asked && !held->has_given)
		put_ask(kv, chunk);
	if (held->is_full)
		put_push(kv, chunk, held->version + 1);
	if (held->is_full && held->is_pulled)
		put_pull(kv, chunk);
}

static void pay(struct ne_kv *kv, uint32_t chunk)
{
	struct held *held = &kv->held[chunk];
	struct frame frame = {.kind = FRAME_SEED, .iteration = held->version};
	const struct layout *layout = &kv->layout;

	if (!held->owes || !held->has_any || held->owed != held->version || !(held->keeps || layout->sum_only))
		return;
	held->owes = false;
	if (held->is_first && !kv->start)
		frame.flags = FRAME_FIRST;
	if (held->is_first && kv->start)
		put_inline(kv, chunk, frame, kv->start + layout->masters[chunk], layout_state_bytes(layout, chunk));
	else if (held->is_first)
		put(kv, chunk, frame, kv->at + layout_start(layout, chunk, held->version), layout_bytes(layout, chunk));
	else if (layout->sum_only)
		put(kv, chunk, frame, kv->at + layout_result(layout, chunk), layout_bytes(layout, chunk));
	else
		put(kv, chunk, frame, kv->at + layout_kept(layout, chunk, held->version),
		    layout_state_bytes(layout, chunk));
}

static void put_numbers(struct ne_kv *kv, uint32_t number, uint32_t group, const struct numbers *numbers)
{
	struct aggregator *to = &kv->aggregator[number];
	struct frame frame = {.kind = FRAME_HYPER, .chunk = group, .iteration = numbers->from};

	if (to->is_there && numbers->from &&
	    lane_put_copy(&to->lane, &frame, &numbers->hyper, sizeof(numbers->hyper)) < 0)
		shutdown(to->lane.fd, SHUT_RDWR);
}

static void watch(struct ne_kv *kv, uint32_t number, bool waits_out)
{
	struct aggregator *to = &kv->aggregator[number];
	struct epoll_event event = {.events = EPOLLIN | (waits_out ? EPOLLOUT : 0), .data.u64 = number};

	if (waits_out == to->waits_out)
		return;
	to->waits_out = waits_out;
	epoll_ctl(kv->lanes, EPOLL_CTL_MOD, to->lane.fd, &event);
}

static void end_lane(struct ne_kv *kv, uint32_t number)
{
	struct aggregator *to = &kv->aggregator[number];

	if (!to->is_there)
		return;
	to->is_there = to->waits_out = false;
	to->has_ended = true;
	lane_close(&to->lane);
	pthread_cond_broadcast(&kv->ended);
}

static void send_all(struct ne_kv *kv)
{
	for (uint32_t number = 0; number < NE_MEMBERS_MAX; number++) {
		struct aggregator *to = &kv->aggregator[number];
		int left;

		if (!to->is_there || !to->lane.count)
			continue;
		left = lane_send(&to->lane);
		if (left < 0)
			end_lane(kv, number);
		else
			watch(kv, number, left);
	}
}

/* -------------------------------------------------------------------- receiving */

static bool is_current(const struct source *s, const struct frame *frame)
{
	const struct held *held = &s->kv->held[frame->chunk];

	return held->owner == s->number && held->epoch == frame->epoch;
}

static bool is_wanted(const struct source *s, const struct frame *frame)
{
	const struct held *held = &s->kv->held[frame->chunk];

	/* What was not pushed is not wanted: a member that came anew may be one behind the owner. */
	return is_current(s, frame) &&
	       (!held->has_any || (frame->iteration == held->version + 1 && (held->is_full || s->kv->layout.sum_only)));
}

static bool is_asked(const struct source *s, const struct frame *frame)
{
	const struct held *held = &s->kv->held[frame->chunk];

	return is_current(s, frame) && held->has_asked && !held->has_given && held->asked == frame->iteration;
}

static int place_state(struct source *s, const struct frame *frame, struct part *part)
{
	const struct layout *layout = &s->kv->layout;

	if (layout->sum_only || frame->bytes != layout_state_bytes(layout, frame->chunk))
		return -EPROTO;
	*part = (struct part){is_asked(s, frame) ? s->kv->held[frame->chunk].given : s->kv->scratch, frame->bytes};
	return 0;
}

static int place(void *owner, const struct frame *frame, struct part parts[LANE_PARTS])
{
	struct source *s = owner;
	struct ne_kv *kv = s->kv;
	const struct layout *layout = &kv->layout;
	uint64_t bytes, kept = 0;

	if (frame->chunk >= layout->chunks)
		return -EPROTO;
	if (frame->kind == FRAME_STATE)
		return place_state(s, frame, &parts[0]);
	if (kv->aggregator[s->number].lane.is_shm || frame->kind != FRAME_RESULT)
		return -EPROTO;
	bytes = layout_bytes(layout, frame->chunk);
	if (frame->flags & FRAME_KEEPS) {
		if (layout->sum_only || layout_keeper(layout, frame->chunk) != kv->rank)
			return -EPROTO;
		kept = layout_state_bytes(layout, frame->chunk);
	}
	if (frame->bytes != bytes + kept)
		return -EPROTO;
	if (!is_wanted(s, frame)) {
		parts[0] = (struct part){kv->scratch, frame->bytes};
		return 0;
	}
	parts[0] = (struct part){kv->at + layout_result(layout, frame->chunk), bytes};
	parts[1] = (struct part){kv->at + layout_kept(layout, frame->chunk, frame->iteration), kept};
	return 0;
}

/* ---------------------------------------------------------------------- joining */

static bool is_joining(const struct ne_kv *kv)
{
	return !kv->layout.sum_only && !kv->has_started && !kv->has_joined;
}

static int ask(struct ne_kv *kv, uint32_t chunk, uint64_t version)
{
	struct held *held = &kv->held[chunk];

	if (!held->given)
		held->given = malloc(layout_state_bytes(&kv->layout, chunk));
	if (!held->given)
		return -ENOMEM;
	held->has_asked = true;
	held->has_given = false;
	held->asked = version;
	put_ask(kv, chunk);
	return 0;
}

static void forget(struct held *held, bool is_whole)
{
	held->has_asked = held->has_given = false;
	/* What has come in part may go on coming in. */
	if (is_whole) {
		free(held->given);
		held->given = NULL;
	}
}

/*
 * A member that came anew has chunks at two versions, if it came in the middle of an iteration. It goes on from the
 * lower one, which all Aggregators still have.
 */
static void join(struct ne_kv *kv)
{
	while (kv->joining < ASKED && kv->join_next < kv->layout.chunks) {
		uint32_t chunk = kv->join_next++;

		if (kv->held[chunk].version == kv->join_version)
			continue;
		if (kv->held[chunk].version != kv->join_version + 1) {
			kv->dead = -ESTALE;
			return;
		}
		if (ask(kv, chunk, kv->join_version) < 0) {
			kv->dead = -ENOMEM;
			return;
		}
		kv->joining++;
	}
	if (!kv->joining && kv->join_next == kv->layout.chunks)
		kv->has_joined = true;
}

static void begin_to_join(struct ne_kv *kv)
{
	kv->join_version = UINT64_MAX;
	for (uint32_t chunk = 0; chunk < kv->layout.chunks; chunk++)
		if (kv->held[chunk].version < kv->join_version)
			kv->join_version = kv->held[chunk].version;
	join(kv);
}

/* The chunk goes back to the version that was asked for. */
static void install(struct ne_kv *kv, uint32_t chunk)
{
	const struct layout *layout = &kv->layout;
	struct held *held = &kv->held[chunk];
	uint8_t *result = kv->at + layout_result(layout, chunk);

	if (layout->dtypes[chunk] == NE_DTYPE_F32)
		memcpy(result, held->given, layout_bytes(layout, chunk));
	else
		reduce_narrow(layout->dtypes[chunk], result, (const float *)held->given, layout->counts[chunk]);
	if (layout_keeper(layout, chunk) == kv->rank)
		memcpy(kv->at + layout_kept(layout, chunk, held->asked), held->given,
		       layout_state_bytes(layout, chunk));
	held->keeps = layout_keeper(layout, chunk) == kv->rank;
	held->version = held->asked;
	held->is_anew = true;
	forget(held, true);
	kv->joining--;
	join(kv);
}

static int take_state(struct source *s, const struct frame *frame)
{
	struct ne_kv *kv = s->kv;

	if (kv->layout.sum_only || !frame->bytes)
		return -EPROTO;
	if (!is_asked(s, frame))
		return 0;
	kv->held[frame->chunk].has_given = true;
	if (is_joining(kv))
		install(kv, frame->chunk);
	return 0;
}

/* ---------------------------------------------------------------------- results */

/* An Aggregator says who owns the chunk now, which counts if it is newer than what is known. */
static int follow(struct ne_kv *kv, const struct frame *frame)
{
	struct held *held = &kv->held[frame->chunk];

	if (frame->status >= NE_MEMBERS_MAX || !frame->aux)
		return -EPROTO;
	if (frame->aux <= held->epoch)
		return 0;
	held->owner = frame->status;
	held->epoch = frame->aux;
	if (!kv->aggregator[held->owner].is_there) {
		kv->aggregator[held->owner].has_ended = true;
		pthread_cond_broadcast(&kv->ended);
	}
	introduce(kv, frame->chunk);
	return 0;
}

static void leave_start(struct ne_kv *kv, struct held *held)
{
	kv->first_left -= held->is_first ? 1 : 0;
	held->is_first = false;
	/* Nothing of it is on its way: who has the next version has had it. */
	if (!kv->first_left && kv->start) {
		free(kv->start);
		kv->start = NULL;
	}
}

static int take_result(struct source *s, const struct frame *frame)
{
	struct ne_kv *kv = s->kv;
	struct held *held = &kv->held[frame->chunk];

	if (!kv->aggregator[s->number].lane.is_shm && !frame->bytes)
		return -EPROTO;
	if (!is_current(s, frame))
		return 0;
	if (is_wanted(s, frame)) {
		held->has_gradient = held->has_any && held->is_full && !kv->layout.sum_only;
		held->is_anew = !held->has_any && !kv->has_started;
		held->version = frame->iteration;
		held->keeps = frame->flags & FRAME_KEEPS;
		leave_start(kv, held);
		kv->lacking -= held->has_any ? 0 : 1;
		held->has_any = true;
		held->is_full = held->is_taken = held->is_pulled = false;
		held->was_absent = held->is_absent;
		pay(kv, frame->chunk);
		if (!kv->lacking && is_joining(kv))
			begin_to_join(kv);
	} else if (frame->iteration > held->version + 1) {
		return -EPROTO;
	} else if (held->has_asked && !held->has_given) {
		/* The owner knows its version now. */
		put_ask(kv, frame->chunk);
	} else if (held->is_full && frame->iteration == held->version) {
		/* What is held already asks a member that is ahead for its next push. */
		put_push(kv, frame->chunk, held->version + 1);
	}
	return frame->flags & FRAME_LAST ? follow(kv, frame) : 0;
}

static int take(void *owner, const struct frame *frame)
{
	struct source *s = owner;
	struct ne_kv *kv = s->kv;
	struct held *held;

	if (frame->chunk >= kv->layout.chunks)
		return -EPROTO;
	held = &kv->held[frame->chunk];
	switch (frame->kind) {
	case FRAME_RESULT:
		return take_result(s, frame);
	case FRAME_STATE:
		return take_state(s, frame);
	case FRAME_TAKEN:
		if (is_current(s, frame) && held->is_full && frame->iteration == held->version + 1)
			held->is_taken = true;
		return 0;
	case FRAME_MOVED:
		return follow(kv, frame);
	case FRAME_WANT_HAVE:
		if (is_current(s, frame))
			introduce(kv, frame->chunk);
		return 0;
	case FRAME_WANT_PUSH:
		if (!is_current(s, frame))
			return 0;
		if ((held->is_full && frame->iteration == held->version + 1) ||
		    (held->has_gradient && frame->iteration == held->version))
			put_push(kv, frame->chunk, frame->iteration);
		return 0;
	case FRAME_WANT_SEED:
		if (is_current(s, frame)) {
			held->owes = true;
			held->owed = frame->iteration;
			pay(kv, frame->chunk);
		}
		return 0;
	case FRAME_ERROR:
		kv->dead = -(int)(frame->status && frame->status < 4096 ? frame->status : EPROTO);
		return 0;
	default:
		return -EPROTO;
	}
}

static const struct lane_owner calls = {.place = place, .take = take};

static void look_at(struct ne_kv *kv, const struct epoll_event *event)
{
	struct source s = {kv, (uint32_t)event->data.u64};

	/* It is for the end alone: whoever else sleeps here is to see it, too. */
	if (event->data.u64 == (uint64_t)WAKE)
		return;
	if (!kv->aggregator[s.number].is_there || !(event->events & ~EPOLLOUT))
		return;
	if (lane_receive(&kv->aggregator[s.number].lane, &calls, &s) < 0)
		end_lane(kv, s.number);
}

static bool has_version(const struct ne_kv *kv, uint32_t chunk, uint64_t version)
{
	return !is_joining(kv) && kv->held[chunk].has_any && kv->held[chunk].version >= version;
}

/* Takes what has come, and wakes whom it concerns. With the lock. */
static void take_in(struct ne_kv *kv, const struct epoll_event *events, int ready)
{
	bool has_any = kv->is_fetching || kv->others; /* what these wait for is looked at there */

	for (int i = 0; i < ready; i++)
		look_at(kv, &events[i]);
	send_all(kv);
	if (kv->dead)
		pthread_cond_broadcast(&kv->ended);
	for (struct waiter *w = kv->waiters; w && !has_any; w = w->next)
		has_any = kv->dead || has_version(kv, w->chunk, w->version);
	if (has_any)
		pthread_cond_broadcast(&kv->changed);
}

/* Receives while nobody waits, or those that wait leave it to others. */
static void *receive(void *arg)
{
	struct ne_kv *kv = arg;
	bool stops = false;

	while (!stops) {
		struct epoll_event events[READY], any;
		int ready;

		epoll_wait(kv->poll, &any, 1, -1);
		pthread_mutex_lock(&kv->lock);
		/* A waiter may have taken it over in between, and taken all. */
		ready = kv->has_receiver ? 0 : epoll_wait(kv->lanes, events, READY, 0);
		take_in(kv, events, ready);
		stops = kv->stops;
		pthread_mutex_unlock(&kv->lock);
	}
	return NULL;
}

/* While a waiter receives, the thread does not wake for lanes. */
static void set_receiver(struct ne_kv *kv, bool is_waiter)
{
	struct epoll_event event = {.events = is_waiter ? 0 : EPOLLIN};

	kv->has_receiver = is_waiter;
	epoll_ctl(kv->poll, EPOLL_CTL_MOD, kv->lanes, &event);
}

/* ------------------------------------------------------------------------- fork */

/*
 * A child of fork() has a copy of each lane. While it is open, the Aggregator would not see the member's end. What the
 * child does in between is little: at the moment of fork() all locks are held, so nothing is half done.
 */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t all_once = PTHREAD_ONCE_INIT;
static struct ne_kv *all;

static void before_fork(void)
{
	pthread_mutex_lock(&all_lock);
	for (struct ne_kv *kv = all; kv; kv = kv->next)
		pthread_mutex_lock(&kv->lock);
}

static void after_fork(void)
{
	for (struct ne_kv *kv = all; kv; kv = kv->next)
		pthread_mutex_unlock(&kv->lock);
	pthread_mutex_unlock(&all_lock);
}

static void close_all(struct ne_kv *kv)
{
	for (uint32_t number = 0; number < NE_MEMBERS_MAX; number++) {
		if (kv->aggregator[number].is_there)
			lane_close(&kv->aggregator[number].lane);
		kv->aggregator[number].is_there = false;
	}
	if (kv->region >= 0)
		close(kv->region);
	if (kv->poll >= 0)
		close(kv->poll);
	if (kv->lanes >= 0)
		close(kv->lanes);
	if (kv->wake >= 0)
		close(kv->wake);
	kv->region = kv->poll = kv->lanes = kv->wake = -1;
}

static void after_fork_in_child(void)
{
	for (struct ne_kv *kv = all; kv; kv = kv->next) {
		kv->is_anothers = true;
		kv->at = NULL;
		close_all(kv);
	}
	after_fork();
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

static void list(struct ne_kv *kv)
{
	pthread_once(&all_once, watch_forks);
	pthread_mutex_lock(&all_lock);
	kv->next = all;
	all = kv;
	pthread_mutex_unlock(&all_lock);
}

static void unlist(struct ne_kv *kv)
{
	struct ne_kv **at = &all;

	pthread_mutex_lock(&all_lock);
	while (*at && *at != kv)
		at = &(*at)->next;
	if (*at)
		*at = kv->next;
	pthread_mutex_unlock(&all_lock);
}

/* Takes the lock; -EBADF, and it is free: this process has no part in it. */
static int enter(struct ne_kv *kv)
{
	if (kv->is_anothers)
		return -EBADF;
	pthread_mutex_lock(&kv->lock);
	return 0;
}

/* ------------------------------------------------------------------------ doors */

static int make_region(struct ne_kv *kv)
{
	uint64_t bytes = layout_region_bytes(&kv->layout, kv->rank);
	void *at;

	kv->region = memfd_create("farside-aggregation", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (kv->region < 0)
		return -errno;
	if (ftruncate(kv->region, bytes) || fcntl(kv->region, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
		return -errno;
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, kv->region, 0);
	if (at == MAP_FAILED)
		return -errno;
	kv->at = at;
	/* A child of fork() has lanes and region of somebody else. */
	madvise(at, bytes, MADV_DONTFORK);
	return 0;
}

static int make(struct ne_kv *kv, const struct ne_job *job)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)WAKE};
	struct epoll_event any = {.events = EPOLLIN};
	int err = layout_make(&kv->layout, job);

	if (err)
		return err;
	if (kv->rank >= job->members)
		return -EINVAL;
	kv->held = calloc(job->chunks, sizeof(*kv->held));
	kv->numbers = calloc(NUMBERS * job->groups, sizeof(*kv->numbers));
	kv->scratch = malloc(FRAME_PAYLOAD_MAX);
	if (!kv->held || !kv->numbers || !kv->scratch)
		return -ENOMEM;
	for (uint32_t chunk = 0; chunk < job->chunks; chunk++)
		kv->held[chunk].owner = NOBODY;
	kv->lacking = job->chunks;
	kv->hold = job->hold;
	err = make_region(kv);
	if (err)
		return err;
	kv->poll = epoll_create1(EPOLL_CLOEXEC);
	kv->lanes = epoll_create1(EPOLL_CLOEXEC);
	kv->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (kv->poll < 0 || kv->lanes < 0 || kv->wake < 0 || epoll_ctl(kv->lanes, EPOLL_CTL_ADD, kv->wake, &event) ||
	    epoll_ctl(kv->poll, EPOLL_CTL_ADD, kv->lanes, &any))
		return -errno;
	return thread_start(&kv->thread, 0, receive, kv);
}

static void free_kv(struct ne_kv *kv)
{
	if (kv->at)
		munmap(kv->at, layout_region_bytes(&kv->layout, kv->rank));
	close_all(kv);
	for (uint32_t chunk = 0; kv->held && chunk < kv->layout.chunks; chunk++)
		free(kv->held[chunk].given);
	free(kv->start);
	free(kv->held);
	free(kv->numbers);
	free(kv->scratch);
	layout_free(&kv->layout);
	/* In a child of fork() somebody may seem to wait for ever. */
	if (!kv->is_anothers) {
		pthread_mutex_destroy(&kv->lock);
		pthread_cond_destroy(&kv->changed);
		pthread_cond_destroy(&kv->ended);
	}
	free(kv);
}

int ne_kv_create(const struct ne_job *job, uint32_t rank, struct ne_kv **ret)
{
	struct ne_kv *kv = calloc(1, sizeof(*kv));
	pthread_condattr_t attr;
	int err;

	if (!kv)
		return -ENOMEM;
	kv->rank = rank;
	kv->region = kv->poll = kv->lanes = kv->wake = -1;
	pthread_mutex_init(&kv->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&kv->changed, &attr);
	pthread_cond_init(&kv->ended, &attr);
	pthread_condattr_destroy(&attr);
	/* Its thread starts last: a fork() before finds nothing to close but files. */
	list(kv);
	err = make(kv, job);
	if (err) {
		unlist(kv);
		free_kv(kv);
		return err;
	}
	*ret = kv;
	return 0;
}

void ne_kv_stop(struct ne_kv *kv)
{
	uint64_t one = 1;
	bool was;

	if (enter(kv))
		return;
	was = kv->stops;
	kv->stops = true;
	pthread_cond_broadcast(&kv->changed);
	pthread_cond_broadcast(&kv->ended);
	pthread_mutex_unlock(&kv->lock);
	if (was)
		return;
	(void)!write(kv->wake, &one, sizeof(one));
	pthread_join(kv->thread, NULL);
	pthread_mutex_lock(&kv->lock);
	for (uint32_t number = 0; number < NE_MEMBERS_MAX; number++)
		end_lane(kv, number);
	pthread_mutex_unlock(&kv->lock);
}

void ne_kv_destroy(struct ne_kv *kv)
{
	if (!kv)
		return;
	ne_kv_stop(kv);
	unlist(kv);
	free_kv(kv);
}

int ne_kv_region(struct ne_kv *kv)
{
	return kv->region;
}

void *ne_kv_gradient(struct ne_kv *kv, uint32_t chunk, uint64_t iteration)
{
	return chunk < kv->layout.chunks && kv->at ? kv->at + layout_gradient(&kv->layout, chunk, iteration) : NULL;
}

void *ne_kv_result(struct ne_kv *kv, uint32_t chunk)
{
	return chunk < kv->layout.chunks && kv->at ? kv->at + layout_result(&kv->layout, chunk) : NULL;
}

/* Arrays that stand one behind the other, and those of a master, which begin on cache lines. */
static uint8_t *copy_packed(const struct layout *layout, uint32_t chunk, uint8_t *master, uint8_t *packed,
			    bool to_master)
{
	uint64_t bytes = layout_array_bytes(layout, chunk);

	for (uint32_t i = 0; i < layout->arrays; i++) {
		uint8_t *array = master + i * (layout_state_bytes(layout, chunk) / layout->arrays);

		memcpy(to_master ? array : packed, to_master ? packed : array, bytes);
		packed += bytes;
	}
	return packed;
}

static int copy_start(struct ne_kv *kv, const void *state)
{
	uint8_t *at = (uint8_t *)state;

	kv->start = calloc(1, kv->layout.master_bytes);
	if (!kv->start)
		return -ENOMEM;
	for (uint32_t chunk = 0; chunk < kv->layout.chunks; chunk++)
		at = copy_packed(&kv->layout, chunk, kv->start + kv->layout.masters[chunk], at, true);
	return 0;
}

static void start_at(struct ne_kv *kv, uint32_t chunk, uint64_t version)
{
	struct held *held = &kv->held[chunk];

	held->version = version;
	held->has_any = true;
	if (kv->layout.sum_only)
		return;
	held->is_first = held->keeps = true;
	kv->first_left++;
	memcpy(kv->at + layout_start(&kv->layout, chunk, version), kv->at + layout_result(&kv->layout, chunk),
	       layout_bytes(&kv->layout, chunk));
}

int ne_kv_start(struct ne_kv *kv, uint64_t version, const void *state)
{
	bool has_any = kv->layout.sum_only || kv->rank == 0;
	int err = 0;

	if (enter(kv))
		return -EBADF;
	if (kv->has_started || (state && kv->layout.sum_only))
		err = -EINVAL;
	else if (state && kv->rank == 0)
		err = copy_start(kv, state);
	kv->has_started = kv->has_started || !err;
	for (uint32_t chunk = 0; !err && has_any && chunk < kv->layout.chunks; chunk++)
		start_at(kv, chunk, version);
	if (!err && has_any)
		kv->lacking = 0;
	pthread_mutex_unlock(&kv->lock);
	return err;
}

static bool is_range(const struct ne_kv *kv, uint32_t first, uint32_t count)
{
	return first <= kv->layout.chunks && count <= kv->layout.chunks - first;
}

int ne_kv_own(struct ne_kv *kv, uint32_t first, uint32_t count, uint32_t aggregator, uint64_t epoch)
{
	if (!is_range(kv, first, count) || aggregator >= NE_MEMBERS_MAX || !epoch)
		return -EINVAL;
	if (enter(kv))
		return -EBADF;
	for (uint32_t chunk = first; chunk < first + count; chunk++) {
		/* It has moved on since, or has been said already. */
		if (epoch <= kv->held[chunk].epoch)
			continue;
		kv->held[chunk].owner = aggregator;
		kv->held[chunk].epoch = epoch;
		introduce(kv, chunk);
	}
	send_all(kv);
	pthread_mutex_unlock(&kv->lock);
	return 0;
}

int ne_kv_attach(struct ne_kv *kv, uint32_t aggregator, int fd, bool is_shm)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = aggregator};
	struct aggregator *to;
	int err;

	if (aggregator >= NE_MEMBERS_MAX)
		return -EINVAL;
	to = &kv->aggregator[aggregator];
	if (enter(kv))
		return -EBADF;
	end_lane(kv, aggregator);
	to->has_ended = false;
	err = kv->stops ? -ESHUTDOWN : lane_open(&to->lane, fd, is_shm, 4 * kv->layout.chunks + 1024);
	if (!err && epoll_ctl(kv->lanes, EPOLL_CTL_ADD, fd, &event)) {
		err = -errno;
		lane_abandon(&to->lane);
	}
	if (!err) {
		to->is_there = true;
		for (uint32_t i = 0; i < NUMBERS * kv->layout.group_count; i++)
			put_numbers(kv, aggregator, i / NUMBERS, &kv->numbers[i ^ 1]);
		for (uint32_t chunk = 0; chunk < kv->layout.chunks; chunk++)
			if (kv->held[chunk].owner == aggregator)
				introduce(kv, chunk);
		send_all(kv);
	}
	pthread_mutex_unlock(&kv->lock);
	return err;
}

int ne_kv_hyper(struct ne_kv *kv, uint32_t group, uint64_t iteration, const struct ne_hyper *hyper)
{
	struct numbers *numbers = &kv->numbers[NUMBERS * (uint64_t)group];

	if (group >= kv->layout.group_count || !iteration)
		return -EINVAL;
	if (enter(kv))
		return -EBADF;
	if (numbers[0].from != iteration)
		numbers[1] = numbers[0];
	numbers[0] = (struct numbers){iteration, *hyper};
	for (uint32_t number = 0; number < NE_MEMBERS_MAX; number++)
		put_numbers(kv, number, group, &numbers[0]);
	send_all(kv);
	pthread_mutex_unlock(&kv->lock);
	return 0;
}

int ne_kv_push(struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t iteration, bool absent)
{
	int err = 0;

	if (!is_range(kv, first, count) || !iteration)
		return -EINVAL;
	if (enter(kv))
		return -EBADF;
	for (uint32_t chunk = first; !err && chunk < first + count; chunk++)
		if (!kv->held[chunk].has_any || kv->held[chunk].version + 1 != iteration || kv->held[chunk].is_full)
			err = -EAGAIN;
	if (is_joining(kv))
		err = -EAGAIN;
	for (uint32_t chunk = first; !err && chunk < first + count; chunk++)
		if (kv->held[chunk].has_asked)
			err = -EAGAIN;
	/* In descending order, as gradients come. */
	for (uint32_t chunk = first + count; !err && chunk-- > first;) {
		kv->held[chunk].is_full = true;
		kv->held[chunk].is_absent = absent;
		put_push(kv, chunk, iteration);
	}
	send_all(kv);
	pthread_mutex_unlock(&kv->lock);
	return err;
}

/* Whether each chunk has been pushed in that iteration, or has its result. */
static bool has_pushed(const struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t iteration)
{
	for (uint32_t chunk = first; chunk < first + count; chunk++) {
		const struct held *held = &kv->held[chunk];

		if (!held->has_any || (held->version < iteration && (held->version + 1 != iteration || !held->is_full)))
			return false;
	}
	return true;
}

int ne_kv_ask(struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t iteration)
{
	int err = 0;

	if (!is_range(kv, first, count) || !kv->hold)
		return -EINVAL;
	if (enter(kv))
		return -EBADF;
	if (!has_pushed(kv, first, count, iteration))
		err = -EAGAIN;
	for (uint32_t chunk = first; !err && chunk < first + count; chunk++) {
		if (kv->held[chunk].version >= iteration || kv->held[chunk].is_pulled)
			continue;
		kv->held[chunk].is_pulled = true;
		put_pull(kv, chunk);
	}
	send_all(kv);
	pthread_mutex_unlock(&kv->lock);
	return err;
}

static int ms_until(const struct timespec *deadline)
{
	uint64_t now = now_ns(), at = deadline->tv_sec * 1000000000ull + deadline->tv_nsec;

	return at > now ? (int)((at - now) / 1000000) + 1 : 0;
}

static bool is_past(const struct timespec *deadline)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec > deadline->tv_sec || (now.tv_sec == deadline->tv_sec && now.tv_nsec >= deadline->tv_nsec);
}

/* Sleeps until `cond` is signalled, or the deadline has passed: -ETIMEDOUT. */
static int sleep_until(struct ne_kv *kv, pthread_cond_t *cond, const struct timespec *deadline, int timeout_ms)
{
	if (timeout_ms < 0)
		pthread_cond_wait(cond, &kv->lock);
	else if (is_past(deadline))
		return -ETIMEDOUT;
	else
		pthread_cond_timedwait(cond, &kv->lock, deadline);
	return 0;
}

/* The same, receiving meanwhile: no other thread has to run before the caller has its result. */
static int receive_until(struct ne_kv *kv, const struct timespec *deadline, int timeout_ms)
{
	struct epoll_event events[READY];
	int ready;

	if (timeout_ms >= 0 && is_past(deadline))
		return -ETIMEDOUT;
	pthread_mutex_unlock(&kv->lock);
	ready = epoll_wait(kv->lanes, events, READY, timeout_ms < 0 ? -1 : ms_until(deadline));
	pthread_mutex_lock(&kv->lock);
	take_in(kv, events, ready);
	return 0;
}

static struct timespec deadline_of(int timeout_ms)
{
	uint64_t at_ns = now_ns() + (timeout_ms > 0 ? timeout_ms * 1000000ull : 0);

	return (struct timespec){at_ns / 1000000000, at_ns % 1000000000};
}

int ne_kv_version(struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t *ret)
{
	bool has_all = true;

	if (!is_range(kv, first, count) || !count)
		return -EINVAL;
	if (enter(kv))
		return -EBADF;
	*ret = UINT64_MAX;
	for (uint32_t chunk = first; chunk < first + count; chunk++) {
		has_all = has_all && kv->held[chunk].has_any && !is_joining(kv);
		*ret = kv->held[chunk].version < *ret ? kv->held[chunk].version : *ret;
	}
	pthread_mutex_unlock(&kv->lock);
	return has_all;
}

int ne_kv_wait(struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t version, int timeout_ms)
{
	struct timespec deadline = deadline_of(timeout_ms);
	struct waiter me = {first, version, NULL}, **at;
	bool receives = false;
	int err = 0;

	if (!is_range(kv, first, count))
		return -EINVAL;
	if (enter(kv))
		return -EBADF;
	me.next = kv->waiters;
	kv->waiters = &me;
	while (!err) {
		/* What has been seen once needs no second look: versions only grow. */
		while (me.chunk < first + count && has_version(kv, me.chunk, version))
			me.chunk++;
		if (me.chunk == first + count)
			break;
		if (!kv->has_receiver) {
			set_receiver(kv, true);
			receives = true;
		}
		err = kv->stops	 ? -ESHUTDOWN
		      : kv->dead ? kv->dead
		      : receives ? receive_until(kv, &deadline, timeout_ms)
				 : sleep_until(kv, &kv->changed, &deadline, timeout_ms);
	}
	for (at = &kv->waiters; *at != &me; at = &(*at)->next)
		;
	*at = me.next;
	if (receives)
		set_receiver(kv, false);
	pthread_mutex_unlock(&kv->lock);
	return err;
}

int ne_kv_wait_taken(struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t iteration, int timeout_ms)
{
	struct timespec deadline = deadline_of(timeout_ms);
	uint32_t chunk = first;
	int err = 0;

	if (!is_range(kv, first, count) || !kv->hold)
		return -EINVAL;
	if (enter(kv))
		return -EBADF;
	if (!has_pushed(kv, first, count, iteration))
		err = -EAGAIN;
	while (!err) {
		while (chunk < first + count && (kv->held[chunk].version >= iteration || kv->held[chunk].is_taken))
			chunk++;
		if (chunk == first + count)
			break;
		kv->others++;
		err = kv->stops	 ? -ESHUTDOWN
		      : kv->dead ? kv->dead
				 : sleep_until(kv, &kv->changed, &deadline, timeout_ms);
		kv->others--;
	}
	pthread_mutex_unlock(&kv->lock);
	return err;
}

static bool can_fetch(const struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t version)
{
	for (uint32_t chunk = first; chunk < first + count; chunk++) {
		const struct held *held = &kv->held[chunk];

		if (!held->has_any || held->version != version || held->is_full)
			return false;
	}
	return !is_joining(kv);
}

static uint64_t packed_bytes(const struct layout *layout, uint32_t first, uint32_t count)
{
	uint64_t bytes = 0;

	for (uint32_t chunk = first; chunk < first + count; chunk++)
		bytes += layout->arrays * layout_array_bytes(layout, chunk);
	return bytes;
}

/* Asks for a few chunks at a time, and copies them in their order. */
static int fetch(struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t version, uint8_t *to, int timeout_ms)
{
	struct timespec deadline = deadline_of(timeout_ms);
	uint32_t next = first, done = first;
	int err = 0;

	while (!err && done < first + count) {
		struct held *held = &kv->held[done];

		while (!err && next < first + count && next - done < ASKED)
			err = ask(kv, next++, version);
		send_all(kv);
		if (!err && held->has_given) {
			to = copy_packed(&kv->layout, done++, held->given, to, false);
			forget(held, true);
		} else if (!err) {
			err = kv->stops	 ? -ESHUTDOWN
			      : kv->dead ? kv->dead
					 : sleep_until(kv, &kv->changed, &deadline, timeout_ms);
		}
	}
	for (; done < next; done++)
		forget(&kv->held[done], kv->held[done].has_given);
	return err;
}

int ne_kv_fetch(struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t version, void *to, uint64_t bytes,
		int timeout_ms)
{
	int err;

	if (!is_range(kv, first, count) || kv->layout.sum_only || bytes != packed_bytes(&kv->layout, first, count))
		return -EINVAL;
	if (enter(kv))
		return -EBADF;
	if (kv->is_fetching) {
		err = -EBUSY;
	} else if (!can_fetch(kv, first, count, version)) {
		err = -EAGAIN;
	} else {
		kv->is_fetching = true;
		err = fetch(kv, first, count, version, to, timeout_ms);
		kv->is_fetching = false;
	}
	pthread_mutex_unlock(&kv->lock);
	return err;
}

int ne_kv_wait_lane(struct ne_kv *kv, int timeout_ms)
{
	struct timespec deadline = deadline_of(timeout_ms);
	int found = -1, err = 0;

	if (enter(kv))
		return -EBADF;
	while (!err && found < 0) {
		for (int i = 0; i < NE_MEMBERS_MAX && found < 0; i++)
			found = kv->aggregator[i].has_ended ? i : -1;
		if (found < 0)
			err = kv->stops	 ? -ESHUTDOWN
			      : kv->dead ? kv->dead
					 : sleep_until(kv, &kv->ended, &deadline, timeout_ms);
	}
	if (found >= 0)
		kv->aggregator[found].has_ended = false;
	pthread_mutex_unlock(&kv->lock);
	return err ? err : found;
}
