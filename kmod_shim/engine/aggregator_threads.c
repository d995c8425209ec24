/* SPDX-License-Identifier: Apache-2.0 */
/*
 * aggregator_threads.c - an Aggregator: servers that share a budget of memory, and the calls of engine.h, which go to
 * the server of their job.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "aggregator.h"

struct ne_aggregator {
	struct budget budget;
	struct ne_fault_rules rules;
	int event_fd;
	uint32_t threads;
	struct server *servers[NE_THREADS_MAX];
};

static struct server *server_of(struct ne_aggregator *a, uint64_t id)
{
	return a->servers[id % a->threads];
}

void ne_aggregator_stop(struct ne_aggregator *a)
{
	for (uint32_t i = 0; i < a->threads; i++)
		server_stop(a->servers[i]);
}

void ne_aggregator_destroy(struct ne_aggregator *a)
{
	if (!a)
		return;
	for (uint32_t i = 0; i < a->threads; i++)
		server_destroy(a->servers[i]);
	if (a->event_fd >= 0)
		close(a->event_fd);
	free(a);
}

int ne_aggregator_create(uint64_t memory_bytes, uint32_t threads, struct ne_aggregator **ret)
{
	struct ne_aggregator *a;
	uint64_t life = 0;
	int err = 0;

	if (!threads || threads > NE_THREADS_MAX)
		return -EINVAL;
	a = calloc(1, sizeof(*a));
	if (!a)
		return -ENOMEM;
	a->budget.limit_bytes = memory_bytes;
	a->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (a->event_fd < 0)
		err = -errno;
	/* It falls short only where the system's pool is not ready. */
	while (!err && !life)
		if (getrandom(&life, sizeof(life), 0) != sizeof(life))
			err = errno == EINTR ? 0 : -errno;
	while (!err && a->threads < threads) {
		err = server_create(&a->budget, &a->rules, a->event_fd, life, &a->servers[a->threads]);
		a->threads += err ? 0 : 1;
	}
	if (err) {
		ne_aggregator_destroy(a);
		return err;
	}
	*ret = a;
	return 0;
}

int ne_aggregator_fault_set(struct ne_aggregator *a, uint32_t kind, uint32_t every, uint32_t delay_us)
{
	if (kind >= NE_FAULT_KINDS)
		return -EINVAL;
	ne_fault_rules_set(&a->rules, kind, every, delay_us);
	return 0;
}

int ne_aggregator_add_job(struct ne_aggregator *a, uint64_t id, const struct ne_job *job)
{
	return server_add_job(server_of(a, id), id, job);
}

int ne_aggregator_drop_job(struct ne_aggregator *a, uint64_t id)
{
	return server_drop_job(server_of(a, id), id);
}

int ne_aggregator_plan(struct ne_aggregator *a, uint64_t id, uint32_t first, uint32_t count,
		       const struct ne_place *place)
{
	return server_plan(server_of(a, id), id, first, count, place);
}

int ne_aggregator_attach_next(struct ne_aggregator *a, uint64_t id, uint32_t number, int fd, const uint8_t *keys)
{
	return server_attach_next(server_of(a, id), id, number, fd, keys);
}

int ne_aggregator_attach_previous(struct ne_aggregator *a, uint64_t id, uint32_t number, int fd, const uint8_t *keys)
{
	return server_attach_previous(server_of(a, id), id, number, fd, keys);
}

int ne_aggregator_attach(struct ne_aggregator *a, uint64_t id, uint32_t rank, const struct ne_lane *lane)
{
	return server_attach(server_of(a, id), id, rank, lane);
}

int ne_aggregator_event_fd(struct ne_aggregator *a)
{
	return a->event_fd;
}

static int any_event(struct ne_aggregator *a, struct ne_aggregator_event *ret)
{
	for (uint32_t i = 0; i < a->threads; i++)
		if (server_next_event(a->servers[i], ret))
			return 1;
	return 0;
}

int ne_aggregator_next_event(struct ne_aggregator *a, struct ne_aggregator_event *ret)
{
	uint64_t count;

	if (any_event(a, ret))
		return 1;
	(void)!read(a->event_fd, &count, sizeof(count));
	/* One that came in between has been read away. */
	if (!any_event(a, ret))
		return 0;
	wake(a->event_fd);
	return 1;
}

int ne_aggregator_told(struct ne_aggregator *a, uint64_t id, uint32_t kind, uint32_t from,
		       struct ne_aggregator_event *ret)
{
	return server_told(server_of(a, id), id, kind, from, ret);
}

int ne_aggregator_job_stats(struct ne_aggregator *a, uint64_t id, struct ne_aggregator_stats *ret)
{
	return server_job_stats(server_of(a, id), id, ret);
}
