/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv.h - what the files of a member's half share: kv.c makes it and has the calls that begin something, kv_lanes.c sends
 * and receives, kv_wait.c has the calls that wait for what comes.
 *
 * A push goes out on the caller's thread: it is a head in a queue and one call of the kernel. A thread of the kv's own
 * receives: it sleeps in epoll_wait() without a timeout, and wakes those that wait for results. One of these receives
 * itself, while it waits.
 *
 * A lane that ends takes nothing along. What was pushed lies in the region until its result is there, and goes out
 * again, behind what is held, on the next lane. Who makes that lane is the caller's business: ne_kv_wait_lane() names
 * it.
 */
#ifndef FARSIDE_KV_H
#define FARSIDE_KV_H

#include <pthread.h>
#include <sys/epoll.h>

#include "lane.h"

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
	struct ne_export *pair; /* the lane's queue pair; NULL: none */
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
	struct ne_fault_rules rules;
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

/* All that follows is called with the lock, but for kv_enter() and the thread. */

/* ----------------------------------------------------------------------- kv.c */

/* Takes the lock; -EBADF, and it is free: this process has no part in it. */
int kv_enter(struct ne_kv *kv);
bool kv_is_range(const struct ne_kv *kv, uint32_t first, uint32_t count);
/* Whether each chunk has been pushed in that iteration, or has its result. */
bool kv_has_pushed(const struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t iteration);
/* Arrays that stand one behind the other, and those of a master, which begin on cache lines. */
uint8_t *kv_copy_packed(const struct layout *layout, uint32_t chunk, uint8_t *master, uint8_t *packed, bool to_master);

/* ----------------------------------------------------------------- kv_lanes.c */

void kv_put_push(struct ne_kv *kv, uint32_t chunk, uint64_t iteration);
void kv_put_pull(struct ne_kv *kv, uint32_t chunk);
void kv_put_numbers(struct ne_kv *kv, uint32_t number, uint32_t group, const struct numbers *numbers);
/* On a new lane, and under a new epoch: what is held, then the push that may have been lost. */
void kv_introduce(struct ne_kv *kv, uint32_t chunk);
/* What has been put goes out. */
void kv_send_all(struct ne_kv *kv);
void kv_end_lane(struct ne_kv *kv, uint32_t number);
/* A result that a former owner still writes must not come over one of the next owner: its lane begins anew. */
void kv_leave_owner(struct ne_kv *kv, const struct held *held);
/* Asks for the state of a version. */
int kv_want_state(struct ne_kv *kv, uint32_t chunk, uint64_t version);
void kv_forget(struct held *held, bool is_whole);
/* It came anew, and has yet to get all chunks at one version. */
bool kv_is_joining(const struct ne_kv *kv);
bool kv_has_version(const struct ne_kv *kv, uint32_t chunk, uint64_t version);
/* Takes what has come, and wakes whom it concerns. */
void kv_take_in(struct ne_kv *kv, const struct epoll_event *events, int ready);
/* While a waiter receives, the thread does not wake for lanes. */
void kv_set_receiver(struct ne_kv *kv, bool is_waiter);
/* The thread: receives while nobody waits, or those that wait leave it to others. */
void *kv_receive(void *kv);

#endif
