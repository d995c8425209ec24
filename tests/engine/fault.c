/* SPDX-License-Identifier: Apache-2.0 */
/* The fault layer: each kind does what it says to the operations its rule counts off, and nothing to the others. */
#include "donor.h"

enum { PAGE = NE_PAGE_BYTES };

static struct ne_fault_rules rules;
static uint8_t out[PAGE], in[PAGE];

struct bench {
	struct donor donor;
	struct ne_link *link;
};

static void bench_create(struct bench *bench)
{
	struct ne_link *inner;

	memset(&rules, 0, sizeof(rules));
	donor_create(&bench->donor);
	inner = donor_link(&bench->donor, false, 0);
	CHECK(ne_fault_create(inner, &rules, &bench->link) == 0);
	CHECK(!bench->link->ops->direct);
	fill(out, PAGE, 1);
}

static void bench_destroy(struct bench *bench)
{
	bench->link->ops->destroy(bench->link);
	donor_destroy(&bench->donor);
}

static int write_page(struct bench *bench, uint32_t page)
{
	struct ne_io io = make_io(&bench->donor, NE_IO_WRITE, (uint64_t)page * PAGE, out, PAGE);

	return do_io(bench->link, &io);
}

static int read_page(struct bench *bench, uint32_t page)
{
	struct ne_io io = make_io(&bench->donor, NE_IO_READ, (uint64_t)page * PAGE, in, PAGE);

	return do_io(bench->link, &io);
}

static int different_bytes(const uint8_t *a, const uint8_t *b)
{
	int count = 0;

	for (int i = 0; i < PAGE; i++)
		count += a[i] != b[i];
	return count;
}

TEST(without_rules_everything_passes)
{
	struct bench bench;

	bench_create(&bench);
	CHECK(write_page(&bench, 3) == 0);
	CHECK(read_page(&bench, 3) == 0);
	CHECK(is_filled(in, PAGE, 1));
	bench_destroy(&bench);
}

TEST(an_error_is_told_and_the_operation_not_done)
{
	struct bench bench;

	bench_create(&bench);
	rules.every[NE_FAULT_ERROR] = 1;
	CHECK(write_page(&bench, 0) == -EIO);
	CHECK(bench.donor.slab[0] == 0 && bench.donor.slab[1] == 0);
	CHECK(bench.link->ops->alive(bench.link));
	rules.every[NE_FAULT_ERROR] = 0;
	CHECK(write_page(&bench, 0) == 0);
	bench_destroy(&bench);
}

TEST(one_operation_in_every_three_is_hit)
{
	struct bench bench;
	int failed = 0;

	bench_create(&bench);
	rules.every[NE_FAULT_ERROR] = 3;
	for (int i = 0; i < 9; i++)
		failed += write_page(&bench, i) == -EIO;
	CHECK(failed == 3);
	bench_destroy(&bench);
}

TEST(a_delayed_operation_is_done_but_told_late)
{
	struct bench bench;
	uint64_t before = now_ns();

	bench_create(&bench);
	rules.delay_us = 30000;
	rules.every[NE_FAULT_DELAY] = 1;
	CHECK(write_page(&bench, 0) == 0);
	CHECK(now_ns() - before >= 30000000);
	CHECK(memcmp(bench.donor.slab, out, PAGE) == 0);
	bench_destroy(&bench);
}

TEST(a_corrupt_read_has_one_wrong_byte_and_the_slab_none)
{
	struct bench bench;

	bench_create(&bench);
	CHECK(write_page(&bench, 0) == 0);
	rules.every[NE_FAULT_CORRUPT] = 1;
	CHECK(read_page(&bench, 0) == 0);
	CHECK(different_bytes(in, out) == 1);
	CHECK(memcmp(bench.donor.slab, out, PAGE) == 0);
	bench_destroy(&bench);
}

TEST(a_corrupt_write_stores_one_wrong_byte_and_leaves_the_posters_buffer_alone)
{
	struct bench bench;

	bench_create(&bench);
	rules.every[NE_FAULT_CORRUPT] = 1;
	CHECK(write_page(&bench, 0) == 0);
	CHECK(is_filled(out, PAGE, 1));
	CHECK(different_bytes(bench.donor.slab, out) == 1);
	bench_destroy(&bench);
}

TEST(many_corrupt_writes_wait_for_room_and_all_are_spoilt)
{
	struct ne_io ios[40];
	struct bench bench;
	int posted = 0;

	bench_create(&bench);
	rules.every[NE_FAULT_CORRUPT] = 1;
	while (posted < 40) {
		int err;

		ios[posted] = make_io(&bench.donor, NE_IO_WRITE, (uint64_t)posted * PAGE, out, PAGE);
		err = bench.link->ops->post(bench.link, &ios[posted]);
		CHECK(err == 0 || err == -EAGAIN);
		if (err)
			CHECK(collect(bench.link, bench.link->ops->outstanding(bench.link)));
		posted += !err;
	}
	CHECK(collect(bench.link, bench.link->ops->outstanding(bench.link)));
	for (int i = 0; i < 40; i++)
		CHECK(different_bytes(bench.donor.slab + (size_t)i * PAGE, out) == 1);
	bench_destroy(&bench);
}

TEST(half_of_a_short_write_lands_and_then_the_link_is_dead)
{
	struct bench bench;

	bench_create(&bench);
	rules.every[NE_FAULT_SHORT] = 1;
	CHECK(write_page(&bench, 0) == -ECONNRESET);
	CHECK(!bench.link->ops->alive(bench.link));
	CHECK(bench.link->ops->outstanding(bench.link) == 0);
	CHECK(memcmp(bench.donor.slab, out, PAGE / 2) == 0);
	for (int i = PAGE / 2; i < PAGE; i++)
		CHECK(bench.donor.slab[i] == 0);
	bench_destroy(&bench);
}

TEST(a_disconnect_comes_before_the_operation_and_fails_the_others)
{
	struct bench bench;
	struct ne_io first, second;

	bench_create(&bench);
	rules.every[NE_FAULT_DISCONNECT] = 2;
	first = make_io(&bench.donor, NE_IO_READ, 0, in, PAGE);
	second = make_io(&bench.donor, NE_IO_WRITE, 0, out, PAGE);
	CHECK(bench.link->ops->post(bench.link, &first) == 0);
	CHECK(bench.link->ops->post(bench.link, &second) == -ENOTCONN);
	CHECK(collect(bench.link, 1));
	CHECK(first.status == -ECONNRESET);
	CHECK(bench.donor.slab[0] == 0 && bench.donor.slab[1] == 0);
	CHECK(!bench.link->ops->alive(bench.link));
	bench_destroy(&bench);
}

TEST(a_hung_operation_comes_back_only_when_the_link_is_killed)
{
	struct ne_io *done[4], io;
	struct bench bench;

	bench_create(&bench);
	rules.every[NE_FAULT_HANG] = 1;
	io = make_io(&bench.donor, NE_IO_READ, 0, in, PAGE);
	io.status = 1;
	CHECK(bench.link->ops->post(bench.link, &io) == 0);
	rules.every[NE_FAULT_HANG] = 0;
	CHECK(read_page(&bench, 1) == 0);
	CHECK(bench.link->ops->poll(bench.link, done, 4) == 0);
	CHECK(bench.link->ops->outstanding(bench.link) == 1);
	bench.link->ops->kill(bench.link, ETIMEDOUT);
	CHECK(bench.link->ops->poll(bench.link, done, 4) == 1);
	CHECK(done[0] == &io && io.status == -ETIMEDOUT);
	CHECK(bench.link->ops->outstanding(bench.link) == 0);
	bench_destroy(&bench);
}

TEST(a_killed_link_gives_back_delayed_hung_and_plain_operations_once_each)
{
	struct ne_io ios[60], *done[7];
	struct bench bench;
	int back = 0, got;

	bench_create(&bench);
	rules.delay_us = 60000000;
	rules.every[NE_FAULT_DELAY] = 2;
	rules.every[NE_FAULT_HANG] = 3;
	rules.every[NE_FAULT_ERROR] = 5;
	for (int i = 0; i < 60; i++) {
		ios[i] = make_io(&bench.donor, NE_IO_READ, 0, in, PAGE);
		ios[i].status = 1;
		ios[i].posted_ns = now_ns();
		CHECK(bench.link->ops->post(bench.link, &ios[i]) == 0);
	}
	bench.link->ops->submit(bench.link);
	bench.link->ops->kill(bench.link, ETIMEDOUT);
	while ((got = bench.link->ops->poll(bench.link, done, 7)) > 0)
		back += got;
	CHECK(back == 60);
	CHECK(bench.link->ops->outstanding(bench.link) == 0);
	for (int i = 0; i < 60; i++)
		CHECK(ios[i].status == -ETIMEDOUT);
	bench_destroy(&bench);
}

TEST(a_donor_that_dies_gives_back_hung_operations_too)
{
	struct ne_io io;
	struct bench bench;

	bench_create(&bench);
	rules.every[NE_FAULT_HANG] = 1;
	io = make_io(&bench.donor, NE_IO_READ, 0, in, PAGE);
	CHECK(bench.link->ops->post(bench.link, &io) == 0);
	CHECK(ne_export_fence(bench.donor.exp, SESSION) == 0);
	CHECK(collect(bench.link, 1));
	CHECK(io.status == -ECONNRESET);
	bench_destroy(&bench);
}

TEST(shared_memory_can_be_spoilt_as_well)
{
	struct donor donor;
	struct ne_link *inner, *link;
	struct ne_io io;

	memset(&rules, 0, sizeof(rules));
	donor_create(&donor);
	CHECK(ne_shm_create(&inner) == 0);
	CHECK(ne_fault_create(inner, &rules, &link) == 0);
	rules.every[NE_FAULT_CORRUPT] = 1;
	fill(out, PAGE, 1);
	io = make_io(&donor, NE_IO_WRITE, 0, out, PAGE);
	CHECK(do_io(link, &io) == 0);
	CHECK(different_bytes(donor.slab, out) == 1);
	rules.every[NE_FAULT_SHORT] = 1;
	CHECK(do_io(link, &io) == -ECONNRESET);
	CHECK(!link->ops->alive(link));
	link->ops->destroy(link);
	donor_destroy(&donor);
}
