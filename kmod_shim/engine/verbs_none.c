/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_none.c - answers of an engine that is built without rdma-core: RDMA is not available. */
#include <errno.h>

#include "verbs.h"

bool ne_verbs_is_built(void)
{
	return false;
}

int ne_rdma_devices(void)
{
	return -EOPNOTSUPP;
}

int ne_rdma_connect(int sock, uint32_t limit_ms, struct ne_link **ret)
{
	(void)sock, (void)limit_ms, (void)ret;
	return -EOPNOTSUPP;
}

int ne_verbs_export_create(struct ne_verbs_export **ret)
{
	(void)ret;
	return -EOPNOTSUPP;
}
