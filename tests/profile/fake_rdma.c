/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_rdma.c - libibverbs, a driver and a program, as far apart from each other as the real ones are.
 *
 * LIBRARY    what fills a context's table; has the name of the real one
 * DRIVER     calls that across libraries, with functions that only count
 * otherwise  a program that loads both with dlopen, as NCCL does, and sends through the inline calls of verbs.h
 */
#include <infiniband/verbs.h>
#include <stddef.h>

struct verbs_context_ops {
	int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
	struct ibv_qp *(*create_qp_ex)(struct ibv_context *, struct ibv_qp_init_attr_ex *);
};

void verbs_set_ops(struct verbs_context *context, const struct verbs_context_ops *ops);
struct ibv_context *open_fake(void);

#if defined(LIBRARY)

void verbs_set_ops(struct verbs_context *context, const struct verbs_context_ops *ops)
{
	if (ops->post_send)
		context->context.ops.post_send = ops->post_send;
	if (ops->create_qp_ex)
		context->create_qp_ex = ops->create_qp_ex;
}

#elif defined(DRIVER)

static struct verbs_context fake = {.sz = sizeof(fake), .context = {.abi_compat = __VERBS_ABI_IS_EXTENDED}};
static struct ibv_qp_ex made = {.qp_base = {.qp_num = 7}};
int fake_posts, fake_kinds, fake_bytes;

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
	(void)qp;
	for (; first; first = first->next) {
		if (first->wr_id == 13) {
			*bad = first;
			return 12;
		}
		fake_posts++;
	}
	return 0;
}

static void kind(struct ibv_qp_ex *qp)
{
	(void)qp;
	fake_kinds++;
}

static void kind_at(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t at)
{
	(void)qp;
	(void)rkey;
	(void)at;
	fake_kinds++;
}

static void add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t at, uint64_t more)
{
	(void)more;
	kind_at(qp, rkey, at);
}

static void sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t at, uint32_t length)
{
	(void)qp;
	(void)lkey;
	(void)at;
	fake_bytes += (int)length;
}

static void sge_list(struct ibv_qp_ex *qp, size_t count, const struct ibv_sge *parts)
{
	for (size_t part = 0; part < count; part++)
		sge(qp, 0, 0, parts[part].length);
}

static void inline_data(struct ibv_qp_ex *qp, void *from, size_t length)
{
	(void)from;
	sge(qp, 0, 0, (uint32_t)length);
}

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *wanted)
{
	(void)wanted;
	made.qp_base.context = context;
	made.wr_send = kind;
	made.wr_rdma_write = kind_at;
	made.wr_rdma_read = kind_at;
	made.wr_atomic_fetch_add = add;
	made.wr_set_sge = sge;
	made.wr_set_sge_list = sge_list;
	made.wr_set_inline_data = inline_data;
	return &made.qp_base;
}

struct ibv_context *open_fake(void)
{
	static const struct verbs_context_ops nothing, ours = {.post_send = post_send, .create_qp_ex = create_qp_ex};

	verbs_set_ops(&fake, &nothing); /* drivers do it in several steps */
	verbs_set_ops(&fake, &ours);
	verbs_set_ops(&fake, &nothing);
	return &fake.context;
}

#else

#include <dlfcn.h>
#include <stdio.h>

static void post(struct ibv_context *context)
{
	struct ibv_qp qp = {.context = context, .qp_num = 5};
	struct ibv_sge parts[] = {{.length = 3000}, {.length = 96}}, one = {.length = 9000};
	struct ibv_send_wr refused = {.wr_id = 13, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_SEND};
	struct ibv_send_wr read = {.next = &refused, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_RDMA_READ};
	struct ibv_send_wr atomic = {.next = &read,
				     .sg_list = &one,
				     .num_sge = 1,
				     .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD};
	struct ibv_send_wr write = {.next = &atomic, .sg_list = parts, .num_sge = 2, .opcode = IBV_WR_RDMA_WRITE};
	struct ibv_send_wr *bad = NULL;

	int status = ibv_post_send(&qp, &write, &bad);

	printf("%d %d\n", status, bad == &refused);
}

static void post_extended(struct ibv_context *context)
{
	struct ibv_qp_init_attr_ex wanted = {.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS};
	struct ibv_sge parts[] = {{.length = 1000}, {.length = 1000}};
	char small[] = "small";
	/* ibv_create_qp_ex, which looks at more of a context than this one has */
	struct ibv_qp *qp = verbs_get_ctx(context)->create_qp_ex(context, &wanted);
	struct ibv_qp_ex *extended = (struct ibv_qp_ex *)qp;

	ibv_wr_send(extended);
	ibv_wr_set_sge(extended, 1, 2, 4000);
	ibv_wr_rdma_write(extended, 1, 2);
	ibv_wr_set_sge_list(extended, 2, parts);
	ibv_wr_set_inline_data(extended, small, sizeof(small));
	ibv_wr_rdma_read(extended, 1, 2);
	ibv_wr_set_sge(extended, 1, 2, 5000);
	ibv_wr_atomic_fetch_add(extended, 1, 2, 3);
	ibv_wr_set_sge(extended, 1, 2, 8);
}

int main(int count, char **arguments)
{
	void *driver;
	struct ibv_context *(*open)(void);

	if (count != 3 || !dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL))
		return 2;
	driver = dlopen(arguments[2], RTLD_NOW | RTLD_LOCAL);
	if (!driver)
		return 3;
	open = (struct ibv_context * (*)(void)) dlsym(driver, "open_fake");
	post(open());
	post_extended(open());
	printf("%d %d %d\n", *(int *)dlsym(driver, "fake_posts"), *(int *)dlsym(driver, "fake_kinds"),
	       *(int *)dlsym(driver, "fake_bytes"));
	return 0;
}

#endif
