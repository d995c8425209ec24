/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_none.c - stubs for an engine that is built without rdma-core: RDMA is not available. */
#include <errno.h>

#include "verbs.h"

bool ne_verbs_is_built(void)
{
	return false;
}

int ne_verbs_devices(void)
{
	return -EOPNOTSUPP;
}

int ne_verbs_create(int sock, uint32_t limit_ms, struct ne_link **ret)
{
	(void)sock, (void)limit_ms, (void)ret;
	return -EOPNOTSUPP;
}

int ne_verbs_export_create(struct ne_verbs_export **ret)
{
	(void)ret;
	return -EOPNOTSUPP;
}

void ne_verbs_export_destroy(struct ne_verbs_export *exp)
{
	(void)exp;
}

int ne_verbs_export_offer(struct ne_verbs_export *exp, void *addr, uint64_t bytes)
{
	(void)exp, (void)addr, (void)bytes;
	return 0;
}

void ne_verbs_export_withdraw(struct ne_verbs_export *exp, void *addr)
{
	(void)exp, (void)addr;
}

int ne_verbs_export_lease(struct ne_verbs_export *exp, uint32_t lease, uint64_t session, uint64_t token, void *addr,
			  uint64_t bytes)
{
	(void)exp, (void)lease, (void)session, (void)token, (void)addr, (void)bytes;
	return 0;
}

void ne_verbs_export_revoke(struct ne_verbs_export *exp, uint32_t lease)
{
	(void)exp, (void)lease;
}

int ne_verbs_export_conn(struct ne_verbs_export *exp, uint64_t session, int sock, const char *address)
{
	(void)exp, (void)session, (void)sock, (void)address;
	return -EOPNOTSUPP;
}

void ne_verbs_export_fence(struct ne_verbs_export *exp, bool all, uint64_t session)
{
	(void)exp, (void)all, (void)session;
}

void ne_verbs_export_stats(struct ne_verbs_export *exp, struct ne_export_stats *add)
{
	(void)exp, (void)add;
}
