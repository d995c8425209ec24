/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_lane.c - an Aggregator whose lanes say anything.
 *
 *	clang -fsanitize=fuzzer,address,undefined -I kmod_shim/engine tests/fuzz/fuzz_lane.c kmod_shim/engine/...
 *-lpthread -lm
 *
 * An input is one byte that says which lane it comes by, and then what is sent. Another job trains on beside it: its
 * update must come after each input.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lane.h"

enum { CHUNKS = 3, MEMBERS = 2, SUM = 1, ADAM = 2, SOUND = 3, WAIT_MS = 20000, EPOCH = 2 };

/* What the first byte of an input says. */
enum { OPTIMIZER = 1, SECOND = 2, SHARED = 4, BULK = 8, PREVIOUS = 16, PLANS = 32, CODED = 64 };

static const uint8_t keys[] = "0123456789abcdef0123456789abcdef";

static struct ne_job_chunk chunks[CHUNKS] = {{.count = 5}, {.count = 64}, {.count = 1000}};
static struct ne_aggregator *aggregator;
static struct ne_kv *sound;
static uint64_t iteration;
static int region;

static void must(bool is_true)
{
	if (!is_true)
		abort();
}

static struct ne_job job_of(uint32_t members, uint32_t rule)
{
	return (struct ne_job){.members = members, .chunks = CHUNKS, .groups = 1, .rule = rule, .chunk = chunks};
}

static void add(uint64_t id, struct ne_job job)
{
	must(ne_aggregator_add_job(aggregator, id, &job) == 0);
	must(ne_aggregator_plan(aggregator, id, 0, CHUNKS, &(struct ne_place){.epoch = EPOCH}) == 0);
}

static void begin(void)
{
	struct ne_job job = job_of(1, NE_RULE_SUM);
	int fds[2];

	must(ne_aggregator_create(1 << 26, 1, &aggregator) == 0);
	add(SUM, job_of(MEMBERS, NE_RULE_SUM));
	add(ADAM, job_of(MEMBERS, NE_RULE_ADAM));
	add(SOUND, job);
	region = memfd_create("fuzz", MFD_ALLOW_SEALING);
	must(ftruncate(region, 1 << 20) == 0 && fcntl(region, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	must(ne_kv_create(&job, 0, &sound) == 0 && ne_kv_start(sound, 0, NULL) == 0);
	must(ne_kv_own(sound, 0, CHUNKS, 0, EPOCH) == 0);
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	must(ne_aggregator_attach(aggregator, SOUND, 0, &(struct ne_lane){.fd = fds[0], .region = -1, .keys = keys}) ==
	     0);
	must(ne_kv_attach(sound, 0, fds[1], false, keys, NULL) == 0);
}

static int attach(uint8_t manner, int fd)
{
	uint64_t id = manner & OPTIMIZER ? ADAM : SUM;
	struct ne_lane lane = {.fd = fd, .region = -1, .keys = manner & CODED ? keys : NULL};

	if (manner & BULK)
		return manner & PREVIOUS ? ne_aggregator_attach_previous(aggregator, id, 1, fd, lane.keys)
					 : ne_aggregator_attach_next(aggregator, id, 1, fd, lane.keys);
	if (manner & SHARED)
		lane.region = dup(region);
	return ne_aggregator_attach(aggregator, id, manner & SECOND ? 1 : 0, &lane);
}

/* Chunks that come, or go, in the middle of what a lane says. */
static void plan(uint8_t manner)
{
	static uint64_t epoch = EPOCH;
	struct ne_place place = {.owner = manner & PREVIOUS ? 1 : 0, .next_owner = manner & PREVIOUS ? 0 : 1};

	place.epoch = ++epoch;
	place.next_epoch = ++epoch;
	must(ne_aggregator_plan(aggregator, manner & OPTIMIZER ? ADAM : SUM, 0, CHUNKS, &place) == 0);
}

/* libFuzzer's alarm interrupts every wait. */
static int wait_for(struct pollfd *ready)
{
	int got;

	do
		got = poll(ready, 1, WAIT_MS);
	while (got < 0 && errno == EINTR);
	return got;
}

static bool is_end(const struct ne_aggregator_event *event)
{
	return event->kind == NE_AGGREGATOR_LANE_ENDED || event->kind == NE_AGGREGATOR_NEXT_ENDED ||
	       event->kind == NE_AGGREGATOR_PREVIOUS_ENDED;
}

/* manner: with codes no input is anything but a wrong one, or less than a head. */
static void wait_for_its_end(uint8_t manner)
{
	struct ne_aggregator_event event = {0};
	struct pollfd ready = {.fd = ne_aggregator_event_fd(aggregator), .events = POLLIN};
	bool has_ended = false;

	while (!has_ended) {
		must(wait_for(&ready) == 1);
		while (ne_aggregator_next_event(aggregator, &event)) {
			has_ended = has_ended || is_end(&event);
			must(!is_end(&event) || !(manner & CODED) || event.error == EBADMSG || event.error == EPIPE ||
			     event.error == ECONNRESET);
		}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fds[2];

	if (!size)
		return 0;
	if (!aggregator)
		begin();
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	must(attach(data[0], fds[0]) == 0);
	(void)!send(fds[1], data + 1, size - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (data[0] & PLANS)
		plan(data[0]);
	close(fds[1]);
	wait_for_its_end(data[0]);
	iteration++;
	must(ne_kv_push(sound, 0, CHUNKS, iteration, false) == 0);
	must(ne_kv_wait(sound, 0, CHUNKS, iteration, WAIT_MS) == 0);
	return 0;
}
