/* SPDX-License-Identifier: Apache-2.0 */
/*
 * figures.c - counters of a running device, added up over all threads, for its status.
 */
#include "core.h"

int ne_stats_get(const struct ne_device *dev, struct ne_stats *ret)
{
	enum { WORDS = sizeof(struct ne_stats) / sizeof(uint64_t) };
	uint64_t sum[WORDS] = {0}, longest = 0;

	for (uint32_t i = 0; i < THREADS; i++) {
		const uint64_t *from = (const uint64_t *)&dev->worker[i]->stats;

		for (uint32_t k = 0; k < WORDS; k++)
			sum[k] += __atomic_load_n(&from[k], __ATOMIC_RELAXED);
		if (dev->worker[i]->stats.longest_request_ns > longest)
			longest = dev->worker[i]->stats.longest_request_ns;
	}
	memcpy(ret, sum, sizeof(*ret));
	ret->longest_request_ns = longest;
	return 0;
}

uint64_t ne_hedge_ns(const struct ne_device *dev, uint32_t donor)
{
	uint64_t longest = hedge_floor_ns(&dev->params);

	for (uint32_t i = 0; donor < NE_DONORS_MAX && i < dev->params.workers; i++) {
		uint64_t late_ns = atomic_load_explicit(&dev->worker[i]->late_ns[donor], memory_order_relaxed);

		longest = late_ns > longest ? late_ns : longest;
	}
	return longest;
}

uint64_t ne_pending_bytes(const struct ne_device *dev)
{
	uint64_t pages = 0;

	for (uint32_t i = 0; i < THREADS; i++)
		pages += dev->worker[i]->slots.used;
	return pages * NE_PAGE_BYTES;
}

static uint64_t pages_of(const struct ne_device *dev, const _Atomic int32_t *counts)
{
	int64_t pages = 0;

	for (uint32_t c = 0; c < dev->clusters; c++)
		pages += atomic_load_explicit(&counts[c], memory_order_relaxed);
	return pages > 0 ? (uint64_t)pages : 0;
}

uint64_t ne_pages_exposed(const struct ne_device *dev)
{
	return dev->params.protection == NE_PROTECT_NONE ? 0 : pages_of(dev, dev->exposed);
}

uint64_t ne_pages_single(const struct ne_device *dev)
{
	return pages_of(dev, dev->single);
}

uint64_t ne_pages_disk_alone(const struct ne_device *dev)
{
	return pages_of(dev, dev->disk_alone);
}

uint64_t ne_pages_filled(const struct ne_device *dev)
{
	return pages_of(dev, dev->filled);
}

uint64_t ne_pages_clear(const struct ne_device *dev)
{
	return pages_of(dev, dev->clear);
}

int ne_activity_get(const struct ne_device *dev, uint32_t clusters, uint32_t *ret)
{
	if (clusters != dev->clusters)
		return -EINVAL;
	memset(ret, 0, clusters * sizeof(*ret));
	for (uint32_t i = 0; i < THREADS; i++) {
		const uint32_t *from = dev->activity + (uint64_t)i * clusters;

		if (!dev->worker[i]->started)
			continue;
		for (uint32_t c = 0; c < clusters; c++) /* plain, as the workers' own: it may be done in vectors */
			ret[c] += from[c];
	}
	return 0;
}
