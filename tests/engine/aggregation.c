/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members and an Aggregator under the sanitizers: training through cut lanes and a killed Aggregator, and frames of
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

/* Members of odd ranks have their payload inline. */
static void connect_member(uint32_t rank)
{
	bool shm = rank % 2 == 0;
	int fds[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
	CHECK(ne_aggregator_attach(aggregator, JOB, rank, fds[0], shm ? dup(ne_kv_region(members[rank])) : -1, NULL,
				   0) == 0);
	CHECK(ne_kv_attach(members[rank], 0, fds[1], shm) == 0);
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
		int fds[2];

		CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
		CHECK(ne_aggregator_attach(aggregator, JOB, rank, fds[0],
					   draw() % 2 ? dup(ne_kv_region(members[rank])) : -1, NULL, 0) == 0);
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
		CHECK(ne_kv_attach(members[0], 0, fds[1], shm) == 0);
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
