/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nbd_wire.h - the few NBD numbers that the load generator and the floor server share.
 * Names and values are those of the NBD protocol document (newstyle handshake, simple replies).
 */
#ifndef FARSIDE_BENCH_NBD_H
#define FARSIDE_BENCH_NBD_H

#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define NBD_MAGIC	       0x4e42444d41474943ULL
#define NBD_OPTION_MAGIC       0x49484156454f5054ULL
#define NBD_OPTION_REPLY_MAGIC 0x0003e889045565a9ULL
#define NBD_REQUEST_MAGIC      0x25609513U
#define NBD_REPLY_MAGIC	       0x67446698U

enum { NBD_FLAG_FIXED_NEWSTYLE = 1, NBD_FLAG_NO_ZEROES = 2 };
enum { NBD_OPT_EXPORT_NAME = 1, NBD_OPT_ABORT = 2, NBD_OPT_INFO = 6, NBD_OPT_GO = 7 };
#define NBD_REP_ACK	  1U
#define NBD_REP_INFO	  3U
#define NBD_REP_ERR_UNSUP 0x80000001U
enum { NBD_INFO_EXPORT = 0 };
enum { NBD_CMD_READ = 0, NBD_CMD_WRITE = 1, NBD_CMD_DISC = 2, NBD_CMD_FLUSH = 3 };
enum { NBD_FLAG_HAS_FLAGS = 1, NBD_FLAG_SEND_FLUSH = 4, NBD_FLAG_CAN_MULTI_CONN = 256 };

struct nbd_option {
	uint64_t magic;
	uint32_t option;
	uint32_t length;
} __attribute__((packed));

struct nbd_option_reply {
	uint64_t magic;
	uint32_t option;
	uint32_t type;
	uint32_t length;
} __attribute__((packed));

struct nbd_info_export {
	uint16_t type;
	uint64_t size;
	uint16_t flags;
} __attribute__((packed));

struct nbd_request {
	uint32_t magic;
	uint16_t flags;
	uint16_t type;
	uint64_t handle;
	uint64_t offset;
	uint32_t length;
} __attribute__((packed));

struct nbd_reply {
	uint32_t magic;
	uint32_t error;
	uint64_t handle;
} __attribute__((packed));

/* Receives exactly bytes: 0, or -errno (-EPIPE at the end of the stream). */
static inline int recv_all(int sock, void *buf, size_t bytes)
{
	char *at = buf;

	while (bytes) {
		ssize_t got = recv(sock, at, bytes, 0);

		if (got == 0)
			return -EPIPE;
		if (got < 0 && errno != EINTR)
			return -errno;
		if (got > 0) {
			at += got;
			bytes -= (size_t)got;
		}
	}
	return 0;
}

/* Sends everything in iov (which it changes): 0 or -errno. */
static inline int send_all(int sock, struct iovec *iov, size_t count)
{
	while (count) {
		struct msghdr msg = {.msg_iov = iov, .msg_iovlen = count < 1024 ? count : 1024};
		ssize_t sent = sendmsg(sock, &msg, MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			return -errno;
		while (count && (size_t)sent >= iov->iov_len) {
			sent -= (ssize_t)iov->iov_len;
			iov++;
			count--;
		}
		if (count && sent) {
			iov->iov_base = (char *)iov->iov_base + sent;
			iov->iov_len -= (size_t)sent;
		}
	}
	return 0;
}

#endif
