/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk.c - the backup disk of one thread: an io_uring over a file opened O_DIRECT, with optional encryption.
 *
 * How it works
 *   post() puts an operation on a queue; submit() gives it one of `depth` slots and a place in the ring; poll() takes
 *   it out. A slot has one request in the ring from start to end, so neither ring can overflow. Everything that ends an
 *   operation comes through the ring, a refusal as a NOP and a delay as a TIMEOUT, so the ring's fd is readable exactly
 *   when poll() has something to say.
 *
 *	queue -> slot: [delay?] -> READ, WRITE or NOP -> (a delayed write: TIMEOUT) -> done
 *
 * Encryption is AES-256-XTS; a data unit is one page, and its tweak the page's number on the disk, so that equal pages
 * in different places look different. A write is encrypted into its slot's scratch memory (the payload must stay as it
 * is: it also goes to donors); a read is decrypted where it landed. Scratch is touched only as far as it is used, and
 * the slot freed last is used first, so a quiet disk stays within a few of them.
 *
 * Two writes that overlap are not ordered here: the caller posts the second when the first came back.
 */
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "link.h"

enum {
	DIO_MAX_BYTES = 1 << 20,
	DEPTH_MAX = 1024,
	PREFAULT_BYTES = 128 << 10,
	REAP = 32, /* completions looked at in one go */
};

/* io_uring refuses a fixed buffer larger than this (io_sqe_buffer_register). */
static const uint64_t FIXED_MAX_BYTES = 1ull << 30;

struct slot {
	struct ne_dio *dio;
	void *scratch;	   /* DIO_MAX_BYTES for ciphertext, or NULL without a key */
	int32_t status;	   /* of the request, while a delay runs after it */
	uint32_t expected; /* bytes the request must transfer */
	bool fails;	   /* answers -EIO whatever the request says (NE_FAULT_ERROR, NE_FAULT_SHORT) */
	bool waits;	   /* the request in the ring is the TIMEOUT */
	uint64_t delay_ns;
	struct __kernel_timespec delay;
	struct slot *next; /* of the free ones */
};

struct ne_disk {
	struct io_uring ring;
	bool has_ring;
	int own_fd;
	int fd; /* that, or its index when registered */
	unsigned int fd_flags;
	struct ne_arena fixed; /* empty when registration was refused */
	const struct ne_fault_rules *rules;
	struct ne_dio *first, **last; /* posted and without a slot */
	struct slot *free;
	uint32_t outstanding;
	uint32_t running; /* slots in use */
	_Atomic uint32_t running_max;
	uint32_t depth;
	struct slot *slots;
	uint8_t *scratch;
	EVP_CIPHER *cipher;
	EVP_CIPHER_CTX *encrypt, *decrypt;
};

/* --- encryption */

static int cipher_create(struct ne_disk *disk, const uint8_t *key)
{
	disk->cipher = EVP_CIPHER_fetch(NULL, "AES-256-XTS", NULL);
	disk->encrypt = EVP_CIPHER_CTX_new();
	disk->decrypt = EVP_CIPHER_CTX_new();
	if (!disk->cipher || !disk->encrypt || !disk->decrypt)
		return -ENOMEM;
	/* OpenSSL refuses a key whose two halves are equal, as XTS asks. */
	if (EVP_EncryptInit_ex2(disk->encrypt, disk->cipher, key, NULL, NULL) != 1 ||
	    EVP_DecryptInit_ex2(disk->decrypt, disk->cipher, key, NULL, NULL) != 1)
		return -EINVAL;
	return 0;
}

static void cipher_destroy(struct ne_disk *disk)
{
	EVP_CIPHER_CTX_free(disk->encrypt);
	EVP_CIPHER_CTX_free(disk->decrypt);
	EVP_CIPHER_free(disk->cipher);
}

/* Runs ctx, which keeps its direction and key, over whole pages; a new tweak a page. dst may be src. */
static bool cipher_pages(EVP_CIPHER_CTX *ctx, uint8_t *dst, const uint8_t *src, uint32_t length, uint64_t offset)
{
	for (uint32_t done = 0; done < length; done += NE_PAGE_BYTES) {
		uint64_t tweak[2] = {htole64((offset + done) / NE_PAGE_BYTES), 0};
		int bytes = 0;

		if (EVP_CipherInit_ex2(ctx, NULL, NULL, (const uint8_t *)tweak, -1, NULL) != 1 ||
		    EVP_CipherUpdate(ctx, dst + done, &bytes, src + done, NE_PAGE_BYTES) != 1 || bytes != NE_PAGE_BYTES)
			return false;
	}
	return true;
}

/* --- faults */

static bool is_hit(const struct ne_disk *disk, enum ne_fault kind)
{
	return disk->rules && ne_fault_is_hit(disk->rules, kind);
}

/* --- operations */

static bool is_fixed(const struct ne_disk *disk, const void *buf, uint32_t length)
{
	uintptr_t at = (uintptr_t)buf, base = (uintptr_t)disk->fixed.base;

	return at >= base && at - base <= disk->fixed.bytes && length <= disk->fixed.bytes - (at - base);
}

static void prepare_transfer(struct ne_disk *disk, struct io_uring_sqe *sqe, const struct ne_dio *dio, void *buf,
			     uint32_t length)
{
	bool fixed = is_fixed(disk, buf, length);

	if (dio->op == NE_IO_READ && fixed)
		io_uring_prep_read_fixed(sqe, disk->fd, buf, length, dio->offset, 0);
	else if (dio->op == NE_IO_READ)
		io_uring_prep_read(sqe, disk->fd, buf, length, dio->offset);
	else if (fixed)
		io_uring_prep_write_fixed(sqe, disk->fd, buf, length, dio->offset, 0);
	else
		io_uring_prep_write(sqe, disk->fd, buf, length, dio->offset);
	io_uring_sqe_set_flags(sqe, disk->fd_flags);
}

/* A slot's turn in the ring; there is always room, because a slot has one request at a time. */
static struct io_uring_sqe *sqe_of(struct ne_disk *disk, struct slot *slot)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&disk->ring);

	assert(sqe);
	slot->waits = false;
	return sqe;
}

static void start_nothing(struct ne_disk *disk, struct slot *slot, int status)
{
	struct io_uring_sqe *sqe = sqe_of(disk, slot);

	slot->status = status;
	slot->fails = true;
	io_uring_prep_nop(sqe);
	io_uring_sqe_set_data(sqe, slot);
}

static void start_delay(struct ne_disk *disk, struct slot *slot)
{
	struct io_uring_sqe *sqe = sqe_of(disk, slot);

	slot->delay = (struct __kernel_timespec){
		.tv_sec = slot->delay_ns / 1000000000,
		.tv_nsec = slot->delay_ns % 1000000000,
	};
	slot->delay_ns = 0;
	slot->waits = true;
	io_uring_prep_timeout(sqe, &slot->delay, 0, 0);
	io_uring_sqe_set_data(sqe, slot);
}

/* Spoils a WRITE where a rule says so, and encrypts it. 0, or -errno where nothing is to be written. */
static int prepare_write(struct ne_disk *disk, struct slot *slot, void **buf, uint32_t *length)
{
	if (is_hit(disk, NE_FAULT_DELAY))
		slot->delay_ns = 1000ull * atomic_load_explicit(&disk->rules->delay_us, memory_order_relaxed);
	if (is_hit(disk, NE_FAULT_ERROR))
		return -EIO;
	if (is_hit(disk, NE_FAULT_SHORT)) {
		slot->fails = true;
		slot->status = -EIO;
		*length = *length / 2 / NE_PAGE_BYTES * NE_PAGE_BYTES;
		if (!*length)
			return -EIO;
	}
	if (!disk->encrypt)
		return 0;
	*buf = slot->scratch;
	return cipher_pages(disk->encrypt, *buf, slot->dio->buf, *length, slot->dio->offset) ? 0 : -EIO;
}

static void start(struct ne_disk *disk, struct slot *slot)
{
	struct ne_dio *dio = slot->dio;
	uint32_t length = dio->length;
	void *buf = dio->buf;
	struct io_uring_sqe *sqe;
	int err = 0;

	slot->status = 0;
	slot->fails = false;
	slot->delay_ns = 0;
	if (length == 0 || length > DIO_MAX_BYTES || length % NE_PAGE_BYTES || dio->offset % NE_PAGE_BYTES)
		err = -EINVAL;
	else if (dio->op == NE_IO_WRITE)
		err = prepare_write(disk, slot, &buf, &length);
	if (err) {
		start_nothing(disk, slot, err);
		return;
	}
	slot->expected = length;
	sqe = sqe_of(disk, slot);
	prepare_transfer(disk, sqe, dio, buf, length);
	io_uring_sqe_set_data(sqe, slot);
}

/* What the request's result means; 0 or -errno. */
static int32_t outcome(struct ne_disk *disk, const struct slot *slot, int32_t result)
{
	struct ne_dio *dio = slot->dio;

	if (slot->fails)
		return slot->status;
	if (result < 0)
		return result;
	if ((uint32_t)result != slot->expected)
		return -EIO;
	if (dio->op == NE_IO_READ && disk->decrypt &&
	    !cipher_pages(disk->decrypt, dio->buf, dio->buf, dio->length, dio->offset))
		return -EIO;
	return 0;
}

/* Takes one completion; returns the operation if it is finished, or NULL when its delay begins. */
static struct ne_dio *finish(struct ne_disk *disk, struct slot *slot, int32_t result)
{
	struct ne_dio *dio = slot->dio;

	if (!slot->waits)
		slot->status = outcome(disk, slot, result);
	if (slot->delay_ns) {
		start_delay(disk, slot);
		return NULL;
	}
	dio->status = slot->status;
	slot->dio = NULL;
	slot->next = disk->free;
	disk->free = slot;
	disk->running--;
	disk->outstanding--;
	return dio;
}

void ne_disk_post(struct ne_disk *disk, struct ne_dio *dio)
{
	dio->next = NULL;
	*disk->last = dio;
	disk->last = &dio->next;
	disk->outstanding++;
}

void ne_disk_submit(struct ne_disk *disk)
{
	uint32_t most = atomic_load_explicit(&disk->running_max, memory_order_relaxed);

	while (disk->first && disk->free && disk->running < most) {
		struct slot *slot = disk->free;

		disk->free = slot->next;
		disk->running++;
		slot->dio = disk->first;
		disk->first = slot->dio->next;
		if (!disk->first)
			disk->last = &disk->first;
		start(disk, slot);
	}
	/* What the kernel does not take now (-EAGAIN, -EBUSY, -EINTR) stays in the ring for the next call. */
	if (io_uring_sq_ready(&disk->ring))
		io_uring_submit(&disk->ring);
}

int ne_disk_poll(struct ne_disk *disk, struct ne_dio **done, int max)
{
	struct io_uring_cqe *cqes[REAP];
	int count = 0;

	while (count < max && disk->running) {
		unsigned int want = max - count < REAP ? max - count : REAP;
		unsigned int got = io_uring_peek_batch_cqe(&disk->ring, cqes, want);

		for (unsigned int i = 0; i < got; i++) {
			struct ne_dio *dio = finish(disk, io_uring_cqe_get_data(cqes[i]), cqes[i]->res);

			if (dio)
				done[count++] = dio;
		}
		io_uring_cq_advance(&disk->ring, got);
		if (got < want)
			break;
	}
	ne_disk_submit(disk); /* those that waited for a slot, and delays that have just begun */
	return count;
}

uint32_t ne_disk_outstanding(const struct ne_disk *disk)
{
	return disk->outstanding;
}

/* True when operations wait for the end of others, which poll() has to see. */
bool ne_disk_queued(const struct ne_disk *disk)
{
	return disk->first != NULL;
}

bool ne_disk_unsubmitted(const struct ne_disk *disk)
{
	return io_uring_sq_ready(&disk->ring) > 0;
}

int ne_disk_wait_fd(const struct ne_disk *disk)
{
	return disk->ring.ring_fd;
}

/* --- creation */

/*
 * Completions are worked off when the owner enters the kernel anyway, instead of interrupting it (Linux 5.19, commit
 * e1169f06d5bb); a kernel that does not know the flags gets a plain ring.
 */
static int ring_create(struct ne_disk *disk)
{
	struct io_uring_params params = {.flags = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG};
	int err = io_uring_queue_init_params(disk->depth, &disk->ring, &params);

	if (err == -EINVAL)
		err = io_uring_queue_init(disk->depth, &disk->ring, 0);
	disk->has_ring = !err;
	return err;
}

/* Both registrations only save time: what is refused (RLIMIT_MEMLOCK, kind of memory) is done without. */
static void ring_register(struct ne_disk *disk, int fd, const struct ne_arena *arena)
{
	disk->fd = fd;
	if (io_uring_register_files(&disk->ring, &fd, 1) == 0) {
		disk->fd = 0;
		disk->fd_flags = IOSQE_FIXED_FILE;
	}
	if (arena && arena->bytes && arena->bytes <= FIXED_MAX_BYTES) {
		struct iovec iov = {arena->base, arena->bytes};

		if (io_uring_register_buffers(&disk->ring, &iov, 1) == 0)
			disk->fixed = *arena;
	}
}

static int slots_create(struct ne_disk *disk)
{
	disk->slots = calloc(disk->depth, sizeof(*disk->slots));
	if (!disk->slots)
		return -ENOMEM;
	if (disk->encrypt) {
		disk->scratch = ne_zeros((uint64_t)disk->depth * DIO_MAX_BYTES);
		if (!disk->scratch)
			return -ENOMEM;
	}
	for (uint32_t i = disk->depth; i--;) {
		struct slot *slot = &disk->slots[i];

		slot->scratch = disk->scratch ? disk->scratch + (size_t)i * DIO_MAX_BYTES : NULL;
		slot->next = disk->free;
		disk->free = slot;
	}
	return 0;
}

/*
 * An open description of our own, with a shared lock on it: the kernel drops both with the last operation, also with
 * those that outlive a killed process.
 */
static int open_locked(int fd)
{
	char path[32];
	int own;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	own = open(path, O_RDWR | O_CLOEXEC | (fcntl(fd, F_GETFL) & O_DIRECT));
	if (own >= 0 && flock(own, LOCK_SH | LOCK_NB)) {
		close(own);
		return -EBUSY;
	}
	return own >= 0 ? own : -errno;
}

int ne_disk_settle(int fd, uint32_t limit_ms)
{
	int own = open_locked(fd), err = own < 0 ? own : -ETIMEDOUT;

	for (uint32_t ms = 0; own >= 0 && err && ms <= limit_ms; ms++) {
		err = flock(own, LOCK_EX | LOCK_NB) ? -ETIMEDOUT : 0;
		if (err)
			usleep(1000);
	}
	if (own >= 0)
		close(own);
	return err;
}

int ne_disk_create(int fd, uint32_t depth, const uint8_t *key, const struct ne_arena *arena,
		   const struct ne_fault_rules *rules, struct ne_disk **ret)
{
	struct ne_disk *disk;
	int err = 0;

	if (depth == 0 || depth > DEPTH_MAX)
		return -EINVAL;
	disk = calloc(1, sizeof(*disk));
	if (!disk)
		return -ENOMEM;
	disk->depth = depth;
	disk->running_max = depth;
	disk->rules = rules;
	disk->last = &disk->first;
	disk->own_fd = open_locked(fd);
	if (disk->own_fd < 0)
		err = disk->own_fd;
	if (!err && key)
		err = cipher_create(disk, key);
	if (!err)
		err = slots_create(disk);
	if (!err)
		err = ring_create(disk);
	if (err) {
		ne_disk_destroy(disk);
		return err;
	}
	ring_register(disk, disk->own_fd, arena);
	*ret = disk;
	return 0;
}

/* The slot freed last is used first: of slots that are never all in use, the last ones are never touched. */
int ne_disk_prefault(struct ne_disk *disk, uint32_t slots)
{
	if (slots == 0 || slots > disk->depth)
		return -EINVAL;
	if (!disk->scratch)
		return 0;
	atomic_store_explicit(&disk->running_max, slots, memory_order_relaxed);
	for (uint32_t i = 0; i < slots; i++)
		if (madvise(disk->scratch + (size_t)i * DIO_MAX_BYTES, PREFAULT_BYTES, MADV_POPULATE_WRITE))
			return -errno;
	return 0;
}

void ne_disk_destroy(struct ne_disk *disk)
{
	struct ne_dio *done[REAP];

	if (!disk)
		return;
	while (disk->outstanding) {
		ne_disk_submit(disk);
		/* -EINTR and the like only mean another round. */
		if (ne_disk_poll(disk, done, REAP) == 0)
			io_uring_submit_and_wait(&disk->ring, 1);
	}
	if (disk->has_ring)
		io_uring_queue_exit(&disk->ring);
	if (disk->scratch)
		munmap(disk->scratch, (size_t)disk->depth * DIO_MAX_BYTES);
	cipher_destroy(disk);
	if (disk->own_fd >= 0)
		close(disk->own_fd);
	free(disk->slots);
	free(disk);
}
