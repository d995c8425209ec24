/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv.c - a member's half of aggregation: its region, and what it owes to each Aggregator (chunk.h has the rules, kv.h
 * the files).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kv.h"
#include "thread.h"

enum { SESSION = 1 }; /* of a pair's exporter: it has one */

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

int kv_enter(struct ne_kv *kv)
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
	return thread_start(&kv->thread, 0, kv_receive, kv);
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

	if (kv_enter(kv))
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
		kv_end_lane(kv, number);
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

uint8_t *kv_copy_packed(const struct layout *layout, uint32_t chunk, uint8_t *master, uint8_t *packed, bool to_master)
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
		at = kv_copy_packed(&kv->layout, chunk, kv->start + kv->layout.masters[chunk], at, true);
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

	if (kv_enter(kv))
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

bool kv_is_range(const struct ne_kv *kv, uint32_t first, uint32_t count)
{
	return first <= kv->layout.chunks && count <= kv->layout.chunks - first;
}

void kv_leave_owner(struct ne_kv *kv, const struct held *held)
{
	if (held->epoch && (held->is_full || !held->has_any))
		kv_end_lane(kv, held->owner);
}

int ne_kv_own(struct ne_kv *kv, uint32_t first, uint32_t count, uint32_t aggregator, uint64_t epoch)
{
	if (!kv_is_range(kv, first, count) || aggregator >= NE_MEMBERS_MAX || !epoch)
		return -EINVAL;
	if (kv_enter(kv))
		return -EBADF;
	for (uint32_t chunk = first; chunk < first + count; chunk++) {
		/* It has moved on since, or has been said already. */
		if (epoch <= kv->held[chunk].epoch)
			continue;
		if (kv->held[chunk].owner != aggregator)
			kv_leave_owner(kv, &kv->held[chunk]);
		kv->held[chunk].owner = aggregator;
		kv->held[chunk].epoch = epoch;
		kv_introduce(kv, chunk);
	}
	kv_send_all(kv);
	pthread_mutex_unlock(&kv->lock);
	return 0;
}

int ne_kv_export(struct ne_kv *kv, int sock, uint64_t token, struct ne_export **ret)
{
	struct ne_export *pair;
	int err;

	if (kv->is_anothers)
		return -EBADF;
	err = ne_export_create(&pair);
	if (err)
		return err;
	err = ne_export_lease(pair, NE_REGION_LEASE, SESSION, token, kv->at,
			      layout_region_bytes(&kv->layout, kv->rank));
	if (!err)
		err = ne_export_conn_rdma(pair, SESSION, sock, NULL);
	if (err) {
		ne_export_destroy(pair);
		return err;
	}
	*ret = pair;
	return 0;
}

int ne_kv_attach(struct ne_kv *kv, uint32_t aggregator, int fd, bool is_shm, const uint8_t *keys,
		 struct ne_export *pair)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = aggregator};
	struct aggregator *to;
	int err;

	if (aggregator >= NE_MEMBERS_MAX)
		return -EINVAL;
	to = &kv->aggregator[aggregator];
	if (kv_enter(kv))
		return -EBADF;
	kv_end_lane(kv, aggregator);
	to->has_ended = false;
	err = kv->stops ? -ESHUTDOWN : lane_open(&to->lane, fd, is_shm, keys, 4 * kv->layout.chunks + 1024);
	if (!err && epoll_ctl(kv->lanes, EPOLL_CTL_ADD, fd, &event)) {
		err = -errno;
		lane_abandon(&to->lane);
	}
	if (!err) {
		to->lane.rules = &kv->rules;
		to->lane.is_rdma = pair != NULL;
		to->pair = pair;
		to->is_there = true;
		for (uint32_t i = 0; i < NUMBERS * kv->layout.group_count; i++)
			kv_put_numbers(kv, aggregator, i / NUMBERS, &kv->numbers[i ^ 1]);
		for (uint32_t chunk = 0; chunk < kv->layout.chunks; chunk++)
			if (kv->held[chunk].owner == aggregator)
				kv_introduce(kv, chunk);
		kv_send_all(kv);
	}
	pthread_mutex_unlock(&kv->lock);
	return err;
}

int ne_kv_fault_set(struct ne_kv *kv, uint32_t kind, uint32_t every, uint32_t delay_us)
{
	if (kind >= NE_FAULT_KINDS)
		return -EINVAL;
	ne_fault_rules_set(&kv->rules, kind, every, delay_us);
	return 0;
}

int ne_kv_hyper(struct ne_kv *kv, uint32_t group, uint64_t iteration, const struct ne_hyper *hyper)
{
	struct numbers *numbers = &kv->numbers[NUMBERS * (uint64_t)group];

	if (group >= kv->layout.group_count || !iteration)
		return -EINVAL;
	if (kv_enter(kv))
		return -EBADF;
	if (numbers[0].from != iteration)
		numbers[1] = numbers[0];
	numbers[0] = (struct numbers){iteration, *hyper};
	for (uint32_t number = 0; number < NE_MEMBERS_MAX; number++)
		kv_put_numbers(kv, number, group, &numbers[0]);
	kv_send_all(kv);
	pthread_mutex_unlock(&kv->lock);
	return 0;
}

int ne_kv_push(struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t iteration, bool absent)
{
	int err = 0;

	if (!kv_is_range(kv, first, count) || !iteration)
		return -EINVAL;
	if (kv_enter(kv))
		return -EBADF;
	for (uint32_t chunk = first; !err && chunk < first + count; chunk++)
		if (!kv->held[chunk].has_any || kv->held[chunk].version + 1 != iteration || kv->held[chunk].is_full)
			err = -EAGAIN;
	if (kv_is_joining(kv))
		err = -EAGAIN;
	for (uint32_t chunk = first; !err && chunk < first + count; chunk++)
		if (kv->held[chunk].has_asked)
			err = -EAGAIN;
	/* In descending order, as gradients come. */
	for (uint32_t chunk = first + count; !err && chunk-- > first;) {
		kv->held[chunk].is_full = true;
		kv->held[chunk].is_absent = absent;
		kv_put_push(kv, chunk, iteration);
	}
	kv_send_all(kv);
	pthread_mutex_unlock(&kv->lock);
	return err;
}

bool kv_has_pushed(const struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t iteration)
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

	if (!kv_is_range(kv, first, count) || !kv->hold)
		return -EINVAL;
	if (kv_enter(kv))
		return -EBADF;
	if (!kv_has_pushed(kv, first, count, iteration))
		err = -EAGAIN;
	for (uint32_t chunk = first; !err && chunk < first + count; chunk++) {
		if (kv->held[chunk].version >= iteration || kv->held[chunk].is_pulled)
			continue;
		kv->held[chunk].is_pulled = true;
		kv_put_pull(kv, chunk);
	}
	kv_send_all(kv);
	pthread_mutex_unlock(&kv->lock);
	return err;
}
