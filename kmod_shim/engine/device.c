/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - control of a device: made over a state memfd, or adopted from it. The control thread passes changes of
 * donors, slabs and clusters to the workers by single stores; the workers report events through the event ring.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core.h"
#include "tls.h"
#include "verbs.h"

/* ------------------------------------------------------------------ making and ending */

/* How long a dead predecessor's disk operations may take; a disk that needs longer fails the take-over, to be retried.
 */
#define PREDECESSOR_MS 10000

static int workers_make(struct ne_device *dev)
{
	int rc = 0;

	for (uint32_t i = 0; i < THREADS && !rc; i++)
		rc = worker_create(dev, i, &dev->worker[i]);
	if (rc)
		return rc;
	if (dev->adopted && dev->disk_fd >= 0)
		rc = ne_disk_settle(dev->disk_fd, PREDECESSOR_MS);
	if (rc)
		return rc;
	if (dev->adopted) {
		rc = state_adopt_pages(dev);
		for (uint32_t i = 0; i < THREADS && !rc; i++)
			conn_recover(dev->worker[i]);
		if (!rc)
			dev->head->version =
				STATE_VERSION; /* an older engine would take sealed pages for damaged ones */
	}
	/* workers beyond params.workers run only if a larger predecessor left them payload or a connection */
	for (uint32_t i = 0; i < THREADS && !rc; i++)
		if (i < dev->params.workers || i == NE_MOVER || dev->worker[i]->recovered_n || dev->worker[i]->cs->live)
			rc = worker_start(dev->worker[i]);
	return rc;
}

/* Memory of a device that is no part of its state: where its address is kept, and its size. */
struct table {
	void **at;
	uint64_t bytes;
};

enum { TABLES = 10 };

static void tables_of(struct ne_device *dev, struct table ret[TABLES])
{
	const struct table all[TABLES] = {
		{(void **)&dev->activity, (uint64_t)THREADS * dev->clusters * sizeof(*dev->activity)},
		{(void **)&dev->exposed, dev->clusters * sizeof(*dev->exposed)},
		{(void **)&dev->single, dev->clusters * sizeof(*dev->single)},
		{(void **)&dev->disk_alone, dev->clusters * sizeof(*dev->disk_alone)},
		{(void **)&dev->clear, dev->clusters * sizeof(*dev->clear)},
		{(void **)&dev->filled, dev->clusters * sizeof(*dev->filled)},
		{(void **)&dev->live, NE_SLABS_MAX * sizeof(*dev->live)},
		{(void **)&dev->faults, NE_DONORS_MAX * sizeof(*dev->faults)},
		{(void **)&dev->events, EVENTS * sizeof(*dev->events)},
		{(void **)&dev->jobs, JOBS * sizeof(*dev->jobs)},
	};

	memcpy(ret, all, sizeof(all));
}

/* Clients and donors keep half of the cores and one more; with two or three one worker spins, and yields each time. */
static uint32_t spinners_max(void)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);

	return cores >= 4 ? (uint32_t)cores / 2 - 1 : cores >= 2;
}

static int tables_make(struct ne_device *dev)
{
	struct table tables[TABLES];

	dev->spinners_max = spinners_max();
	dev->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	tables_of(dev, tables);
	for (int i = 0; i < TABLES; i++) {
		*tables[i].at = ne_zeros(tables[i].bytes);
		if (!*tables[i].at)
			return -ENOMEM;
	}
	return dev->event_fd < 0 ? -ENOMEM : 0;
}

int ne_device_create(const struct ne_params *params, int state_fd, int disk_fd, struct ne_device **ret)
{
	struct ne_device *dev;
	int rc;

	if (!params_are_good(params) || has_disk(params) != (disk_fd >= 0))
		return -EINVAL;
	dev = calloc(1, sizeof(*dev));
	if (!dev)
		return -ENOMEM;
	dev->params = *params;
	dev->disk_fd = disk_fd;
	dev->event_fd = -1;
	dev->clusters = (uint32_t)(params->size_bytes / NE_CLUSTER_BYTES);
	dev->pages = (uint32_t)(params->size_bytes / NE_PAGE_BYTES);
	rc = state_map(dev, state_fd);
	if (!rc)
		rc = state_begin(dev);
	if (!rc && params->encrypt_remote)
		dev->sealed = P_SEALED | (uint64_t)dev->head->epoch << P_EPOCH_SHIFT;
	if (!rc)
		rc = tables_make(dev);
	if (!rc)
		rc = workers_make(dev);
	if (rc) {
		ne_device_destroy(dev);
		return rc;
	}
	*ret = dev;
	return 0;
}

int ne_device_stop(struct ne_device *dev)
{
	if (dev->stopped)
		return 0;
	dev->stopped = true;
	for (uint32_t i = 0; i < THREADS; i++) /* all at once, then wait for each */
		if (dev->worker[i] && dev->worker[i]->started) {
			atomic_store(&dev->worker[i]->stop, 1);
			worker_kick(dev->worker[i]);
		}
	for (uint32_t i = 0; i < THREADS; i++)
		if (dev->worker[i])
			worker_stop(dev->worker[i]);
	return 0;
}

void ne_device_destroy(struct ne_device *dev)
{
	struct table tables[TABLES];

	if (!dev)
		return;
	ne_device_stop(dev);
	for (uint32_t i = 0; i < THREADS; i++)
		worker_destroy(dev->worker[i]);
	for (uint32_t i = 0; dev->live && i < NE_SLABS_MAX; i++)
		if (dev->live[i].base)
			munmap(dev->live[i].base, dev->params.slab_bytes);
	tables_of(dev, tables);
	for (int i = 0; i < TABLES; i++)
		if (*tables[i].at)
			munmap(*tables[i].at, tables[i].bytes);
	if (dev->map)
		munmap(dev->map, dev->map_bytes);
	if (dev->event_fd >= 0)
		close(dev->event_fd);
	free(dev);
}

bool ne_device_adopted(const struct ne_device *dev)
{
	return dev->adopted;
}
int ne_device_event_fd(const struct ne_device *dev)
{
	return dev->event_fd;
}

/* ------------------------------------------------------------------ connections */

static bool worker_exists(const struct ne_device *dev, uint32_t idx)
{
	return idx < NE_WORKERS_MAX && dev->worker[idx]->started;
}

static void socket_tune(int sock)
{
	int bytes = 1 << 20;

	if (setsockopt(sock, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes)))
		setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

static int attach(struct ne_device *dev, uint32_t worker, int sock, struct ne_tls_session *tls)
{
	uint32_t idle = 0;

	if (!worker_exists(dev, worker))
		return -EINVAL;
	if (!atomic_compare_exchange_strong(&dev->worker[worker]->busy, &idle, 1))
		return -EBUSY;
	socket_tune(sock);
	atomic_store(&dev->worker[worker]->tls_mail, tls);
	atomic_store(&dev->worker[worker]->sock_mail, sock);
	worker_kick(dev->worker[worker]);
	return 0;
}

int ne_conn_attach(struct ne_device *dev, uint32_t worker, int sock)
{
	return attach(dev, worker, sock, NULL);
}

int ne_conn_attach_tls(struct ne_device *dev, uint32_t worker, int sock, struct ne_tls_session *session)
{
	if (worker < NE_WORKERS_MAX && ne_conn_is_unfinished(dev, worker))
		return -EBUSY; /* another connection's requests are there, and this one has no part in them */
	return attach(dev, worker, sock, session);
}

bool ne_conn_is_unfinished(const struct ne_device *dev, uint32_t worker)
{
	return worker < NE_WORKERS_MAX && dev->worker[worker]->cs->live && !dev->worker[worker]->busy;
}

int ne_conn_forget(struct ne_device *dev, uint32_t worker)
{
	if (!worker_exists(dev, worker) || !ne_conn_is_unfinished(dev, worker))
		return -EINVAL;
	atomic_store(&dev->worker[worker]->busy, 1);
	atomic_store(&dev->worker[worker]->sock_mail, SOCK_FORGET);
	worker_kick(dev->worker[worker]);
	return 0;
}

/* ------------------------------------------------------------------ donors and links */

/* What is in flight to a donor that is given up ends now, and goes elsewhere, whatever its deadline. */
static void links_cut(struct ne_device *dev, uint32_t donor)
{
	for (uint32_t i = 0; i < THREADS; i++) {
		atomic_fetch_or(&dev->worker[i]->failed_bits[donor / 64], 1ull << donor % 64);
		worker_kick(dev->worker[i]);
	}
}

int ne_donor_set(struct ne_device *dev, uint32_t donor, uint32_t state)
{
	if (donor >= NE_DONORS_MAX || state > NE_DONOR_FAILED)
		return -EINVAL;
	atomic_store(&dev->head->donor_state[donor], state);
	if (state == NE_DONOR_UP)
		worker_kick(dev->worker[NE_MOVER]); /* it may have missed writes */
	if (state == NE_DONOR_FAILED)
		links_cut(dev, donor);
	return 0;
}

int ne_donor_get(const struct ne_device *dev, uint32_t donor)
{
	return donor < NE_DONORS_MAX ? (int)atomic_load(&dev->head->donor_state[donor]) : -EINVAL;
}

/* On failure `inner` stays the caller's. */
static int link_mail(struct ne_device *dev, uint32_t donor, uint32_t idx, struct ne_link *inner)
{
	struct worker *w = dev->worker[idx];
	struct ne_link *link, *old;
	int rc = ne_fault_create(inner, &dev->faults[donor], &link);

	if (rc)
		return rc;
	old = atomic_exchange(&w->link_mail[donor], link);
	if (old)
		old->ops->destroy(old);
	atomic_fetch_or(&w->mail_bits[donor / 64], 1ull << donor % 64);
	worker_kick(w);
	return 0;
}

int ne_link_attach_tcp(struct ne_device *dev, uint32_t donor, uint32_t worker, int sock, const uint8_t *keys)
{
	int own = fcntl(sock, F_DUPFD_CLOEXEC, 0), rc = own < 0 ? -errno : 0; /* the caller's stays his if this fails */
	struct ne_link *link = NULL;

	if (!rc && (donor >= NE_DONORS_MAX || worker > NE_MOVER || !dev->worker[worker]->started))
		rc = -EINVAL;
	if (!rc)
		rc = ne_tcp_create(own, keys, &link);
	if (!rc)
		rc = link_mail(dev, donor, worker, link);
	if (!rc)
		close(sock);
	else if (link)
		link->ops->destroy(link);
	else if (own >= 0)
		close(own);
	return rc;
}

void ne_link_discard(struct ne_link *link)
{
	link->ops->kill(link, ECANCELED);
	link->ops->destroy(link);
}

int ne_link_attach_rdma(struct ne_device *dev, uint32_t donor, uint32_t worker, struct ne_link *link)
{
	if (donor >= NE_DONORS_MAX || worker > NE_MOVER || !dev->worker[worker]->started)
		return -EINVAL;
	return link_mail(dev, donor, worker, link);
}

int ne_link_attach_shm(struct ne_device *dev, uint32_t donor)
{
	int rc = 0;

	if (donor >= NE_DONORS_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < THREADS && !rc; i++) {
		struct ne_link *link;

		if (!dev->worker[i]->started)
			continue;
		rc = ne_shm_create(&link);
		if (rc)
			break;
		rc = link_mail(dev, donor, i, link);
		if (rc)
			link->ops->destroy(link);
	}
	if (!rc)
		atomic_store(&dev->donor_direct[donor], 1);
	return rc;
}

int ne_fault_set(struct ne_device *dev, uint32_t donor, uint32_t kind, uint32_t every, uint32_t delay_us)
{
	uint32_t any = 0;

	if (donor >= NE_DONORS_MAX || kind >= NE_FAULT_KINDS)
		return -EINVAL;
	ne_fault_rules_set(&dev->faults[donor], kind, every, delay_us);
	for (uint32_t k = 0; k < NE_FAULT_KINDS; k++)
		any |= atomic_load(&dev->faults[donor].every[k]);
	atomic_store(&dev->donor_faulty[donor], any != 0);
	return 0;
}

uint64_t ne_fault_hits(const struct ne_device *dev, uint32_t donor)
{
	uint64_t hits = 0;

	for (uint32_t kind = 0; donor < NE_DONORS_MAX && kind < NE_FAULT_KINDS; kind++) {
		uint32_t every = atomic_load(&dev->faults[donor].every[kind]);

		hits += every ? atomic_load(&dev->faults[donor].count[kind]) / every : 0;
	}
	return hits;
}

int ne_disk_fault_set(struct ne_device *dev, uint32_t kind, uint32_t every, uint32_t delay_us)
{
	if (kind != NE_FAULT_ERROR && kind != NE_FAULT_DELAY && kind != NE_FAULT_SHORT)
		return -EINVAL;
	ne_fault_rules_set(&dev->disk_faults, kind, every, delay_us);
	return 0;
}

/* ------------------------------------------------------------------ slabs */

static int slab_map_memory(struct ne_device *dev, uint32_t slab, int memfd)
{
	struct stat st;
	int seals = fcntl(memfd, F_GET_SEALS);
	void *base;

	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return -EPERM;
	if (fstat(memfd, &st) || (uint64_t)st.st_size < dev->params.slab_bytes)
		return -EINVAL;
	base = mmap(NULL, dev->params.slab_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	if (base == MAP_FAILED)
		return -errno;
	madvise(base, dev->params.slab_bytes, MADV_DONTDUMP);
	madvise(base, dev->params.slab_bytes, MADV_POPULATE_WRITE);
	base = atomic_exchange(&dev->live[slab].base, base);
	if (base)
		munmap(base, dev->params.slab_bytes);
	return 0;
}

int ne_slab_add(struct ne_device *dev, const struct ne_slab_info *info, int memfd)
{
	struct ne_slab_rec *s;
	int rc = 0;

	if (info->slab >= NE_SLABS_MAX || info->donor >= NE_DONORS_MAX)
		return -EINVAL;
	s = &dev->slabs[info->slab];
	if (atomic_load(&s->state) != NE_SLAB_NONE)
		return -EBUSY;
	if (memfd >= 0)
		rc = slab_map_memory(dev, info->slab, memfd);
	if (rc)
		return rc;
	s->donor = info->donor;
	s->lease = info->lease;
	s->epoch = info->epoch;
	s->token = info->token;
	atomic_store(&s->state, NE_SLAB_LIVE);
	if (memfd >= 0)
		close(memfd);
	return 0;
}

int ne_slab_remap(struct ne_device *dev, uint32_t slab, int memfd)
{
	int rc;

	if (slab >= NE_SLABS_MAX || atomic_load(&dev->slabs[slab].state) == NE_SLAB_NONE)
		return -EINVAL;
	if (atomic_load(&dev->live[slab].base))
		return -EBUSY;
	rc = slab_map_memory(dev, slab, memfd);
	if (!rc)
		close(memfd);
	return rc;
}

int ne_slab_get(const struct ne_device *dev, uint32_t slab, struct ne_slab_info *ret)
{
	const struct ne_slab_rec *s;

	if (slab >= NE_SLABS_MAX)
		return -EINVAL;
	s = &dev->slabs[slab];
	*ret = (struct ne_slab_info){slab, s->donor, s->lease, s->epoch, s->token, atomic_load(&s->state), 0};
	return 0;
}

static bool slab_is_used(const struct ne_device *dev, uint32_t slab)
{
	for (uint32_t c = 0; c < dev->clusters; c++)
		for (int h = 0; h < NE_HOMES; h++) {
			uint64_t word = atomic_load_explicit(&dev->cluster[c].home[h], memory_order_relaxed);

			if (word & H_VALID && H_SLAB(word) == slab)
				return true;
		}
	return false;
}

int ne_slab_remove(struct ne_device *dev, uint32_t slab)
{
	uint8_t *base;

	if (slab >= NE_SLABS_MAX)
		return -EINVAL;
	if (slab_is_used(dev, slab))
		return -EBUSY;
	for (uint32_t i = 0; i < THREADS; i++)
		if (atomic_load(&dev->worker[i]->inflight[slab * 2]) ||
		    atomic_load(&dev->worker[i]->inflight[slab * 2 + 1]))
			return -EBUSY;
	base = atomic_exchange(&dev->live[slab].base, NULL);
	if (base)
		munmap(base, dev->params.slab_bytes);
	atomic_store(&dev->live[slab].deadline_ns, 0);
	atomic_store(&dev->slabs[slab].state, NE_SLAB_NONE);
	return 0;
}

/* ------------------------------------------------------------------ clusters */

int ne_cluster_map(struct ne_device *dev, uint32_t cluster, uint32_t slab, uint32_t extent)
{
	struct ne_cluster *c;
	uint32_t gen;
	int found = -1;

	if (cluster >= dev->clusters || slab >= NE_SLABS_MAX || extent >= dev->params.slab_bytes / NE_CLUSTER_BYTES ||
	    atomic_load(&dev->slabs[slab].state) != NE_SLAB_LIVE)
		return -EINVAL;
	c = &dev->cluster[cluster];
	for (int h = NE_HOMES - 1; h >= 0; h--)
		if (!(atomic_load(&c->home[h]) & H_VALID))
			found = h;
	if (found < 0)
		return -ENOSPC;
	gen = atomic_fetch_add(&c->generation, 1);
	atomic_store(&c->home[found], H_MAKE(slab, extent, gen) | H_WRITE);
	for (int h = 0; !has_replicas(dev) && h < NE_HOMES; h++)
		if (h != found)
			atomic_fetch_and(&c->home[h], ~H_WRITE);
	atomic_store(&c->wanted, 0);
	worker_kick(dev->worker[NE_MOVER]); /* pages with one copy may have waited for it */
	return found;
}

int ne_cluster_get(const struct ne_device *dev, uint32_t cluster, struct ne_home_info ret[3])
{
	if (cluster >= dev->clusters)
		return -EINVAL;
	for (int h = 0; h < NE_HOMES; h++) {
		uint64_t word = atomic_load(&dev->cluster[cluster].home[h]);

		ret[h] = (struct ne_home_info){H_SLAB(word), H_EXTENT(word), (word & H_WRITE) != 0, word >> 63};
	}
	return 0;
}

int ne_cluster_count(const struct ne_device *dev, uint32_t cluster, uint32_t ret[2])
{
	uint32_t any = 0, remote = 0;

	if (cluster >= dev->clusters)
		return -EINVAL;
	for (uint32_t i = 0; i < NE_CLUSTER_PAGES; i++) {
		uint64_t a = atomic_load_explicit(&dev->page[cluster * NE_CLUSTER_PAGES + i].a, memory_order_relaxed);

		any += (a & (P_SOURCES | P_LOST)) != 0;
		remote += (a & P_RALL) != 0;
	}
	ret[0] = any;
	ret[1] = remote;
	return 0;
}

static int job_put(struct ne_device *dev, struct job job)
{
	uint64_t tail = atomic_load(&dev->job_tail);

	if (tail - atomic_load(&dev->job_head) >= JOBS)
		return -EAGAIN;
	dev->jobs[tail % JOBS] = job;
	atomic_store(&dev->job_tail, tail + 1);
	worker_kick(dev->worker[NE_MOVER]);
	return 0;
}

int ne_slab_drain(struct ne_device *dev, uint32_t slab, uint32_t deadline_ms, bool fail)
{
	struct slab_live *live = &dev->live[slab % NE_SLABS_MAX];
	uint32_t state;
	bool running;

	if (slab >= NE_SLABS_MAX || atomic_load(&dev->slabs[slab].state) == NE_SLAB_NONE)
		return -EINVAL;
	state = atomic_load(&dev->slabs[slab].state);
	running = state == NE_SLAB_DRAINING && atomic_load(&live->deadline_ns);
	atomic_store(&live->fail, fail);
	atomic_store(&live->deadline_ns, now_ns() + deadline_ms * 1000000ull);
	/* Gone, or gone in this very moment: its event is on the way. A second drain might meet the number's next slab.
	 */
	if (running || state == NE_SLAB_GONE ||
	    !atomic_compare_exchange_strong(&dev->slabs[slab].state, &state, NE_SLAB_DRAINING))
		return 0;
	return job_put(dev, (struct job){.kind = JOB_SLAB_DRAIN, .slab = slab});
}

int ne_cluster_drain(struct ne_device *dev, uint32_t cluster, uint32_t slab)
{
	if (cluster >= dev->clusters || slab >= NE_SLABS_MAX)
		return -EINVAL;
	return job_put(dev, (struct job){.kind = JOB_CLUSTER_DRAIN, .slab = slab, .cluster = cluster});
}

void ne_lift_set(struct ne_device *dev, bool on)
{
	atomic_store(&dev->lifting, on);
	worker_kick(dev->worker[NE_MOVER]);
}

/* ------------------------------------------------------------------ events */

static bool may_be_dropped(uint32_t kind)
{
	return kind == NE_EVENT_WANT || kind == NE_EVENT_CLUSTER_FREE || kind == NE_EVENT_DISK_ERROR ||
	       kind == NE_EVENT_CHECKSUM;
}

void dev_event(struct ne_device *dev, uint32_t kind, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
	uint64_t tail = atomic_load(&dev->event_tail), one = 1;
	struct event_slot *slot;

	do { /* half of the ring is kept for what must not be lost */
		int64_t used = (int64_t)(tail - atomic_load(&dev->event_head)); /* below 0: tail is old */

		if (used >= (int64_t)EVENTS || (may_be_dropped(kind) && used >= (int64_t)EVENTS / 2)) {
			if (kind == NE_EVENT_WANT)
				atomic_store(&dev->cluster[a].wanted, 0);
			return;
		}
	} while (!atomic_compare_exchange_weak(&dev->event_tail, &tail, tail + 1));
	slot = &dev->events[tail % EVENTS];
	slot->ev = (struct ne_event){kind, a, b, c, d};
	atomic_store(&slot->full, 1);
	if (write(dev->event_fd, &one, sizeof(one)) < 0)
		return; /* the counter is full: it is readable all the more */
}

int ne_event_next(struct ne_device *dev, struct ne_event *ret)
{
	uint64_t head = atomic_load(&dev->event_head), drained;
	struct event_slot *slot = &dev->events[head % EVENTS];

	if (head == atomic_load(&dev->event_tail) || !atomic_load(&slot->full)) {
		if (read(dev->event_fd, &drained, sizeof(drained)) > 0 && atomic_load(&slot->full))
			return ne_event_next(dev, ret);
		return 0;
	}
	*ret = slot->ev;
	atomic_store(&slot->full, 0);
	atomic_store(&dev->event_head, head + 1);
	return 1;
}

/* ------------------------------------------------------------------ memory for hard times */

#define PREFAULT_TX_BYTES    (2u << 20)	 /* TX_SOFT_BYTES, and one reply more */
#define PREFAULT_STAGE_BYTES (16u << 20) /* 128 tags of 128 KiB: all that the kernel asks of a connection at once */
#define PREFAULT_DISK_SLOTS  32u	 /* 4 MiB of ciphertext under way */

static int populate(void *from, uint64_t bytes)
{
	return bytes && madvise(from, page_up(bytes), MADV_POPULATE_WRITE) ? -errno : 0;
}

/* All of the pool but the page lists of requests as large as no kernel makes them: those are 16 MiB. */
static int pool_prefault(struct worker *w)
{
	uint8_t *pool = w->pool, *lists = (uint8_t *)w->reqs[0].src;
	uint64_t list_bytes = NE_REQUEST_MAX_BYTES / NE_PAGE_BYTES * sizeof(*w->reqs[0].src);
	uint64_t before = (uint64_t)(lists - pool) & ~4095ull, after = page_up(before + LOG_DEPTH * list_bytes);
	int rc = populate(pool, before);

	madvise(pool + before, after - before, MADV_NOHUGEPAGE); /* else one page of a list brings all of it */
	for (uint32_t i = 0; i < LOG_DEPTH && !rc; i++)
		rc = populate(pool + before + i * list_bytes, 2 * NE_PAGE_BYTES);
	return rc ? rc : populate(pool + after, w->pool_bytes - after);
}

static int worker_prefault(struct worker *w)
{
	int rc = populate(w, sizeof(*w));

	if (!rc)
		rc = pool_prefault(w);
	if (!rc && w->disk)
		rc = ne_disk_prefault(w->disk, PREFAULT_DISK_SLOTS);
	if (w->idx == NE_MOVER) /* it serves no connection, and moves a cluster at a time */
		return rc ? rc : populate(w->stage.mem, NE_CLUSTER_BYTES);
	if (!rc)
		rc = populate(w->cs, CONN_STATE_BYTES + RX_BYTES + PREFAULT_TX_BYTES);
	if (!rc)
		rc = populate(w->stage.mem, PREFAULT_STAGE_BYTES);
	return rc ? rc : populate(w->slots.mem, w->dev->params.pending_bytes);
}

int ne_device_prefault(struct ne_device *dev)
{
	int rc = populate(dev->map, state_common_bytes(&dev->params));
	struct table tables[TABLES];

	tables_of(dev, tables);
	for (int i = 0; i < TABLES && !rc; i++)
		rc = populate(*tables[i].at, tables[i].bytes);
	for (uint32_t i = 0; i < THREADS && !rc; i++)
		if (dev->worker[i]->started)
			rc = worker_prefault(dev->worker[i]);
	return rc;
}

const char *ne_features(void)
{
	static const char *const features[] = {"uring,aes", "uring,aes,rdma", "uring,aes,tls", "uring,aes,rdma,tls"};

	return features[ne_verbs_is_built() + 2 * ne_tls_is_built()];
}

void *ne_map(int fd, uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, bytes, MADV_DONTDUMP); /* what borrowers keep here is in no core dump */
	return p;
}

int ne_unmap(void *addr, uint64_t bytes)
{
	return munmap(addr, bytes) ? -errno : 0;
}
