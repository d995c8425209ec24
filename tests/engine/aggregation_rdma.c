/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members by RDMA, over an adapter that is a piece of this process (fake_verbs.h), beside members by shared memory and
 * TCP: all have the same bits, whatever ends, and nothing of a queue pair is left over.
 */
#include <netinet/in.h>
#include <sys/socket.h>

#include "exercise.h"
#include "fake_verbs.h"
#include "lane.h"
#include "verbs.h"

enum { MEMBERS = 3, CHUNKS = 7, ITERATIONS = 12, WAIT_MS = 50000, LIMIT_MS = 20000, JOB = 5, TOKEN_OF_REGION = 99 };

/* How each rank reaches the Aggregator. */
enum { BY_SHM, BY_RDMA, BY_TCP };

static struct ne_job_chunk chunks[CHUNKS];
static struct ne_job job = {.members = MEMBERS, .chunks = CHUNKS, .groups = 1, .chunk = chunks};
static struct ne_aggregator *aggregator;
static struct ne_kv *members[MEMBERS];
static int ways[MEMBERS];

static void make_aggregator(void)
{
	CHECK(ne_aggregator_create(1 << 28, 2, &aggregator) == 0);
	CHECK(ne_aggregator_add_job(aggregator, JOB, &job) == 0);
	CHECK(ne_aggregator_plan(aggregator, JOB, 0, CHUNKS, &(struct ne_place){.epoch = 1}) == 0);
}

static struct ne_export *make_pair(uint32_t rank, struct ne_link **link)
{
	struct ne_export *pair;
	int fds[2];

	tcp_pair(fds, 0);
	CHECK(ne_kv_export(members[rank], fds[1], TOKEN_OF_REGION, &pair) == 0);
	CHECK(ne_rdma_connect(fds[0], LIMIT_MS, link) == 0);
	CHECK(ne_link_probe(*link, NE_REGION_LEASE, TOKEN_OF_REGION, LIMIT_MS) == 0);
	return pair;
}

static void connect_member(uint32_t rank)
{
	struct ne_lane lane = {.region = ways[rank] == BY_SHM ? dup(ne_kv_region(members[rank])) : -1,
			       .token = TOKEN_OF_REGION};
	struct ne_export *pair = NULL;
	int fds[2];

	if (ways[rank] == BY_RDMA)
		pair = make_pair(rank, &lane.link);
	tcp_pair(fds, 0);
	lane.fd = fds[0];
	CHECK(ne_aggregator_attach(aggregator, JOB, rank, &lane) == 0);
	CHECK(ne_kv_attach(members[rank], 0, fds[1], ways[rank] == BY_SHM, NULL, pair) == 0);
}

/* Lanes that end meanwhile are made again. */
static void wait_all(uint64_t version)
{
	for (uint32_t rank = 0; rank < MEMBERS; rank++) {
		uint64_t until = now_ns() + WAIT_MS * 1000000ull;
		int err;

		while ((err = ne_kv_wait(members[rank], 0, CHUNKS, version, 20)) == -ETIMEDOUT && now_ns() < until)
			for (uint32_t other = 0; other < MEMBERS; other++)
				if (ne_kv_wait_lane(members[other], 0) == 0)
					connect_member(other);
		CHECK(err == 0);
	}
}

static void begin(uint32_t rule, uint32_t dtype, bool has_windows)
{
	struct ne_hyper hyper = {
		.lr = 0.1, .momentum = rule == NE_RULE_SGD ? 0.9 : 0, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};

	fake_reset();
	fake.has_windows = has_windows;
	/* The last one's state is longer than an operation of a link may be. */
	for (uint32_t i = 0; i < CHUNKS; i++)
		chunks[i] = (struct ne_job_chunk){.count = i + 1 < CHUNKS ? 1 + 31 * i : 260000, .dtype = dtype};
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
	wait_all(0);
}

static void end(void)
{
	for (uint32_t rank = 0; rank < MEMBERS; rank++)
		ne_kv_destroy(members[rank]);
	ne_aggregator_destroy(aggregator);
	if (fake.broken[0] || fake.objects)
		fprintf(stderr, "%s; %d objects left\n", fake.broken, fake.objects);
	CHECK(!fake.broken[0]);
	CHECK(fake.objects == 0);
}

static size_t bytes_of(uint32_t chunk)
{
	return chunks[chunk].count * (chunks[chunk].dtype == NE_DTYPE_F32 ? 4 : 2);
}

static void push_all(uint64_t iteration)
{
	for (uint32_t rank = 0; rank < MEMBERS; rank++) {
		for (uint32_t i = 0; i < CHUNKS; i++)
			memset(ne_kv_gradient(members[rank], i, iteration), (int)(rank + i + iteration) & 63,
			       bytes_of(i));
		CHECK(ne_kv_push(members[rank], 0, CHUNKS, iteration, false) == 0);
	}
}

static void all_are_equal(void)
{
	for (uint32_t rank = 1; rank < MEMBERS; rank++)
		for (uint32_t i = 0; i < CHUNKS; i++)
			CHECK(!memcmp(ne_kv_result(members[0], i), ne_kv_result(members[rank], i), bytes_of(i)));
}

static void train(uint64_t from, uint64_t to)
{
	for (uint64_t iteration = from; iteration <= to; iteration++) {
		push_all(iteration);
		wait_all(iteration);
		all_are_equal();
	}
}

static struct ne_aggregator_stats stats(void)
{
	struct ne_aggregator_stats found;

	CHECK(ne_aggregator_job_stats(aggregator, JOB, &found) == 0);
	return found;
}

static void set_ways(int first, int second, int third)
{
	ways[0] = first;
	ways[1] = second;
	ways[2] = third;
}

TEST(members_by_rdma_have_what_others_have)
{
	set_ways(BY_SHM, BY_RDMA, BY_TCP);
	for (int has_windows = 0; has_windows < 2; has_windows++) {
		begin(NE_RULE_SUM, NE_DTYPE_F32, has_windows);
		train(1, ITERATIONS);
		CHECK(stats().lanes == 3 && stats().shm_lanes == 1 && stats().rdma_lanes == 1);
		end();
		begin(NE_RULE_SGD, NE_DTYPE_BF16, has_windows);
		train(1, ITERATIONS);
		end();
	}
	set_ways(BY_RDMA, BY_RDMA, BY_RDMA);
	begin(NE_RULE_ADAM, NE_DTYPE_F32, true);
	train(1, ITERATIONS);
	CHECK(stats().rdma_lanes == 3);
	CHECK(fake.posts > 0);
	end();
}

/* What is kept of the optimizer's state has come by RDMA, too: the next Aggregator has it from there. */
static void survives(uint32_t rule, uint32_t dtype)
{
	set_ways(BY_RDMA, BY_RDMA, BY_TCP);
	begin(rule, dtype, true);
	for (uint64_t iteration = 1; iteration <= ITERATIONS; iteration++) {
		push_all(iteration);
		if (iteration % 3 == 0) {
			ne_aggregator_destroy(aggregator);
			make_aggregator();
		}
		wait_all(iteration);
		all_are_equal();
	}
	end();
}

TEST(a_killed_aggregator_loses_nothing_of_members_by_rdma)
{
	survives(NE_RULE_SUM, NE_DTYPE_F32);
	survives(NE_RULE_SGD, NE_DTYPE_BF16);
	survives(NE_RULE_ADAM, NE_DTYPE_F32);
}

TEST(lanes_that_are_made_anew_in_the_middle_lose_nothing)
{
	set_ways(BY_RDMA, BY_SHM, BY_RDMA);
	begin(NE_RULE_ADAM, NE_DTYPE_F32, true);
	for (uint64_t iteration = 1; iteration <= ITERATIONS; iteration++) {
		push_all(iteration);
		connect_member(iteration % MEMBERS);
		/* The same member, another way. */
		ways[2] = iteration % 2 ? BY_TCP : BY_RDMA;
		connect_member(2);
		wait_all(iteration);
		all_are_equal();
	}
	end();
}

TEST(a_transfer_that_fails_ends_the_lane_and_the_next_one_goes_on)
{
	static const enum ibv_wc_status fails[] = {IBV_WC_RETRY_EXC_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR};

	set_ways(BY_RDMA, BY_RDMA, BY_SHM);
	begin(NE_RULE_SGD, NE_DTYPE_F32, true);
	for (uint64_t iteration = 1; iteration <= ITERATIONS; iteration++) {
		push_all(iteration);
		fake.fails = fails[iteration % 3];
		wait_all(iteration);
		all_are_equal();
	}
	end();
}

static void with_fault(uint32_t kind, uint32_t every, uint32_t delay_us)
{
	set_ways(BY_RDMA, BY_RDMA, BY_TCP);
	begin(NE_RULE_ADAM, NE_DTYPE_F32, true);
	CHECK(ne_aggregator_fault_set(aggregator, kind, every, delay_us) == 0);
	train(1, 6);
	CHECK(ne_aggregator_fault_set(aggregator, kind, 0, 0) == 0);
	end();
}

TEST(faults_of_lanes_and_queue_pairs_lose_nothing)
{
	with_fault(NE_FAULT_ERROR, 61, 0);
	with_fault(NE_FAULT_SHORT, 61, 0);
	with_fault(NE_FAULT_DISCONNECT, 61, 0);
	with_fault(NE_FAULT_DELAY, 5, 300);
}

TEST(gradients_that_are_late_keep_frames_in_their_order)
{
	set_ways(BY_RDMA, BY_RDMA, BY_RDMA);
	begin(NE_RULE_SUM, NE_DTYPE_F32, true);
	fake.holds = true;
	push_all(1);
	CHECK(ne_kv_wait(members[0], 0, CHUNKS, 1, 50) == -ETIMEDOUT);
	CHECK(stats().updates == 0);
	fake.holds = false;
	fake_release();
	wait_all(1);
	all_are_equal();
	train(2, 4);
	end();
}

TEST(a_push_that_is_ahead_of_the_plan_waits_for_it)
{
	set_ways(BY_RDMA, BY_RDMA, BY_SHM);
	begin(NE_RULE_ADAM, NE_DTYPE_F32, true);
	train(1, 1);
	for (uint32_t rank = 0; rank < MEMBERS; rank++)
		CHECK(ne_kv_own(members[rank], 0, CHUNKS, 0, 2) == 0);
	push_all(2);
	CHECK(ne_kv_wait(members[0], 0, CHUNKS, 2, 50) == -ETIMEDOUT);
	CHECK(ne_aggregator_plan(aggregator, JOB, 0, CHUNKS, &(struct ne_place){.epoch = 2}) == 0);
	wait_all(2);
	all_are_equal();
	CHECK(stats().lanes == MEMBERS);
	train(3, 4);
	end();
}

TEST(lanes_by_rdma_on_which_nothing_happens_take_no_time)
{
	uint64_t before;

	set_ways(BY_RDMA, BY_RDMA, BY_RDMA);
	begin(NE_RULE_SUM, NE_DTYPE_F32, true);
	train(1, 2);
	before = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
	nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
	/* One thread that spins would take all of it. */
	CHECK(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - before < 100000000);
	train(3, 4);
	end();
}

TEST(a_link_without_the_regions_token_is_of_no_use)
{
	struct ne_export *pair;
	struct ne_link *link;
	int fds[2];

	set_ways(BY_SHM, BY_SHM, BY_SHM);
	begin(NE_RULE_SUM, NE_DTYPE_F32, true);
	tcp_pair(fds, 0);
	CHECK(ne_kv_export(members[0], fds[1], TOKEN_OF_REGION, &pair) == 0);
	CHECK(ne_rdma_connect(fds[0], LIMIT_MS, &link) == 0);
	CHECK(ne_link_probe(link, NE_REGION_LEASE, TOKEN_OF_REGION + 1, LIMIT_MS) == -EACCES);
	link->ops->destroy(link);
	ne_export_destroy(pair);
	end();
}

TEST(an_aggregator_that_refuses_a_member_frees_its_queue_pair)
{
	struct ne_lane lane = {.region = -1, .token = TOKEN_OF_REGION};
	struct ne_export *pair;
	int fds[2];

	set_ways(BY_SHM, BY_SHM, BY_SHM);
	begin(NE_RULE_SUM, NE_DTYPE_F32, true);
	pair = make_pair(0, &lane.link);
	tcp_pair(fds, 0);
	lane.fd = fds[0];
	CHECK(ne_aggregator_attach(aggregator, JOB, MEMBERS, &lane) == -EINVAL);
	ne_export_destroy(pair);
	end();
}
