/* SPDX-License-Identifier: Apache-2.0 */
/* kv_wait.c - calls that wait: for a version, a push that is taken, the optimizer's state, a lane. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "clock.h"
#include "kv.h"

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
	kv_take_in(kv, events, ready);
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

	if (!kv_is_range(kv, first, count) || !count)
		return -EINVAL;
	if (kv_enter(kv))
		return -EBADF;
	*ret = UINT64_MAX;
	for (uint32_t chunk = first; chunk < first + count; chunk++) {
		has_all = has_all && kv->held[chunk].has_any && !kv_is_joining(kv);
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

	if (!kv_is_range(kv, first, count))
		return -EINVAL;
	if (kv_enter(kv))
		return -EBADF;
	me.next = kv->waiters;
	kv->waiters = &me;
	while (!err) {
		/* What has been seen once needs no second look: versions only grow. */
		while (me.chunk < first + count && kv_has_version(kv, me.chunk, version))
			me.chunk++;
		if (me.chunk == first + count)
			break;
		if (!kv->has_receiver) {
			kv_set_receiver(kv, true);
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
		kv_set_receiver(kv, false);
	pthread_mutex_unlock(&kv->lock);
	return err;
}

int ne_kv_wait_taken(struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t iteration, int timeout_ms)
{
	struct timespec deadline = deadline_of(timeout_ms);
	uint32_t chunk = first;
	int err = 0;

	if (!kv_is_range(kv, first, count) || !kv->hold)
		return -EINVAL;
	if (kv_enter(kv))
		return -EBADF;
	if (!kv_has_pushed(kv, first, count, iteration))
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
	return !kv_is_joining(kv);
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
			err = kv_want_state(kv, next++, version);
		kv_send_all(kv);
		if (!err && held->has_given) {
			to = kv_copy_packed(&kv->layout, done++, held->given, to, false);
			kv_forget(held, true);
		} else if (!err) {
			err = kv->stops	 ? -ESHUTDOWN
			      : kv->dead ? kv->dead
					 : sleep_until(kv, &kv->changed, &deadline, timeout_ms);
		}
	}
	for (; done < next; done++)
		kv_forget(&kv->held[done], kv->held[done].has_given);
	return err;
}

int ne_kv_fetch(struct ne_kv *kv, uint32_t first, uint32_t count, uint64_t version, void *to, uint64_t bytes,
		int timeout_ms)
{
	int err;

	if (!kv_is_range(kv, first, count) || kv->layout.sum_only || bytes != packed_bytes(&kv->layout, first, count))
		return -EINVAL;
	if (kv_enter(kv))
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

	if (kv_enter(kv))
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
