/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_wire.c - a donor whose data connection says anything.
 *
 *	clang -fsanitize=fuzzer,address,undefined -I kmod_shim/engine tests/fuzz/fuzz_wire.c kmod_shim/engine/...
 *-lpthread
 *
 * An input is one byte that says whether heads have codes, and then what is sent. Two slabs are lent: one to this
 * connection's session, one to another's, which must stay as it was. After each input a sound READ must be answered.
 */
#include <errno.h>
#include <sanitizer/asan_interface.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine.h"
#include "wire.h"

enum { SLAB = 1 << 21, OWN = 3, OTHERS = 4, SESSION = 7, STRANGER = 8, CODED = 1, PATTERN = 0x5a };

static const uint64_t token = 0x1122334455667788u;
static const uint8_t keys[] = "0123456789abcdef0123456789abcdef";
static struct ne_export *exp_;
static uint8_t *own, *others;

static void must(bool is_true)
{
	if (!is_true)
		abort();
}

/* What lies before and behind it is poisoned: the sanitizer sees a call that is to read or write there. */
static uint8_t *slab(void)
{
	uint8_t *at = mmap(NULL, 3 * SLAB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	must(at != MAP_FAILED);
	__asan_poison_memory_region(at, SLAB);
	__asan_poison_memory_region(at + 2 * SLAB, SLAB);
	return at + SLAB;
}

static void begin(void)
{
	own = slab();
	others = slab();
	memset(others, PATTERN, SLAB);
	must(ne_export_create(&exp_) == 0);
	must(ne_export_lease(exp_, OWN, SESSION, token, own, SLAB) == 0);
	must(ne_export_lease(exp_, OTHERS, STRANGER, token + 1, others, SLAB) == 0);
}

static int connect_as(uint64_t session, const uint8_t *coded)
{
	int fds[2];

	must(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	must(ne_export_conn(exp_, session, fds[0], coded) == 0);
	return fds[1];
}

/* What it sends is answered, or ends the connection; both are read to their end. */
static void drain(int fd)
{
	static uint8_t answers[1 << 16];

	shutdown(fd, SHUT_WR);
	for (;;) {
		ssize_t got = recv(fd, answers, sizeof(answers), 0);

		if (got == 0 || (got < 0 && errno != EINTR))
			break;
	}
	close(fd);
}

/* libFuzzer's alarm interrupts every wait, and its -timeout ends one that is for ever. */
static void receive(int fd, void *buf, size_t bytes)
{
	for (size_t done = 0; done < bytes;) {
		ssize_t got = recv(fd, (uint8_t *)buf + done, bytes - done, 0);

		must(got > 0 || (got < 0 && errno == EINTR));
		done += got > 0 ? (size_t)got : 0;
	}
}

static void others_page_is_as_it_was(void)
{
	struct ne_wire_request ask = {.magic = NE_WIRE_REQUEST_MAGIC,
				      .op = NE_WIRE_READ,
				      .lease = OTHERS,
				      .length = 4096,
				      .token = token + 1,
				      .cookie = 9};
	struct ne_wire_reply reply;
	uint8_t page[4096];
	int fd = connect_as(STRANGER, NULL);

	must(send(fd, &ask, sizeof(ask), MSG_NOSIGNAL) == sizeof(ask));
	receive(fd, &reply, sizeof(reply));
	must(reply.magic == NE_WIRE_REPLY_MAGIC && reply.status == 0 && reply.cookie == 9);
	receive(fd, page, sizeof(page));
	for (size_t at = 0; at < sizeof(page); at++)
		must(page[at] == PATTERN);
	drain(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fd;

	if (!size)
		return 0;
	if (!exp_)
		begin();
	fd = connect_as(SESSION, data[0] & CODED ? keys : NULL);
	(void)!send(fd, data + 1, size - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	drain(fd);
	others_page_is_as_it_was();
	return 0;
}
