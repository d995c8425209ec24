/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members and Aggregators under the sanitizers: training through cut lanes, killed Aggregators and moves, and frames of
 * random bytes. That results are right is shown by tests/aggregation/test_data_path.py.
 */
#include <sys/socket.h>

#include "check.h"
#include "lane.h"

enum { MEMBERS = 3, CHUNKS = 7, ITERATIONS = 12, RANDOM_LANES = 200, WAIT_MS = 50000, JOB = 5 };

static struct ne_job_chunk chunks[CHUNKS];
static struct ne_job job = {.members = MEMBERS, .chunks = CHUNKS, .groups = 1, .chunk = chunks};
static struct ne_aggregator *aggregator;
static struct ne_kv *members[MEMBERS];

static void make_aggregator(void)
{
	CHECK(ne_aggregator_create(1 << 26, 2, &aggregator) == 0);
	CHECK(ne_aggregator_add_job(aggregator, JOB, &job) == 0);
	CHECK(ne_aggregator_plan(aggregator, JOB, 0, CHUNKS, &(struct ne_place){.epoch = 1}) == 0);
}

/* Of what goes from Aggregators, and of what comes to them. */
static const uint8_t ours[] = "0123456789abcdefghijklmnopqrstuv";
static const uint8_t theirs[] = "ghijklmnopqrstuv0123456789abcdef";

static void attach(struct ne_aggregator *to, uint32_t rank, int fd, bool shm)
{
	struct ne_lane lane = {.fd = fd,
			       .region = shm ? dup(ne_kv_region(members[rank])) : -1,
			       .keys = shm ? NULL : ours};

	CHECK(ne_aggregator_attach(to, JOB, rank, &lane) == 0);
}

/* Members of odd ranks have their payload inline, and codes. */
static void connect_member(uint32_t rank)
{
	bool shm = rank % 2 == 0;
	int fds[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
	attach(aggregator, rank, fds[0], shm);
	CHECK(ne_kv_attach(members[rank], 0, fds[1], shm, shm ? NULL : theirs, NULL) == 0);
}

static void make_job(uint32_t rule, uint32_t dtype)
{
	struct ne_hyper hyper = {
		.lr = 0.1, .momentum = rule == NE_RULE_SGD ? 0.9 : 0, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};

	for (uint32_t i = 0; i < CHUNKS; i++)
		chunks[i] = (struct ne_job_chunk){.count = 100 + 31 * i, .dtype = dtype};
	job.rule = rule;
	make_aggregator();
	for (uint32_t rank = 0; rank < MEMBERS; rank++) {
		CHECK(ne_kv_create(&job, rank, &members[rank]) == 0);
		CHECK(ne_kv_start(members[rank], 0, NULL) == 0);
		CHECK(ne_kv_own(members[rank], 0, CHUNKS, 0, 1) == 0);
		if (rule >= NE_RULE_SGD)
			CHECK(ne_kv_hyper(members[rank], 0, 1, &hyper) == 0);
		connect_member(rank);
	}
}

static void drop_job(void)
{
	for (uint32_t rank = 0; rank < MEMBERS; rank++)
		ne_kv_destroy(members[rank]);
	ne_aggregator_destroy(aggregator);
}

static void push_all(uint64_t iteration)
{
	for (uint32_t rank = 0; rank < MEMBERS; rank++) {
		for (uint32_t i = 0; i < CHUNKS; i++)
			memset(ne_kv_gradient(members[rank], i, iteration), (int)(rank + i + iteration) & 63,
			       chunks[i].count * (chunks[i].dtype == NE_DTYPE_F32 ? 4 : 2));
		CHECK(ne_kv_push(members[rank], 0, CHUNKS, iteration, false) == 0);
	}
}

static void wait_all(uint64_t version)
{
	for (uint32_t rank = 0; rank < MEMBERS; rank++)
		CHECK(ne_kv_wait(members[rank], 0, CHUNKS, version, WAIT_MS) == 0);
}

/* Everybody has the same, by shared memory or inline. */
static void all_are_equal(void)
{
	for (uint32_t rank = 1; rank < MEMBERS; rank++)
		for (uint32_t i = 0; i < CHUNKS; i++)
			CHECK(memcmp(ne_kv_result(members[0], i), ne_kv_result(members[rank], i),
				     chunks[i].count * (chunks[i].dtype == NE_DTYPE_F32 ? 4 : 2)) == 0);
}

static void trains(uint32_t rule, uint32_t dtype)
{
	make_job(rule, dtype);
	wait_all(0);
	for (uint64_t iteration = 1; iteration <= ITERATIONS; iteration++) {
		push_all(iteration);
		if (iteration % 3 == 0)
			connect_member(iteration % MEMBERS);
		if (iteration % 4 == 0) {
			ne_aggregator_destroy(aggregator);
			make_aggregator();
			for (uint32_t rank = 0; rank < MEMBERS; rank++)
				connect_member(rank);
		}
		wait_all(iteration);
		all_are_equal();
	}
	drop_job();
}

TEST(a_sum_outlives_cut_lanes_and_its_aggregator)
{
	trains(NE_RULE_SUM, NE_DTYPE_F32);
	trains(NE_RULE_MEAN, NE_DTYPE_BF16);
}

TEST(an_optimizer_outlives_cut_lanes_and_its_aggregator)
{
	trains(NE_RULE_SGD, NE_DTYPE_F32);
	trains(NE_RULE_ADAM, NE_DTYPE_F16);
}

static uint64_t drawn = 88172645463325252u;

static uint64_t draw(void)
{
	drawn ^= drawn << 13;
	drawn ^= drawn >> 7;
	drawn ^= drawn << 17;
	return drawn;
}

/* Frames that begin well and go on at random, and bytes that are none. */
static size_t nonsense(uint8_t *to, size_t bytes)
{
	size_t at = 0;

	while (at + sizeof(struct frame) + 4096 < bytes) {
		struct frame frame = {.magic = FRAME_MAGIC,
				      .kind = draw() % 6,
				      .flags = draw() % 32,
				      .chunk = draw() % (CHUNKS + 1),
				      .iteration = draw() % 4,
				      .epoch = draw() % 3};

		if (frame.chunk < CHUNKS && draw() % 2)
			frame.bytes = chunks[frame.chunk].count * 4 * (draw() % 4 == 0 ? 3 : 1);
		if (frame.kind == FRAME_HYPER)
			frame.bytes = sizeof(struct ne_hyper);
		memcpy(to + at, &frame, sizeof(frame));
		at += sizeof(frame);
		for (uint32_t i = 0; i < frame.bytes && i < 4096; i++)
			to[at++] = (uint8_t)draw();
		if (draw() % 64 == 0)
			to[at++] = (uint8_t)draw();
	}
	return at;
}

static void takes_nonsense(uint32_t rule)
{
	static uint8_t bytes[1 << 16];

	make_job(rule, NE_DTYPE_F32);
	wait_all(0);
	for (int i = 0; i < RANDOM_LANES; i++) {
		uint32_t rank = draw() % MEMBERS;
		struct ne_lane lane;
		int fds[2];

		CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
		lane = (struct ne_lane){.fd = fds[0], .region = draw() % 2 ? dup(ne_kv_region(members[rank])) : -1};
		CHECK(ne_aggregator_attach(aggregator, JOB, rank, &lane) == 0);
		(void)!send(fds[1], bytes, nonsense(bytes, sizeof(bytes)), MSG_NOSIGNAL | MSG_DONTWAIT);
		close(fds[1]);
	}
	drop_job();
}

TEST(random_frames_neither_crash_the_aggregator_nor_write_beyond_a_chunk)
{
	takes_nonsense(NE_RULE_SUM);
	takes_nonsense(NE_RULE_ADAM);
}

static void member_takes_nonsense(bool shm)
{
	static uint8_t bytes[1 << 16];

	make_job(NE_RULE_ADAM, NE_DTYPE_F32);
	wait_all(0);
	for (int i = 0; i < RANDOM_LANES; i++) {
		int fds[2];
		size_t size = nonsense(bytes, sizeof(bytes));

		for (size_t at = 0; at < size; at += 97)
			if (bytes[at] == FRAME_SEED)
				bytes[at] = FRAME_RESULT;
		CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
		CHECK(ne_kv_attach(members[0], 0, fds[1], shm, NULL, NULL) == 0);
		(void)!send(fds[0], bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
		close(fds[0]);
	}
	drop_job();
}

TEST(random_frames_of_an_aggregator_do_not_crash_a_member)
{
	member_takes_nonsense(true);
	member_takes_nonsense(false);
}

/* ------------------------------------------------------------------------ moves */

static struct ne_aggregator *other;

static void connect_to(struct ne_aggregator *a, uint32_t number, uint32_t rank)
{
	bool shm = rank % 2 == 0;
	int fds[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
	attach(a, rank, fds[0], shm);
	CHECK(ne_kv_attach(members[rank], number, fds[1], shm, shm ? NULL : theirs, NULL) == 0);
}

static void plan(struct ne_place place)
{
	place.me = 0;
	CHECK(ne_aggregator_plan(aggregator, JOB, 0, CHUNKS, &place) == 0);
	place.me = 1;
	CHECK(ne_aggregator_plan(other, JOB, 0, CHUNKS, &place) == 0);
}

static void connect_aggregators(struct ne_aggregator *from, uint32_t from_number, struct ne_aggregator *to,
				uint32_t to_number)
{
	int fds[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
	CHECK(ne_aggregator_attach_next(from, JOB, to_number, fds[0], ours) == 0);
	CHECK(ne_aggregator_attach_previous(to, JOB, from_number, fds[1], theirs) == 0);
}

/* All chunks go from one to the other and back, and lanes are made anew while they do. */
static void moves(uint32_t rule, uint32_t dtype)
{
	uint64_t epoch = 2;

	make_job(rule, dtype);
	CHECK(ne_aggregator_create(1 << 26, 1, &other) == 0);
	CHECK(ne_aggregator_add_job(other, JOB, &job) == 0);
	wait_all(0);
	for (uint32_t rank = 0; rank < MEMBERS; rank++)
		connect_to(other, 1, rank);
	for (uint64_t iteration = 1; iteration <= ITERATIONS; iteration += 2, epoch++) {
		uint32_t owner = iteration / 2 % 2;

		/* The owner's epoch is the one under which it got the chunks. */
		plan((struct ne_place){.owner = owner, .epoch = epoch - 1, .next_owner = !owner, .next_epoch = epoch});
		for (uint64_t i = iteration; i < iteration + 2; i++) {
			connect_aggregators(owner ? other : aggregator, owner, owner ? aggregator : other, !owner);
			push_all(i);
			if (i % 3 == 0)
				connect_to(owner ? aggregator : other, !owner, i % MEMBERS);
			wait_all(i);
			all_are_equal();
		}
		plan((struct ne_place){.owner = !owner, .epoch = epoch});
	}
	ne_aggregator_destroy(other);
	drop_job();
}

TEST(chunks_move_between_aggregators_while_lanes_are_made_anew)
{
	moves(NE_RULE_SUM, NE_DTYPE_F32);
	moves(NE_RULE_SGD, NE_DTYPE_BF16);
	moves(NE_RULE_ADAM, NE_DTYPE_F32);
}

static void bulk_takes_nonsense(uint32_t rule)
{
	static uint8_t bytes[1 << 16];

	make_job(rule, NE_DTYPE_F32);
	wait_all(0);
	for (int i = 0; i < RANDOM_LANES; i++) {
		struct ne_place place = {.me = 0, .owner = i % 2, .epoch = 2 + 3 * i};
		size_t size;
		int fds[2];

		if (i % 8 == 0) {
			place.next_owner = 1 - place.owner;
			place.next_epoch = place.epoch + 1;
			CHECK(ne_aggregator_plan(aggregator, JOB, 0, CHUNKS, &place) == 0);
		}
		size = nonsense(bytes, sizeof(bytes));
		for (size_t at = 0; at + sizeof(struct frame) < size; at += sizeof(struct frame)) {
			struct frame frame;

			memcpy(&frame, bytes + at, sizeof(frame));
			if (frame.magic != FRAME_MAGIC)
				continue;
			frame.kind = FRAME_COPY + frame.kind % 3;
			frame.epoch = place.epoch + draw() % 3;
			frame.aux = draw() % 2;
			memcpy(bytes + at, &frame, sizeof(frame));
			at += frame.bytes < 4096 ? frame.bytes : 4096;
		}
		CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
		if (draw() % 2)
			CHECK(ne_aggregator_attach_previous(aggregator, JOB, 1, fds[0], NULL) == 0);
		else
			CHECK(ne_aggregator_attach_next(aggregator, JOB, 1, fds[0], NULL) == 0);
		(void)!send(fds[1], bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
		close(fds[1]);
	}
	drop_job();
}

TEST(random_frames_between_aggregators_neither_crash_nor_write_beyond_a_chunk)
{
	bulk_takes_nonsense(NE_RULE_SUM);
	bulk_takes_nonsense(NE_RULE_ADAM);
}
