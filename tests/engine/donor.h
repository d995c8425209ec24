/* SPDX-License-Identifier: Apache-2.0 */
/* donor.h - a donor for tests: one slab, one lease, and connections to it over any kind of stream socket. */
#ifndef FARSIDE_DONOR_H
#define FARSIDE_DONOR_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "check.h"
#include "wire.h"

enum {
	SESSION = 77,
	LEASE = 5,
	SLAB_BYTES = 8 << 20,
};

static const uint64_t TOKEN = 0x1122334455667788;

struct donor {
	struct ne_export *exp;
	uint8_t *slab;
};

static inline void donor_create(struct donor *donor)
{
	donor->slab = mmap(NULL, SLAB_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(donor->slab != MAP_FAILED);
	CHECK(ne_export_create(&donor->exp) == 0);
	CHECK(ne_export_lease(donor->exp, LEASE, SESSION, TOKEN, donor->slab, SLAB_BYTES) == 0);
}

static inline void donor_destroy(struct donor *donor)
{
	ne_export_destroy(donor->exp);
	munmap(donor->slab, SLAB_BYTES);
}

static inline void set_buffers(int sock, int bytes)
{
	if (bytes) {
		CHECK(setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)) == 0);
		CHECK(setsockopt(sock, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)) == 0);
	}
}

static inline void unix_pair(int pair[2], int buffer_bytes)
{
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	set_buffers(pair[0], buffer_bytes);
	set_buffers(pair[1], buffer_bytes);
}

static inline void tcp_pair(int pair[2], int buffer_bytes)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(listener >= 0);
	set_buffers(listener, buffer_bytes);
	CHECK(bind(listener, (struct sockaddr *)&at, sizeof(at)) == 0);
	CHECK(listen(listener, 1) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&at, &bytes) == 0);
	pair[0] = socket(AF_INET, SOCK_STREAM, 0);
	set_buffers(pair[0], buffer_bytes);
	CHECK(connect(pair[0], (struct sockaddr *)&at, sizeof(at)) == 0);
	pair[1] = accept(listener, NULL, NULL);
	CHECK(pair[1] >= 0);
	close(listener);
}

static const uint8_t KEYS[NE_WIRE_KEYS_BYTES] = "borrower's key.the donor's key..";

/*
 * A link to the donor; over TCP, its heads with codes, or over a unix socket, without. Buffers are of that size (0: the
 * kernel's choice).
 */
static inline struct ne_link *donor_link(struct donor *donor, bool tcp, int buffer_bytes)
{
	const uint8_t *keys = tcp ? KEYS : NULL;
	struct ne_link *link;
	int pair[2];

	(tcp ? tcp_pair : unix_pair)(pair, buffer_bytes);
	CHECK(ne_export_conn(donor->exp, SESSION, pair[1], keys) == 0);
	CHECK(ne_tcp_create(pair[0], keys, &link) == 0);
	return link;
}

/* An operation on the donor's lease. */
static inline struct ne_io make_io(const struct donor *donor, int op, uint64_t offset, void *buf, uint32_t length)
{
	return (struct ne_io){
		.op = op,
		.length = length,
		.lease = LEASE,
		.token = TOKEN,
		.offset = offset,
		.buf = buf,
		.base = donor->slab,
	};
}

#endif
