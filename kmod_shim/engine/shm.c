/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shm.c - the link to a donor of this host: its slab is mapped here, so an operation is a copy.
 *
 * The copy is made by post() and reported by poll(). It cannot fail or be late, and there is nothing to sleep on.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "link.h"

struct shm {
	struct ne_link link;
	struct ne_io *first, **last; /* done and not given back, oldest first */
	uint32_t held;
	bool dead;
};

static struct shm *to_shm(const struct ne_link *link)
{
	return (struct shm *)link;
}

static int shm_post(struct ne_link *link, struct ne_io *io)
{
	struct shm *shm = to_shm(link);

	if (shm->dead)
		return -ENOTCONN;
	io->status = 0;
	if (!io->base)
		io->status = -EINVAL;
	else if (io->op == NE_IO_READ)
		memcpy(io->buf, (const uint8_t *)io->base + io->offset, io->length);
	else
		memcpy((uint8_t *)io->base + io->offset, io->buf, io->length);
	io->next = NULL;
	*shm->last = io;
	shm->last = &io->next;
	shm->held++;
	return 0;
}

static void shm_submit(struct ne_link *link)
{
	(void)link;
}

static int shm_poll(struct ne_link *link, struct ne_io **done, int max)
{
	struct shm *shm = to_shm(link);
	int count = 0;

	while (shm->first && count < max) {
		done[count++] = shm->first;
		shm->first = shm->first->next;
	}
	if (!shm->first)
		shm->last = &shm->first;
	shm->held -= count;
	return count;
}

static uint32_t shm_outstanding(const struct ne_link *link)
{
	return to_shm(link)->held;
}

static int shm_wait(const struct ne_link *link, short *events, uint64_t *timeout_ns)
{
	*events = 0;
	*timeout_ns = to_shm(link)->first ? 0 : UINT64_MAX;
	return -1;
}

static void shm_kill(struct ne_link *link, int err)
{
	struct shm *shm = to_shm(link);

	for (struct ne_io *io = shm->first; io; io = io->next)
		io->status = -abs(err);
	shm->dead = true;
}

static bool shm_alive(const struct ne_link *link)
{
	return !to_shm(link)->dead;
}

static void shm_destroy(struct ne_link *link)
{
	free(to_shm(link));
}

static const struct ne_link_ops shm_ops = {
	.post = shm_post,
	.submit = shm_submit,
	.poll = shm_poll,
	.outstanding = shm_outstanding,
	.wait = shm_wait,
	.kill = shm_kill,
	.alive = shm_alive,
	.destroy = shm_destroy,
	.direct = true,
};

int ne_shm_create(struct ne_link **ret)
{
	struct shm *shm = calloc(1, sizeof(*shm));

	if (!shm)
		return -ENOMEM;
	shm->link.ops = &shm_ops;
	shm->last = &shm->first;
	*ret = &shm->link;
	return 0;
}
