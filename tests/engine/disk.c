/* SPDX-License-Identifier: Apache-2.0 */
/* The disk: what is written comes back, the file holds ciphertext, and errors are told. */
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "check.h"

enum { PAGE = NE_PAGE_BYTES, DIO_MAX = 1 << 20, DISK_BYTES = 16 << 20, CROWD = 200 };

static struct ne_fault_rules rules;

struct bench {
	struct ne_disk *disk;
	struct ne_arena arena;
	uint8_t *buf; /* the arena's memory: DIO_MAX for writing, and as much for reading */
	uint8_t *back;
	int fd;
};

static const uint8_t KEY[64] = "a key's two halves must differ, or XTS refuses it ... as it does";

static void bench_create(struct bench *bench, uint32_t depth, const uint8_t *key)
{
	char path[] = "disk-XXXXXX";
	int fd = mkstemp(path);

	CHECK(fd >= 0);
	CHECK(ftruncate(fd, DISK_BYTES) == 0);
	/* A tmpfs before Linux 6.6 has no O_DIRECT; the engine itself does not need it. */
	bench->fd = open(path, O_RDWR | O_DIRECT);
	if (bench->fd < 0)
		bench->fd = open(path, O_RDWR);
	CHECK(bench->fd >= 0);
	CHECK(unlink(path) == 0);
	close(fd);
	bench->arena.bytes = 2 * DIO_MAX;
	bench->arena.base = mmap(NULL, bench->arena.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(bench->arena.base != MAP_FAILED);
	bench->buf = bench->arena.base;
	bench->back = bench->buf + DIO_MAX;
	memset(&rules, 0, sizeof(rules));
	CHECK(ne_disk_create(bench->fd, depth, key, &bench->arena, &rules, &bench->disk) == 0);
}

static void bench_destroy(struct bench *bench)
{
	ne_disk_destroy(bench->disk);
	munmap(bench->arena.base, bench->arena.bytes);
	close(bench->fd);
}

/* Sleeps on the disk's fd, as a worker does, until `count` operations have come back. */
static void collect_dios(struct ne_disk *disk, int count)
{
	ne_disk_submit(disk);
	while (count > 0) {
		struct pollfd pfd = {.fd = ne_disk_wait_fd(disk), .events = POLLIN};
		struct ne_dio *done[8];

		CHECK(poll(&pfd, 1, 10000) == 1);
		count -= ne_disk_poll(disk, done, 8);
	}
	CHECK(count == 0);
}

static int do_dio(struct bench *bench, int op, uint64_t offset, void *buf, uint32_t length)
{
	struct ne_dio dio = {.op = op, .length = length, .offset = offset, .buf = buf, .status = 1};

	ne_disk_post(bench->disk, &dio);
	collect_dios(bench->disk, 1);
	CHECK(ne_disk_outstanding(bench->disk) == 0);
	return dio.status;
}

static void write_and_read(struct bench *bench)
{
	for (uint32_t length = PAGE; length <= DIO_MAX; length *= 4) {
		fill(bench->buf, length, length);
		CHECK(do_dio(bench, NE_IO_WRITE, DISK_BYTES - length, bench->buf, length) == 0);
		CHECK(is_filled(bench->buf, length, length));
		memset(bench->back, 0, length);
		CHECK(do_dio(bench, NE_IO_READ, DISK_BYTES - length, bench->back, length) == 0);
		CHECK(memcmp(bench->back, bench->buf, length) == 0);
	}
}

/* What the file really holds. */
static const uint8_t *stored(struct bench *bench, uint64_t offset)
{
	static uint8_t raw[2 * PAGE] __attribute__((aligned(PAGE)));

	CHECK(pread(bench->fd, raw, sizeof(raw), offset) == sizeof(raw));
	return raw;
}

TEST(plain_pages_come_back_and_stand_in_the_file_as_they_are)
{
	struct bench bench;

	bench_create(&bench, 8, NULL);
	write_and_read(&bench);
	fill(bench.buf, 2 * PAGE, 5);
	CHECK(do_dio(&bench, NE_IO_WRITE, PAGE, bench.buf, 2 * PAGE) == 0);
	CHECK(memcmp(stored(&bench, PAGE), bench.buf, 2 * PAGE) == 0);
	bench_destroy(&bench);
}

TEST(encrypted_pages_come_back_and_the_file_holds_something_else)
{
	struct bench bench;

	bench_create(&bench, 8, KEY);
	write_and_read(&bench);
	fill(bench.buf, 2 * PAGE, 5);
	CHECK(do_dio(&bench, NE_IO_WRITE, PAGE, bench.buf, 2 * PAGE) == 0);
	CHECK(is_filled(bench.buf, 2 * PAGE, 5)); /* the payload itself is left alone */
	for (int i = 0; i < 2 * PAGE; i += 16)
		CHECK(memcmp(stored(&bench, PAGE) + i, bench.buf + i, 16) != 0);
	bench_destroy(&bench);
}

TEST(equal_pages_look_different_in_different_places)
{
	struct bench bench;
	const uint8_t *raw;

	bench_create(&bench, 8, KEY);
	memset(bench.buf, 0x5a, 2 * PAGE);
	CHECK(do_dio(&bench, NE_IO_WRITE, 0, bench.buf, 2 * PAGE) == 0);
	raw = stored(&bench, 0);
	for (int i = 0; i < PAGE; i += 16)
		CHECK(memcmp(raw + i, raw + PAGE + i, 16) != 0);
	bench_destroy(&bench);
}

TEST(pages_written_together_can_be_read_alone)
{
	struct bench bench;

	bench_create(&bench, 8, KEY);
	fill(bench.buf, 8 * PAGE, 6);
	CHECK(do_dio(&bench, NE_IO_WRITE, 3 * PAGE, bench.buf, 8 * PAGE) == 0);
	for (int i = 0; i < 8; i++) {
		CHECK(do_dio(&bench, NE_IO_READ, (3 + i) * PAGE, bench.back, PAGE) == 0);
		CHECK(memcmp(bench.back, bench.buf + i * PAGE, PAGE) == 0);
	}
	bench_destroy(&bench);
}

TEST(another_key_reads_nonsense)
{
	uint8_t other[64];
	struct bench bench;

	memcpy(other, KEY, sizeof(other));
	other[0] ^= 1;
	bench_create(&bench, 8, KEY);
	fill(bench.buf, PAGE, 7);
	CHECK(do_dio(&bench, NE_IO_WRITE, 0, bench.buf, PAGE) == 0);
	ne_disk_destroy(bench.disk);
	CHECK(ne_disk_create(bench.fd, 8, other, &bench.arena, &rules, &bench.disk) == 0);
	CHECK(do_dio(&bench, NE_IO_READ, 0, bench.back, PAGE) == 0);
	CHECK(memcmp(bench.back, bench.buf, PAGE) != 0);
	bench_destroy(&bench);
}

TEST(a_key_of_two_equal_halves_is_refused_with_einval)
{
	static const uint8_t weak[64];
	struct ne_disk *disk;

	CHECK(ne_disk_create(0, 8, weak, NULL, NULL, &disk) == -EINVAL);
}

static void crowd(const uint8_t *key)
{
	static struct ne_dio dios[CROWD];
	struct bench bench;

	bench_create(&bench, 4, key);
	for (int round = 0; round < 2; round++) {
		uint8_t *at = round == 0 ? bench.buf : bench.back;

		for (int i = 0; i < CROWD; i++) {
			if (round == 0)
				fill(at + i * PAGE, PAGE, i);
			dios[i] = (struct ne_dio){
				.op = round == 0 ? NE_IO_WRITE : NE_IO_READ,
				.length = PAGE,
				.offset = (uint64_t)(CROWD - i) * PAGE,
				.buf = at + i * PAGE,
				.status = 1,
			};
			ne_disk_post(bench.disk, &dios[i]);
		}
		CHECK(ne_disk_outstanding(bench.disk) == CROWD);
		collect_dios(bench.disk, CROWD);
		for (int i = 0; i < CROWD; i++)
			CHECK(dios[i].status == 0);
	}
	for (int i = 0; i < CROWD; i++)
		CHECK(is_filled(bench.back + i * PAGE, PAGE, i));
	bench_destroy(&bench);
}

TEST(more_operations_than_the_depth_wait_their_turn)
{
	crowd(NULL);
}

TEST(more_encrypted_operations_than_the_depth_wait_their_turn)
{
	crowd(KEY);
}

static long faults(void)
{
	struct rusage usage;

	CHECK(getrusage(RUSAGE_THREAD, &usage) == 0);
	return usage.ru_minflt;
}

TEST(a_disk_with_its_memory_at_hand_asks_for_no_more)
{
	static struct ne_dio dios[CROWD];
	struct bench bench;
	long before;

	bench_create(&bench, 128, KEY);
	CHECK(ne_disk_prefault(bench.disk, 0) == -EINVAL);
	CHECK(ne_disk_prefault(bench.disk, 129) == -EINVAL);
	CHECK(ne_disk_prefault(bench.disk, 2) == 0);
	for (int i = 0; i < CROWD; i++) {
		fill(bench.buf + i * PAGE, PAGE, i);
		dios[i] = (struct ne_dio){.op = NE_IO_WRITE,
					  .length = PAGE,
					  .offset = (uint64_t)i * PAGE,
					  .buf = bench.buf + i * PAGE,
					  .status = 1};
	}
	before = faults();
	for (int i = 0; i < CROWD; i++)
		ne_disk_post(bench.disk, &dios[i]);
	collect_dios(bench.disk, CROWD);
	CHECK(faults() - before < 64); /* 128 pages of ciphertext would be touched */
	for (int i = 0; i < CROWD; i++)
		CHECK(dios[i].status == 0);
	bench_destroy(&bench);
}

TEST(memory_outside_the_arena_works_too)
{
	struct bench bench;
	uint8_t *own;

	bench_create(&bench, 4, NULL);
	own = aligned_alloc(PAGE, PAGE);
	fill(own, PAGE, 8);
	CHECK(do_dio(&bench, NE_IO_WRITE, 0, own, PAGE) == 0);
	memset(own, 0, PAGE);
	CHECK(do_dio(&bench, NE_IO_READ, 0, own, PAGE) == 0);
	CHECK(is_filled(own, PAGE, 8));
	free(own);
	bench_destroy(&bench);
}

TEST(an_injected_error_fails_the_write_and_writes_nothing)
{
	struct bench bench;

	bench_create(&bench, 8, KEY);
	rules.every[NE_FAULT_ERROR] = 1;
	fill(bench.buf, PAGE, 1);
	CHECK(do_dio(&bench, NE_IO_WRITE, 0, bench.buf, PAGE) == -EIO);
	CHECK(do_dio(&bench, NE_IO_READ, 0, bench.back, PAGE) == 0); /* reads are never hit */
	for (int i = 0; i < PAGE; i++)
		CHECK(stored(&bench, 0)[i] == 0);
	bench_destroy(&bench);
}

TEST(one_write_in_every_four_fails)
{
	struct bench bench;
	int failed = 0;

	bench_create(&bench, 8, NULL);
	rules.every[NE_FAULT_ERROR] = 4;
	for (int i = 0; i < 12; i++)
		failed += do_dio(&bench, NE_IO_WRITE, 0, bench.buf, PAGE) == -EIO;
	CHECK(failed == 3);
	bench_destroy(&bench);
}

TEST(a_delayed_write_is_told_late)
{
	struct bench bench;
	uint64_t before;

	bench_create(&bench, 8, NULL);
	rules.every[NE_FAULT_DELAY] = 1;
	rules.delay_us = 30000;
	before = now_ns();
	fill(bench.buf, PAGE, 2);
	CHECK(do_dio(&bench, NE_IO_WRITE, 0, bench.buf, PAGE) == 0);
	CHECK(now_ns() - before >= 30000000);
	CHECK(is_filled(stored(&bench, 0), PAGE, 2));
	bench_destroy(&bench);
}

TEST(a_short_write_stores_half_and_fails_with_eio)
{
	struct bench bench;

	bench_create(&bench, 8, NULL);
	rules.every[NE_FAULT_SHORT] = 1;
	memset(bench.buf, 0x5a, 2 * PAGE);
	CHECK(do_dio(&bench, NE_IO_WRITE, 0, bench.buf, 2 * PAGE) == -EIO);
	CHECK(stored(&bench, 0)[PAGE - 1] == 0x5a);
	CHECK(stored(&bench, 0)[PAGE] == 0);
	bench_destroy(&bench);
}

TEST(a_transfer_past_the_end_is_short_and_fails_with_eio)
{
	struct bench bench;

	bench_create(&bench, 8, NULL);
	CHECK(do_dio(&bench, NE_IO_READ, DISK_BYTES - PAGE, bench.back, 2 * PAGE) == -EIO);
	bench_destroy(&bench);
}

TEST(what_is_not_whole_pages_is_refused_with_einval)
{
	struct bench bench;

	bench_create(&bench, 8, NULL);
	CHECK(do_dio(&bench, NE_IO_READ, 0, bench.back, 100) == -EINVAL);
	CHECK(do_dio(&bench, NE_IO_READ, 100, bench.back, PAGE) == -EINVAL);
	CHECK(do_dio(&bench, NE_IO_READ, 0, bench.back, 0) == -EINVAL);
	CHECK(do_dio(&bench, NE_IO_READ, 0, bench.back, DIO_MAX + PAGE) == -EINVAL);
	bench_destroy(&bench);
}

TEST(a_file_that_cannot_be_written_says_why)
{
	struct bench bench;
	int fd = open("/dev/full", O_RDWR);

	bench_create(&bench, 8, NULL);
	ne_disk_destroy(bench.disk);
	CHECK(ne_disk_create(fd, 8, NULL, NULL, NULL, &bench.disk) == 0);
	CHECK(do_dio(&bench, NE_IO_WRITE, 0, bench.buf, PAGE) == -ENOSPC);
	bench_destroy(&bench);
	close(fd);
}

TEST(destroy_waits_for_what_is_under_way)
{
	struct ne_dio dios[20] = {{0}};
	struct bench bench;

	bench_create(&bench, 4, NULL);
	fill(bench.buf, 20 * PAGE, 3);
	for (int i = 0; i < 20; i++) {
		dios[i] = (struct ne_dio){NE_IO_WRITE, 1, PAGE, i * PAGE, bench.buf + i * PAGE, 0, NULL, NULL};
		ne_disk_post(bench.disk, &dios[i]);
	}
	ne_disk_destroy(bench.disk);
	bench.disk = NULL;
	for (int i = 0; i < 20; i++)
		CHECK(dios[i].status == 0);
	CHECK(memcmp(stored(&bench, 18 * PAGE), bench.buf + 18 * PAGE, 2 * PAGE) == 0);
	bench_destroy(&bench);
}
