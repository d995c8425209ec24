/* SPDX-License-Identifier: Apache-2.0 */
/* exercise.h - what every link must do: give back what was written, one operation after another and many at once. */
#ifndef FARSIDE_EXERCISE_H
#define FARSIDE_EXERCISE_H

#include "donor.h"

enum { CROWD = 250, PAGE = NE_PAGE_BYTES, BIG = NE_CLUSTER_BYTES };

static uint8_t out[BIG], in[BIG];
static uint8_t pages[CROWD][PAGE];

/* Pages, then the largest operation, written and read back. */
static inline void write_and_read(struct donor *donor, struct ne_link *link)
{
	struct ne_io io;

	for (uint32_t length = 1; length <= BIG; length *= 8) {
		fill(out, length, length);
		io = make_io(donor, NE_IO_WRITE, SLAB_BYTES - length, out, length);
		CHECK(do_io(link, &io) == 0);
		CHECK(memcmp(donor->slab + SLAB_BYTES - length, out, length) == 0);
		memset(in, 0, length);
		io = make_io(donor, NE_IO_READ, SLAB_BYTES - length, in, length);
		CHECK(do_io(link, &io) == 0);
		CHECK(memcmp(in, out, length) == 0);
	}
	io = make_io(donor, NE_IO_WRITE, 0, out, BIG);
	CHECK(do_io(link, &io) == 0);
	CHECK(memcmp(donor->slab, out, BIG) == 0);
	io = make_io(donor, NE_IO_READ, 0, in, BIG);
	CHECK(do_io(link, &io) == 0);
	CHECK(memcmp(in, out, BIG) == 0);
}

/* Many writes at once, then many reads at once. */
static inline void crowd(struct donor *donor, struct ne_link *link)
{
	static struct ne_io ios[CROWD];

	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < CROWD; i++) {
			if (round == 0)
				fill(pages[i], PAGE, i);
			else
				memset(pages[i], 0, PAGE);
			ios[i] = make_io(donor, round == 0 ? NE_IO_WRITE : NE_IO_READ, (uint64_t)i * PAGE, pages[i],
					 PAGE);
			ios[i].status = 1;
			CHECK(link->ops->post(link, &ios[i]) == 0);
		}
		CHECK(link->ops->outstanding(link) == CROWD);
		CHECK(collect(link, CROWD));
		CHECK(link->ops->outstanding(link) == 0);
		for (int i = 0; i < CROWD; i++)
			CHECK(ios[i].status == 0);
	}
	for (int i = 0; i < CROWD; i++)
		CHECK(is_filled(pages[i], PAGE, i));
}

/* What was under way has failed, once, and the link takes nothing any more. */
static inline void expect_death(struct ne_link *link, struct ne_io ios[2], int err)
{
	CHECK(collect(link, 2));
	CHECK(ios[0].status == err);
	CHECK(ios[1].status == err);
	CHECK(!link->ops->alive(link));
	CHECK(link->ops->outstanding(link) == 0);
	CHECK(link->ops->post(link, &ios[0]) == -ENOTCONN);
}

#endif
