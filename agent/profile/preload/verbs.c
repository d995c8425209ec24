/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs.c - what a process sends over RDMA.
 *
 * How it works
 *   ibv_post_send is inline: it calls through a table in the device's context, so there is no function to stand in for.
 *   But each driver fills that table by verbs_set_ops, a call across libraries however and whenever the process came by
 *   libibverbs (NCCL loads it with dlopen and asks for each function by name). That call is ours: once the real one has
 *   filled the table, our function stands in it and calls the driver's. Queue pairs with the ibv_wr_ calls are made by
 *   the context's create_qp_ex, in the same table; their own tables get ours where a size is told.
 *
 * Not seen: programs that write a device's queues themselves (mlx5dv work requests, UCX's accelerated transports), and
 * atomics, which carry eight bytes.
 */
#include "ring.h"

#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stddef.h>

#define DEVICES	    64
#define QUEUE_PAIRS 4096 /* a power of two */
#define PROBES	    64

struct verbs_context_ops; /* libibverbs' own; it is only handed on */

/* --- contexts: the driver's functions by the address of the context, which another may have later */

struct device {
	_Atomic(struct ibv_context *) context;
	int (*_Atomic post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
	struct ibv_qp *(*_Atomic create_qp_ex)(struct ibv_context *, struct ibv_qp_init_attr_ex *);
};

static struct device devices[DEVICES];

static struct device *device_of(struct ibv_context *context)
{
	for (struct device *one = devices; one < devices + DEVICES; one++)
		if (atomic_load_explicit(&one->context, memory_order_acquire) == context)
			return one;
	return NULL;
}

static struct device *place_for(struct ibv_context *context)
{
	struct device *known = device_of(context);

	for (struct device *one = devices; !known && one < devices + DEVICES; one++) {
		struct ibv_context *nobody = NULL;

		if (atomic_compare_exchange_strong(&one->context, &nobody, context))
			known = one;
	}
	return known;
}

/* --- ibv_post_send */

static void note_request(const struct ibv_qp *qp, const struct ibv_send_wr *request)
{
	uint16_t flow = (uint16_t)(FLOW_VERBS | (qp->qp_num & (FLOW_VERBS - 1)));

	switch (request->opcode) {
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		ring_note(flow, TOTAL_BYTES(request->sg_list, request->num_sge, length), 0);
		break;
	case IBV_WR_RDMA_READ:
		ring_note(flow, TOTAL_BYTES(request->sg_list, request->num_sge, length), EVENT_READ);
		break;
	default:
		break;
	}
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *first, struct ibv_send_wr **bad)
{
	struct device *device = device_of(qp->context);
	int status = device->post_send(qp, first, bad);
	struct ibv_send_wr *end = status && bad ? *bad : NULL;

	for (struct ibv_send_wr *one = first; one && one != end; one = one->next)
		note_request(qp, one);
	return status;
}

/* --- ibv_wr_...: a call says what is sent, a later one how much */

enum direction {
	SENDS,
	READS,
	NEITHER,
};

struct queue_pair {
	_Atomic(struct ibv_qp_ex *) qp;
	_Atomic int direction;
	struct ibv_qp_ex driver; /* its functions; the rest of it is not used */
};

static struct queue_pair queue_pairs[QUEUE_PAIRS];

static struct queue_pair *find_qp(struct ibv_qp_ex *qp, bool is_new)
{
	size_t at = ((uintptr_t)qp >> 4) * 0x9e3779b97f4a7c15ull >> 52;

	for (int probe = 0; probe < PROBES; probe++, at = (at + 1) & (QUEUE_PAIRS - 1)) {
		struct ibv_qp_ex *there = atomic_load_explicit(&queue_pairs[at].qp, memory_order_acquire);

		if (there == qp)
			return &queue_pairs[at];
		if (!there && is_new && atomic_compare_exchange_strong(&queue_pairs[at].qp, &there, qp))
			return &queue_pairs[at];
	}
	return NULL;
}

static void note_qp(struct ibv_qp_ex *qp, struct queue_pair *known, uint64_t bytes)
{
	int direction = atomic_load_explicit(&known->direction, memory_order_relaxed);

	if (direction != NEITHER)
		ring_note((uint16_t)(FLOW_VERBS | (qp->qp_base.qp_num & (FLOW_VERBS - 1))), bytes,
			  direction == READS ? EVENT_READ : 0);
}

/* A function of a work request's kind: it sets the direction, and calls the driver's. */
#define KIND(name, direction_of_it, parameters, ...)                                             \
	static void name parameters                                                              \
	{                                                                                        \
		struct queue_pair *known = find_qp(qp, false);                                   \
                                                                                                 \
		atomic_store_explicit(&known->direction, direction_of_it, memory_order_relaxed); \
		known->driver.name(qp, ##__VA_ARGS__);                                           \
	}

/* A function that tells a size. */
#define SIZE(name, bytes, parameters, ...)                     \
	static void name parameters                            \
	{                                                      \
		struct queue_pair *known = find_qp(qp, false); \
                                                               \
		note_qp(qp, known, bytes);                     \
		known->driver.name(qp, __VA_ARGS__);           \
	}

/* The calls that are ours. A table: clang-format would break its rows. */
/* clang-format off */
#define CALLS(KIND, SIZE)                                                                                    \
	KIND(wr_send, SENDS, (struct ibv_qp_ex *qp))                                                         \
	KIND(wr_send_imm, SENDS, (struct ibv_qp_ex *qp, __be32 imm), imm)                                    \
	KIND(wr_send_inv, SENDS, (struct ibv_qp_ex *qp, uint32_t rkey), rkey)                                \
	KIND(wr_rdma_write, SENDS, (struct ibv_qp_ex *qp, uint32_t rkey, uint64_t to), rkey, to)             \
	KIND(wr_rdma_write_imm, SENDS, (struct ibv_qp_ex *qp, uint32_t rkey, uint64_t to, __be32 imm),       \
	     rkey, to, imm)                                                                                  \
	KIND(wr_rdma_read, READS, (struct ibv_qp_ex *qp, uint32_t rkey, uint64_t from), rkey, from)          \
	KIND(wr_atomic_cmp_swp, NEITHER,                                                                     \
	     (struct ibv_qp_ex *qp, uint32_t rkey, uint64_t at, uint64_t compare, uint64_t swap),            \
	     rkey, at, compare, swap)                                                                        \
	KIND(wr_atomic_fetch_add, NEITHER, (struct ibv_qp_ex *qp, uint32_t rkey, uint64_t at, uint64_t add), \
	     rkey, at, add)                                                                                  \
	SIZE(wr_set_sge, length, (struct ibv_qp_ex *qp, uint32_t lkey, uint64_t at, uint32_t length),        \
	     lkey, at, length)                                                                               \
	SIZE(wr_set_sge_list, TOTAL_BYTES(parts, count, length),                                             \
	     (struct ibv_qp_ex *qp, size_t count, const struct ibv_sge *parts), count, parts)                \
	SIZE(wr_set_inline_data, length, (struct ibv_qp_ex *qp, void *from, size_t length), from, length)    \
	SIZE(wr_set_inline_data_list, TOTAL_BYTES(parts, count, length),                                     \
	     (struct ibv_qp_ex *qp, size_t count, const struct ibv_data_buf *parts), count, parts)
/* clang-format on */

CALLS(KIND, SIZE)

#define TAKE_OVER(name, ...)                   \
	if (qp->name && qp->name != name) {    \
		known->driver.name = qp->name; \
		qp->name = name;               \
	}

static void hook_qp(struct ibv_qp_ex *qp)
{
	struct queue_pair *known = find_qp(qp, true);

	if (!known) {
		ring_problem(RING_VERBS_UNSEEN);
		return;
	}
	CALLS(TAKE_OVER, TAKE_OVER)
}

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *wanted)
{
	struct device *device = device_of(context);
	bool has_calls = wanted->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	struct ibv_qp *qp = device->create_qp_ex(context, wanted);

	/* With these flags the queue pair begins an ibv_qp_ex: that is what ibv_qp_to_qp_ex says, too. */
	if (qp && has_calls)
		hook_qp((struct ibv_qp_ex *)qp);
	return qp;
}

/* --- the table */

/* What libibverbs has under this name: beside us, or where only dlopen has put it. */
static void *real_of(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name), *library;

	if (found)
		return found;
	library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
	return library ? dlsym(library, name) : NULL;
}

static void hook_context(struct verbs_context *extended)
{
	struct ibv_context *context = &extended->context;
	struct device *device = place_for(context);

	if (!device) {
		ring_problem(RING_VERBS_UNSEEN);
		return;
	}
	if (context->ops.post_send && context->ops.post_send != post_send) {
		device->post_send = context->ops.post_send;
		context->ops.post_send = post_send;
	}
	if (extended->create_qp_ex && extended->create_qp_ex != create_qp_ex) {
		device->create_qp_ex = extended->create_qp_ex;
		extended->create_qp_ex = create_qp_ex;
	}
}

/* Declared in libibverbs' driver.h, which distributions don't install; the same since rdma-core 17. */
EXPORT void verbs_set_ops(struct verbs_context *context, const struct verbs_context_ops *ops);

EXPORT void verbs_set_ops(struct verbs_context *context, const struct verbs_context_ops *ops)
{
	static void (*_Atomic real)(struct verbs_context *, const struct verbs_context_ops *);

	if (!real)
		real = (void (*)(struct verbs_context *, const struct verbs_context_ops *))real_of("verbs_set_ops");
	if (!real)
		return; /* can't be: only libibverbs and its drivers call this */
	real(context, ops);
	if (ring)
		hook_context(context);
}
