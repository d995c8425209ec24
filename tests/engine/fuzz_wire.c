/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_wire.c - libFuzzer target for both readers of wire.h.
 *
 * The first byte of the input chooses: the donor reading requests as they stand, the donor reading requests built from
 * records (so that the fuzzer need not guess 64-bit tokens), or a link reading answers. The donor's source is included,
 * with the socket calls replaced: input comes in pieces, and answers are taken in pieces, whose sizes the input
 * decides.
 *
 * Beside what the sanitizers see: no byte may reach a lease of another session, nor one with another token.
 */
#include <poll.h>
#include <sys/socket.h>

static ssize_t fuzz_recvmsg(int sock, struct msghdr *msg, int flags);
static ssize_t fuzz_sendmsg(int sock, const struct msghdr *msg, int flags);
static ssize_t fuzz_send(int sock, const void *data, size_t bytes, int flags);
static int fuzz_poll(struct pollfd *pfd, nfds_t count, int timeout_ms);

#include "link.h"

#define recvmsg fuzz_recvmsg
#define sendmsg fuzz_sendmsg
#define send	fuzz_send
#define poll	fuzz_poll
#include "../../kmod_shim/engine/export.c"
#undef recvmsg
#undef sendmsg
#undef send
#undef poll

enum {
	SESSION = 1,
	TOKEN = 7,
	SLAB_BYTES = 1 << 16,
	LEASE_OURS = 0,
	LEASE_OTHER_SESSION = 1,
	LEASE_OTHER_TOKEN = 2,
	LINK_IOS = 20,
};

/* --- sockets that follow the input */

static const uint8_t *input;
static size_t input_left;
static uint32_t chance; /* a generator seeded by the input: where the stream is cut */

static size_t some(size_t most)
{
	chance = chance * 1664525u + 1013904223u;
	switch (chance >> 30) {
	case 0:
		return most < 7 ? most : chance >> 8 & 7;
	case 1:
		return most ? (chance >> 8) % most : 0;
	default:
		return most;
	}
}

static ssize_t fuzz_recvmsg(int sock, struct msghdr *msg, int flags)
{
	size_t left = some(input_left), done = 0;

	(void)sock;
	(void)flags;
	if (input_left && !left) {
		errno = EAGAIN;
		return -1;
	}
	for (size_t i = 0; i < msg->msg_iovlen && left; i++) {
		size_t part = left < msg->msg_iov[i].iov_len ? left : msg->msg_iov[i].iov_len;

		memcpy(msg->msg_iov[i].iov_base, input, part);
		input += part;
		input_left -= part;
		left -= part;
		done += part;
	}
	return done;
}

/* Reads what is to be sent, as the kernel would, so that the sanitizers see it. */
static ssize_t take(const struct iovec *iov, size_t count)
{
	volatile uint8_t sink = 0;
	size_t total = 0, left, taken;

	for (size_t i = 0; i < count; i++)
		total += iov[i].iov_len;
	taken = left = some(total);
	if (!taken) {
		errno = EAGAIN;
		return -1;
	}
	for (size_t i = 0; i < count && left; i++) {
		size_t part = left < iov[i].iov_len ? left : iov[i].iov_len;

		for (size_t k = 0; k < part; k += k + 1 < part ? part - k - 1 : 1)
			sink = sink ^ ((const uint8_t *)iov[i].iov_base)[k];
		left -= part;
	}
	return taken;
}

static ssize_t fuzz_sendmsg(int sock, const struct msghdr *msg, int flags)
{
	(void)sock;
	(void)flags;
	return take(msg->msg_iov, msg->msg_iovlen);
}

static ssize_t fuzz_send(int sock, const void *data, size_t bytes, int flags)
{
	struct iovec iov = {(void *)data, bytes};

	(void)sock;
	(void)flags;
	return take(&iov, 1);
}

static int fuzz_poll(struct pollfd *pfd, nfds_t count, int timeout_ms)
{
	(void)pfd;
	(void)timeout_ms;
	return count;
}

/* --- the donor */

static struct ne_export *exporter;
static uint8_t *slab[3];
static struct conn *conn;

static void donor_setup(void)
{
	if (exporter)
		return;
	if (ne_export_create(&exporter))
		abort();
	for (int i = 0; i < 3; i++)
		slab[i] = calloc(1, SLAB_BYTES);
	ne_export_lease(exporter, LEASE_OURS, SESSION, TOKEN, slab[LEASE_OURS], SLAB_BYTES);
	ne_export_lease(exporter, LEASE_OTHER_SESSION, SESSION + 1, TOKEN, slab[LEASE_OTHER_SESSION], SLAB_BYTES);
	ne_export_lease(exporter, LEASE_OTHER_TOKEN, SESSION, TOKEN << 8, slab[LEASE_OTHER_TOKEN], SLAB_BYTES);
	conn = calloc(1, sizeof(*conn) + 64);
	conn = (struct conn *)(((uintptr_t)conn + 63) & ~(uintptr_t)63);
}

static void fuzz_donor(const uint8_t *data, size_t bytes)
{
	static const uint8_t zeros[SLAB_BYTES];

	donor_setup();
	memset(conn, 0, offsetof(struct conn, in));
	conn->exp = exporter;
	conn->peer.session = SESSION;
	conn->peer.sock = -1;
	input = data;
	input_left = bytes;
	serve(conn);
	if (conn->mark & 1)
		abort();
	if (memcmp(slab[LEASE_OTHER_SESSION], zeros, SLAB_BYTES))
		abort();
	if (memcmp(slab[LEASE_OTHER_TOKEN], zeros, SLAB_BYTES))
		abort();
}

/* Six bytes a record: the request's fields, nearly always sound; a WRITE gets its payload. */
static void fuzz_records(const uint8_t *data, size_t bytes)
{
	static uint8_t stream[4 << 20];
	size_t used = 0;

	for (; bytes >= 6; data += 6, bytes -= 6) {
		struct ne_wire_request request = {
			.magic = NE_WIRE_REQUEST_MAGIC,
			.op = 1 + (data[0] & 1),
			.flags = data[0] == 0xff,
			.lease = data[1] & 3,
			.length = 1 + (data[2] | (uint32_t)data[3] << 8) * (data[0] & 2 ? 1 : 31),
			.offset = data[4] * 300ull,
			.token = TOKEN + (data[5] == 0xff),
			.cookie = used,
		};
		size_t payload = request.op == NE_WIRE_WRITE ? request.length : 0;

		if (sizeof(request) + payload > sizeof(stream) - used)
			break;
		memcpy(stream + used, &request, sizeof(request));
		memset(stream + used + sizeof(request), data[5] | 1, payload);
		used += sizeof(request) + payload;
	}
	fuzz_donor(stream, used);
}

/* --- a link */

static void fuzz_link(const uint8_t *data, size_t bytes)
{
	static uint8_t buf[LINK_IOS][512];
	struct ne_io ios[LINK_IOS], *done[LINK_IOS];
	struct ne_link *link;
	int back = 0, pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || ne_tcp_create(pair[0], NULL, &link))
		abort();
	for (int i = 0; i < LINK_IOS; i++) {
		ios[i] = (struct ne_io){.op = 1 + (i & 1), .length = i * 16 + 1, .buf = buf[i], .status = 1};
		if (link->ops->post(link, &ios[i]))
			abort();
	}
	link->ops->submit(link);
	while (bytes && back < LINK_IOS) {
		size_t part = some(bytes);

		if (part && send(pair[1], data, part, MSG_NOSIGNAL) < 0)
			break;
		data += part;
		bytes -= part;
		back += link->ops->poll(link, done, LINK_IOS - back);
	}
	link->ops->kill(link, ETIMEDOUT);
	back += link->ops->poll(link, done, LINK_IOS);
	if (back != LINK_IOS || link->ops->outstanding(link))
		abort();
	for (int i = 0; i < LINK_IOS; i++)
		if (ios[i].status > 0)
			abort();
	link->ops->destroy(link);
	close(pair[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	if (bytes < 2)
		return 0;
	chance = data[1];
	switch (data[0] % 3) {
	case 0:
		fuzz_donor(data + 2, bytes - 2);
		break;
	case 1:
		fuzz_records(data + 2, bytes - 2);
		break;
	default:
		fuzz_link(data + 2, bytes - 2);
	}
	return 0;
}
