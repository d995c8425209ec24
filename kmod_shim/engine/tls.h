/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tls.h - TLS of a connection in transmission, for nbd.c. What sets it up is in engine.h.
 *
 * tls.c has it by GnuTLS; tls_none.c stands in for it where the engine is built without.
 */
#ifndef FARSIDE_TLS_H
#define FARSIDE_TLS_H

#include <stdbool.h>
#include <sys/socket.h>

#include "engine.h"

/* True in a build with GnuTLS. */
bool ne_tls_is_built(void);

/*
 * As recvmmsg() and sendmmsg() of one message that never wait: 1, and the clear bytes that were moved are in
 * m->msg_len; or -1 and errno. Less than the message has room for means that the socket has no more, or takes no more;
 * and after ne_tls_is_over() that there is nothing behind it.
 */
int ne_tls_recvmmsg(struct ne_tls_session *s, struct mmsghdr *m);
/* What was not sent comes again, at the front of the next message: some of it is encrypted already. */
int ne_tls_sendmmsg(struct ne_tls_session *s, struct mmsghdr *m);
/* The client has ended its stream, or what came was not TLS: the next receive says so, whatever the socket has. */
bool ne_tls_is_over(const struct ne_tls_session *s);

#endif
