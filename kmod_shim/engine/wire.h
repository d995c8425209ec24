/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - one-sided READ and WRITE over a TCP data connection, borrower to donor.
 *
 * The connection is authenticated before it comes here (daemon/control/protocol.py); it belongs to one session, and each
 * request names a lease of that session and its token. Requests are pipelined and answered in order. An answer's length
 * depends on its request alone (a refused READ is followed by `length` zero bytes), so that a borrower can scatter
 * answers straight into their places with one readv().
 *
 * Where both ends agreed on it (Feature.CODES), each head, a request's and a reply's, is followed by a code of 8 bytes:
 * SipHash-2-4 of the head under a key of the handshake for this direction. Cookies then count the requests from 0. So a
 * head that was changed, dropped, repeated or put in another place ends the connection. Payload has no code: pages are
 * sealed (seal.h).
 */
#ifndef FARSIDE_WIRE_H
#define FARSIDE_WIRE_H

#include <stdint.h>

#define NE_WIRE_REQUEST_MAGIC 0x31515246u	/* "FRQ1", the digit is the version */
#define NE_WIRE_REPLY_MAGIC 0x31505246u		/* "FRP1" */
#define NE_WIRE_LENGTH_MAX 2097152u		/* one extent */

enum ne_wire_op { NE_WIRE_READ = 1, NE_WIRE_WRITE = 2 };

struct ne_wire_request {		/* 40 bytes; a WRITE is followed by `length` bytes */
	uint32_t magic;
	uint16_t op;
	uint16_t flags;			/* must be 0 */
	uint32_t lease;
	uint32_t length;		/* 1..NE_WIRE_LENGTH_MAX */
	uint64_t offset;		/* bytes from the slab's start */
	uint64_t token;
	uint64_t cookie;		/* comes back */
};

struct ne_wire_reply {			/* 16 bytes; a READ's is followed by `length` bytes */
	uint32_t magic;
	uint32_t status;		/* 0, or an errno: EACCES token or session, EINVAL bounds, ENOENT lease revoked */
	uint64_t cookie;
};

/* Keys of a connection with codes, 16 bytes each: of the borrower's heads, then of the donor's. */
#define NE_WIRE_KEYS_BYTES 32

_Static_assert(sizeof(struct ne_wire_request) == 40, "wire size");
_Static_assert(sizeof(struct ne_wire_reply) == 16, "wire size");

#endif
