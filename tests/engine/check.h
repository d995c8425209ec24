/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.h - the frame of the engine's C tests: each TEST is a sentence, run alone by its name or all together.
 *
 *	TEST(a_page_written_comes_back) { ... CHECK(x == y); ... }
 */
#ifndef FARSIDE_CHECK_H
#define FARSIDE_CHECK_H

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "link.h"

enum { TESTS_MAX = 100, DEADLINE_S = 60 };

struct test {
	const char *name;
	void (*run)(void);
};

static struct test tests[TESTS_MAX];
static int tests_count;

#define TEST(sentence)                                                     \
	static void sentence(void);                                        \
	__attribute__((constructor)) static void add_##sentence(void)      \
	{                                                                  \
		tests[tests_count++] = (struct test){#sentence, sentence}; \
	}                                                                  \
	static void sentence(void)

#define CHECK(condition)                                                                                  \
	do {                                                                                              \
		if (!(condition)) {                                                                       \
			fprintf(stderr, "%s:%d: not so: %s (errno %s)\n", __FILE__, __LINE__, #condition, \
				strerror(errno));                                                         \
			exit(1);                                                                          \
		}                                                                                         \
	} while (0)

/* Bytes that depend on the seed and on where they stand, never zero for a whole page. */
static inline void fill(void *buf, size_t bytes, uint32_t seed)
{
	uint8_t *p = buf;
	uint32_t x = seed * 2654435761u + 1;

	for (size_t i = 0; i < bytes; i++) {
		x = x * 1664525u + 1013904223u;
		p[i] = x >> 24;
	}
}

static inline bool is_filled(const void *buf, size_t bytes, uint32_t seed)
{
	static uint8_t want[NE_CLUSTER_BYTES];

	fill(want, bytes, seed);
	return memcmp(buf, want, bytes) == 0;
}

/* Submits, polls and sleeps as a worker does, until `count` operations have come back; false after 10 s. */
static inline bool collect(struct ne_link *link, int count)
{
	uint64_t end = now_ns() + 10000000000ull;

	while (count > 0 && now_ns() < end) {
		struct ne_io *done[8];
		struct pollfd pfd = {.fd = -1};
		uint64_t timeout_ns;
		int got;

		link->ops->submit(link);
		got = link->ops->poll(link, done, 8);
		count -= got;
		if (got)
			continue;
		pfd.fd = link->ops->wait(link, &pfd.events, &timeout_ns);
		CHECK(pfd.fd >= 0 || timeout_ns != UINT64_MAX);
		poll(&pfd, 1, timeout_ns > 1000000000 ? 1000 : (int)((timeout_ns + 999999) / 1000000));
	}
	return count == 0;
}

static inline int do_io(struct ne_link *link, struct ne_io *io)
{
	int err;

	io->status = 1;
	io->posted_ns = now_ns();
	err = link->ops->post(link, io);
	if (err)
		return err;
	CHECK(collect(link, 1));
	return io->status;
}

int main(int argc, char **argv)
{
	for (int i = 0; i < tests_count; i++) {
		if (argc > 1 && strcmp(argv[1], tests[i].name) != 0)
			continue;
		alarm(DEADLINE_S);
		tests[i].run();
		printf("ok %s\n", tests[i].name);
	}
	return 0;
}

#endif
