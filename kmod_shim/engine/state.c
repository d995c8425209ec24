/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.c - the state memfd: its layout, its checks for a successor, and takeover of the pages of a predecessor.
 */
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core.h"

static uint64_t head_bytes(void)
{
	return page_up(sizeof(struct ne_state_head));
}
static uint64_t slabs_bytes(void)
{
	return page_up(NE_SLABS_MAX * sizeof(struct ne_slab_rec));
}

static uint64_t clusters_bytes(const struct ne_params *p)
{
	return page_up(p->size_bytes / NE_CLUSTER_BYTES * sizeof(struct ne_cluster));
}

static uint64_t pages_bytes(const struct ne_params *p)
{
	return page_up(p->size_bytes / NE_PAGE_BYTES * sizeof(struct ne_page));
}

static uint64_t worker_bytes(const struct ne_params *p)
{
	return CONN_STATE_BYTES + RX_BYTES + TX_BYTES + p->pending_bytes + STAGING_BYTES;
}

uint64_t state_common_bytes(const struct ne_params *p)
{
	return head_bytes() + slabs_bytes() + clusters_bytes(p) + pages_bytes(p);
}

uint64_t worker_offset(const struct ne_device *dev, uint32_t idx)
{
	return state_common_bytes(&dev->params) + idx * worker_bytes(&dev->params);
}

static bool is_power_of_two(uint64_t n)
{
	return n && !(n & (n - 1));
}

bool params_are_good(const struct ne_params *p)
{
	return p->size_bytes && p->size_bytes % NE_CLUSTER_BYTES == 0 && p->size_bytes < 16ull << 40 &&
	       is_power_of_two(p->slab_bytes) && p->slab_bytes >= NE_CLUSTER_BYTES && p->slab_bytes <= 1ull << 30 &&
	       is_power_of_two(p->pending_bytes) && p->pending_bytes >= 16ull << 20 && p->pending_bytes <= 1ull << 30 &&
	       p->workers && p->workers <= NE_WORKERS_MAX && p->protection <= NE_PROTECT_BOTH && p->deadline_ms &&
	       p->encrypt_disk <= 1 && p->encrypt_remote <= 1;
}

int64_t ne_state_bytes(const struct ne_params *p)
{
	return params_are_good(p) ? (int64_t)(state_common_bytes(p) + THREADS * worker_bytes(p)) : -EINVAL;
}

int state_map(struct ne_device *dev, int fd)
{
	struct stat st;

	dev->map_bytes = (uint64_t)ne_state_bytes(&dev->params);
	if (fstat(fd, &st) || (uint64_t)st.st_size < dev->map_bytes)
		return -EINVAL;
	dev->map = mmap(NULL, dev->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (dev->map == MAP_FAILED) {
		dev->map = NULL;
		return -errno;
	}
	madvise(dev->map, dev->map_bytes, MADV_DONTDUMP); /* keys and pages */
	dev->head = (struct ne_state_head *)dev->map;
	dev->slabs = (struct ne_slab_rec *)(dev->map + head_bytes());
	dev->cluster = (struct ne_cluster *)((uint8_t *)dev->slabs + slabs_bytes());
	dev->page = (struct ne_page *)((uint8_t *)dev->cluster + clusters_bytes(&dev->params));
	return 0;
}

/* What must be the same for a successor; the rest (deadlines, spinning) may change. */
static bool params_fit(const struct ne_params *a, const struct ne_params *b)
{
	return a->size_bytes == b->size_bytes && a->slab_bytes == b->slab_bytes &&
	       a->pending_bytes == b->pending_bytes && a->protection == b->protection &&
	       a->encrypt_disk == b->encrypt_disk;
}

static bool head_fits(const struct ne_state_head *h, const struct ne_params *params)
{
	return h->magic == STATE_MAGIC && (h->version == STATE_VERSION || h->version == STATE_VERSION_CLEAR) &&
	       params_fit(&h->params, params);
}

int ne_state_check(const struct ne_params *params, int state_fd)
{
	int64_t bytes = ne_state_bytes(params);
	struct ne_state_head h;
	struct stat st;

	if (bytes < 0)
		return (int)bytes;
	/* not the key behind: it is nobody's before he adopts the device */
	if (fstat(state_fd, &st) || pread(state_fd, &h, offsetof(struct ne_state_head, disk_key), 0) < 0)
		return -errno;
	return !h.ready || (head_fits(&h, params) && st.st_size >= bytes) ? 0 : -ESTALE;
}

int state_begin(struct ne_device *dev)
{
	struct ne_state_head *h = dev->head;

	if (atomic_load(&h->ready)) {
		if (!head_fits(h, &dev->params))
			return -ESTALE;
		h->epoch = (h->epoch + 1) & 0xffff;
		dev->adopted = true;
		return 0;
	}
	h->magic = STATE_MAGIC;
	h->version = STATE_VERSION;
	h->params = dev->params;
	if (getrandom(h->disk_key, sizeof(h->disk_key), 0) != sizeof(h->disk_key))
		return -EIO;
	atomic_store(&h->ready, 1);
	return 0;
}

/* b may be the new content's already, and the slot of the old one given away: only the checksum tells. */
static bool half_published_is_good(const struct ne_device *dev, const struct ne_page *p)
{
	uint64_t b = atomic_load(&p->b);

	return ne_crc32c(slot_memory(dev, (uint32_t)(b >> 32)), NE_PAGE_BYTES) == (uint32_t)b;
}

/*
 * Marks that died with their process are cleared. A page that was just being changed (WIP) belongs to a request that
 * was not answered and will be done again; until then readers take what fits the checksum.
 */
int state_adopt_pages(struct ne_device *dev)
{
	uint32_t per = slots_per_worker(dev);
	int rc = 0;

	for (uint32_t i = 0; i < dev->pages && !rc; i++) {
		struct ne_page *p = &dev->page[i];
		uint64_t a = atomic_load_explicit(&p->a, memory_order_relaxed), to = a;

		if (!a)
			continue;
		if (a & P_WIP && a & P_PEND && !half_published_is_good(dev, p))
			to = without_copy(a, P_PEND);
		to &= ~(P_CLAIM | P_WIP | P_DBUSY);
		if (to != a)
			atomic_store(&p->a, to);
		dev->exposed[i / NE_CLUSTER_PAGES] += page_is_exposed(to);
		dev->single[i / NE_CLUSTER_PAGES] += has_replicas(dev) && page_is_single(to);
		dev->disk_alone[i / NE_CLUSTER_PAGES] += page_is_on_disk_alone(to);
		dev->clear[i / NE_CLUSTER_PAGES] += page_is_clear(to);
		dev->filled[i / NE_CLUSTER_PAGES] += page_is_filled(to);
		if (to & P_PEND) {
			uint32_t slot = (uint32_t)(atomic_load(&p->b) >> 32);

			rc = worker_recover_slot(dev->worker[slot / per], i, slot % per);
		}
	}
	for (uint32_t c = 0; c < dev->clusters; c++)
		atomic_store(&dev->cluster[c].wanted, 0);
	return rc;
}
