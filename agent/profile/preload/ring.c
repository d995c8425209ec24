/* SPDX-License-Identifier: Apache-2.0 */
/* ring.c - maps the file, gives each thread a lane of it, and writes messages there. See ring.h. */
#include "ring.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct ring_head *ring;

/*
 * This process, in a page that the kernel empties in a child of fork, whichever way it was forked: a child that finds 0
 * here is a new process, and must not write to the lanes of its parent. After vfork it is the parent's, and rightly.
 */
struct self {
	_Atomic uint64_t born_ns;
	_Atomic uint32_t pid;
};

static struct self *self;

/* Of this thread. initial-exec: no allocation when it is touched first. */
static __thread struct {
	uint32_t pid; /* of the process it was set for; another one: set it anew */
	struct ring_lane *lane;
	struct ring_event *events;
} here __attribute__((tls_model("initial-exec")));

static pthread_key_t at_thread_end;
static bool has_key;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static struct ring_lane *lanes(void)
{
	return (struct ring_lane *)((char *)ring + RING_LANES_AT);
}

void ring_problem(uint32_t bit)
{
	if (ring)
		atomic_fetch_or_explicit(&ring->problems, bit, memory_order_relaxed);
}

/* --- lanes */

static struct ring_lane *idle_lane(uint32_t pid, uint64_t born_ns)
{
	for (struct ring_lane *lane = lanes(); lane < lanes() + RING_LANES; lane++) {
		uint32_t idle = LANE_IDLE;

		if (atomic_load(&lane->pid) == pid && atomic_load(&lane->born_ns) == born_ns &&
		    atomic_compare_exchange_strong(&lane->state, &idle, LANE_TAKEN))
			return lane;
	}
	return NULL;
}

static struct ring_lane *fresh_lane(uint32_t pid, uint64_t born_ns)
{
	uint32_t number = atomic_fetch_add(&ring->claimed, 1);
	struct ring_lane *lane = lanes() + number;

	if (number >= RING_LANES)
		return NULL;
	atomic_store(&lane->born_ns, born_ns);
	atomic_store(&lane->state, LANE_TAKEN);
	atomic_store(&lane->pid, pid);
	return lane;
}

static void leave_lane(void *value)
{
	struct ring_lane *lane = value;

	/* A child of fork still has its parent's lane here. */
	if (atomic_load(&lane->pid) == atomic_load(&self->pid))
		atomic_store(&lane->state, LANE_IDLE);
	here.lane = NULL;
	here.pid = 0;
}

/* This process's pid, and since when it is known. */
static uint32_t identify(uint64_t *born_ns)
{
	uint64_t nothing = 0;
	uint32_t pid = atomic_load(&self->pid);

	if (!pid) {
		atomic_compare_exchange_strong(&self->born_ns, &nothing, now_ns());
		pid = (uint32_t)getpid();
		atomic_store(&self->pid, pid);
	}
	*born_ns = atomic_load(&self->born_ns);
	return pid;
}

static void settle(void)
{
	uint64_t born_ns;
	uint32_t pid = identify(&born_ns);
	struct ring_lane *lane = idle_lane(pid, born_ns);

	if (!lane)
		lane = fresh_lane(pid, born_ns);
	here.pid = pid;
	here.lane = lane;
	if (!lane)
		return;
	here.events = (struct ring_event *)((char *)ring + RING_EVENTS_AT) + (size_t)(lane - lanes()) * RING_EVENTS;
	if (has_key)
		pthread_setspecific(at_thread_end, lane);
}

void ring_note(uint16_t flow, uint64_t bytes, uint64_t flags)
{
	struct ring_event *event;
	uint64_t head;

	if (!ring)
		return;
	if (!here.pid || here.pid != atomic_load_explicit(&self->pid, memory_order_relaxed)) {
		if (bytes < RING_FIRST_BYTES)
			return;
		settle();
	}
	if (!here.lane)
		return;
	head = atomic_load_explicit(&here.lane->head, memory_order_relaxed);
	event = here.events + (head & (RING_EVENTS - 1));
	atomic_store_explicit(&event->at_ns, now_ns(), memory_order_relaxed);
	atomic_store_explicit(&event->word, bytes << EVENT_BYTES_AT | flags | flow, memory_order_relaxed);
	atomic_store_explicit(&here.lane->bytes, atomic_load_explicit(&here.lane->bytes, memory_order_relaxed) + bytes,
			      memory_order_relaxed);
	atomic_store_explicit(&here.lane->head, head + 1, memory_order_release);
}

/* --- the file */

static bool is_ours(const struct ring_head *head)
{
	return head->magic == RING_MAGIC && head->version == RING_VERSION && head->lanes == RING_LANES &&
	       head->events == RING_EVENTS;
}

static struct ring_head *mapped(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct stat found;
	void *at = MAP_FAILED;

	if (fd < 0)
		return NULL;
	if (!fstat(fd, &found) && S_ISREG(found.st_mode) && found.st_size == (off_t)RING_BYTES)
		at = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (at == MAP_FAILED)
		return NULL;
	if (!is_ours(at)) {
		munmap(at, RING_BYTES);
		return NULL;
	}
	return at;
}

__attribute__((constructor)) static void attach(void)
{
	const char *path = secure_getenv("FARSIDE_PROFILE");
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct ring_head *found = path && *path ? mapped(path) : NULL;
	void *own;

	if (!found)
		return;
	own = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (own == MAP_FAILED || madvise(own, page, MADV_WIPEONFORK)) {
		atomic_fetch_or(&found->problems, RING_NO_WIPE);
		return;
	}
	self = own;
	has_key = !pthread_key_create(&at_thread_end, leave_lane);
	atomic_fetch_add(&found->attached, 1);
	ring = found;
}
