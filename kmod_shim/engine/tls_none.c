/* SPDX-License-Identifier: Apache-2.0 */
/* tls_none.c - answers of an engine that is built without GnuTLS: TLS is not available. */
#include <errno.h>
#include <stdio.h>

#include "tls.h"

bool ne_tls_is_built(void)
{
	return false;
}

int ne_tls_create(const struct ne_tls_keys *keys, char *reason, struct ne_tls **ret)
{
	(void)keys, (void)ret;
	snprintf(reason, NE_TLS_REASON_BYTES,
		 "this engine was built without GnuTLS; install libgnutls28-dev, and build the engine again");
	return -EOPNOTSUPP;
}

void ne_tls_destroy(struct ne_tls *tls)
{
	(void)tls;
}

/* Nothing below is reached: there is no session without an ne_tls. */

int ne_tls_begin(struct ne_tls *tls, int sock, struct ne_tls_session **ret)
{
	(void)tls, (void)sock, (void)ret;
	return -EOPNOTSUPP;
}

int ne_tls_handshake(struct ne_tls_session *s, char *reason)
{
	(void)s, (void)reason;
	return -EOPNOTSUPP;
}

int ne_tls_read(struct ne_tls_session *s, void *to, uint32_t bytes)
{
	(void)s, (void)to, (void)bytes;
	return -EOPNOTSUPP;
}

int ne_tls_write(struct ne_tls_session *s, const void *from, uint32_t bytes)
{
	(void)s, (void)from, (void)bytes;
	return -EOPNOTSUPP;
}

int ne_tls_describe(struct ne_tls_session *s, char *text)
{
	(void)s, (void)text;
	return -EOPNOTSUPP;
}

void ne_tls_end(struct ne_tls_session *s)
{
	(void)s;
}

int ne_tls_recvmmsg(struct ne_tls_session *s, struct mmsghdr *m)
{
	(void)s, (void)m;
	errno = EOPNOTSUPP;
	return -1;
}

int ne_tls_sendmmsg(struct ne_tls_session *s, struct mmsghdr *m)
{
	return ne_tls_recvmmsg(s, m);
}

bool ne_tls_is_over(const struct ne_tls_session *s)
{
	(void)s;
	return true;
}
