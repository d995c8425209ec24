/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_registry.c - the donor's memory registrations for each session, and the thread that makes them. */
#include "verbs_registry.h"

#include <errno.h>
#include <stdlib.h>

#include "thread.h"

/* --- regions */

struct region *region_of_memory(struct registry *registry, const void *addr)
{
	for (struct region *region = registry->regions; region; region = region->next)
		if (region->addr == addr)
			return region;
	return NULL;
}

struct region *region_of_lease(struct registry *registry, uint32_t lease)
{
	for (struct region *region = registry->regions; region; region = region->next)
		if (region->state == LEASED && region->lease == lease)
			return region;
	return NULL;
}

struct reg *reg_of(const struct region *region, const struct domain *domain)
{
	for (struct reg *reg = region->regs; reg; reg = reg->next)
		if (reg->domain == domain)
			return reg;
	return NULL;
}

/* A domain is used while its session has a queue pair, or anything leased that its next queue pair will want. */
static void domains_look(struct registry *registry)
{
	for (struct domain *domain = registry->domains; domain; domain = domain->next)
		domain->is_used = domain->conns > 0;
	for (const struct region *region = registry->regions; region; region = region->next)
		for (struct domain *domain = registry->domains; domain && region->state == LEASED;
		     domain = domain->next)
			domain->is_used |= region->session == domain->session;
}

static bool belongs_in(const struct region *region, const struct domain *domain)
{
	if (region->state == SPENT || !domain->is_used)
		return false;
	return region->state == LEASED ? region->session == domain->session : domain->has_windows;
}

/* Rights of a registration: with windows none of its own, so that nobody reaches it before one is bound. */
static int access_in(const struct domain *domain)
{
	return IBV_ACCESS_LOCAL_WRITE |
	       (domain->has_windows ? IBV_ACCESS_MW_BIND : IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
}

static void reg_free(struct reg *reg)
{
	if (reg->mr)
		ibv_dereg_mr(reg->mr);
	free(reg);
}

/* Takes the registration off the region's list. */
static void reg_unlink(struct region *region, struct reg *reg)
{
	struct reg **at = &region->regs;

	while (*at != reg)
		at = &(*at)->next;
	*at = reg->next;
}

static void region_unlink(struct registry *registry, struct region *region)
{
	struct region **at = &registry->regions;

	while (*at != region)
		at = &(*at)->next;
	*at = region->next;
}

static void wait_until_idle(struct registry *registry, const struct region *region)
{
	while (region->is_busy)
		pthread_cond_wait(&registry->changed, &registry->lock);
}

void reg_forget(struct region *region, struct reg *reg)
{
	reg_unlink(region, reg);
	reg_free(reg);
}

struct region *region_make(struct registry *registry, void *addr, uint64_t bytes)
{
	struct region *region = calloc(1, sizeof(*region));

	if (!region)
		return NULL;
	region->addr = addr;
	region->bytes = bytes;
	region->next = registry->regions;
	registry->regions = region;
	return region;
}

/* Takes the region away from all domains, and forgets it; registry->lock is let go meanwhile and held again afterwards.
 */
void region_end(struct registry *registry, struct region *region)
{
	wait_until_idle(registry, region);
	region_unlink(registry, region);
	for (struct reg *reg = region->regs; reg; reg = reg->next)
		reg->domain->busy++;
	pthread_mutex_unlock(&registry->lock);
	for (struct reg *reg = region->regs; reg; reg = reg->next)
		if (reg->mr)
			ibv_dereg_mr(reg->mr);
	pthread_mutex_lock(&registry->lock);
	while (region->regs) {
		struct reg *reg = region->regs;

		region->regs = reg->next;
		reg->domain->busy--;
		free(reg);
	}
	free(region);
	pthread_cond_signal(&registry->work);
}

/* Registrations that were keys themselves. */
void region_end_rights(struct registry *registry, struct region *region)
{
	wait_until_idle(registry, region);
	for (struct reg *reg = region->regs, *next; reg; reg = next) {
		next = reg->next;
		if (!reg->domain->has_windows)
			reg_forget(region, reg);
	}
}

/* --- domains */

static bool device_has_windows(struct ibv_context *verbs)
{
	struct ibv_device_attr attr;

	return !ibv_query_device(verbs, &attr) &&
	       attr.device_cap_flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B);
}

static struct domain *domain_make(struct registry *registry, uint64_t session, struct ibv_context *verbs)
{
	struct domain *domain = calloc(1, sizeof(*domain));

	if (!domain)
		return NULL;
	domain->session = session;
	domain->verbs = verbs;
	domain->has_windows = device_has_windows(verbs);
	domain->pd = ibv_alloc_pd(verbs);
	if (!domain->pd) {
		free(domain);
		return NULL;
	}
	domain->next = registry->domains;
	registry->domains = domain;
	return domain;
}

struct domain *domain_of(struct registry *registry, uint64_t session, struct ibv_context *verbs)
{
	for (struct domain *domain = registry->domains; domain; domain = domain->next)
		if (domain->session == session && domain->verbs == verbs)
			return domain;
	return domain_make(registry, session, verbs);
}

/* --- the registrar */

/* Registers, or takes back, with the lock let go; the region can't go meanwhile, nor the domain. */
static void registrar_register(struct registry *registry, struct region *region, struct domain *domain)
{
	struct reg *reg = calloc(1, sizeof(*reg));

	region->is_busy = true;
	domain->busy++;
	pthread_mutex_unlock(&registry->lock);
	if (reg) {
		reg->domain = domain;
		reg->mr = ibv_reg_mr(domain->pd, region->addr, region->bytes, access_in(domain));
	}
	pthread_mutex_lock(&registry->lock);
	region->is_busy = false;
	domain->busy--;
	if (reg) {
		reg->next = region->regs;
		region->regs = reg;
	}
	pthread_cond_broadcast(&registry->changed);
}

static void registrar_take_back(struct registry *registry, struct region *region, struct reg *reg)
{
	struct domain *domain = reg->domain;

	reg_unlink(region, reg);
	region->is_busy = true;
	domain->busy++;
	pthread_mutex_unlock(&registry->lock);
	reg_free(reg);
	pthread_mutex_lock(&registry->lock);
	region->is_busy = false;
	domain->busy--;
	pthread_cond_broadcast(&registry->changed);
}

static bool registrar_add(struct registry *registry, enum region_state state)
{
	for (struct region *region = registry->regions; region; region = region->next)
		for (struct domain *domain = registry->domains; domain; domain = domain->next)
			if (region->state == state && !region->is_busy && belongs_in(region, domain) &&
			    !reg_of(region, domain)) {
				registrar_register(registry, region, domain);
				return true;
			}
	return false;
}

static bool registrar_remove(struct registry *registry)
{
	for (struct region *region = registry->regions; region; region = region->next)
		for (struct reg *reg = region->regs; reg; reg = reg->next)
			if (!region->is_busy && !belongs_in(region, reg->domain)) {
				registrar_take_back(registry, region, reg);
				return true;
			}
	return false;
}

static bool domain_has_regions(const struct registry *registry, const struct domain *domain)
{
	for (const struct region *region = registry->regions; region; region = region->next)
		if (reg_of(region, domain))
			return true;
	return false;
}

static bool registrar_close_domain(struct registry *registry)
{
	for (struct domain **at = &registry->domains; *at; at = &(*at)->next) {
		struct domain *domain = *at;

		if (domain->is_used || domain->busy || domain_has_regions(registry, domain))
			continue;
		*at = domain->next;
		ibv_dealloc_pd(domain->pd);
		free(domain);
		return true;
	}
	return false;
}

/* One difference mended: what somebody may be waiting for first. False when there is none. */
static bool registrar_step(struct registry *registry)
{
	domains_look(registry);
	return registrar_add(registry, LEASED) || registrar_add(registry, OFFERED) || registrar_remove(registry) ||
	       registrar_close_domain(registry);
}

static void *registrar_main(void *arg)
{
	struct registry *registry = arg;

	pthread_setname_np(pthread_self(), "fs-registrar");
	pthread_mutex_lock(&registry->lock);
	while (!registry->ending)
		if (!registrar_step(registry))
			pthread_cond_wait(&registry->work, &registry->lock);
	pthread_mutex_unlock(&registry->lock);
	return NULL;
}

/* --- the registry itself */

void registry_init(struct registry *registry)
{
	pthread_condattr_t monotonic;

	pthread_mutex_init(&registry->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&registry->work, &monotonic);
	pthread_cond_init(&registry->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

int registry_start(struct registry *registry)
{
	int err;

	if (registry->has_thread)
		return 0;
	err = thread_start(&registry->thread, SMALL_STACK_BYTES, registrar_main, registry);
	registry->has_thread = !err;
	return err;
}

static void registrar_stop(struct registry *registry)
{
	pthread_mutex_lock(&registry->lock);
	registry->ending = true;
	pthread_cond_signal(&registry->work);
	pthread_mutex_unlock(&registry->lock);
	if (registry->has_thread)
		pthread_join(registry->thread, NULL);
}

void registry_end(struct registry *registry)
{
	registrar_stop(registry);
	while (registry->regions) {
		struct region *region = registry->regions;

		registry->regions = region->next;
		while (region->regs)
			reg_forget(region, region->regs);
		free(region);
	}
	while (registry->domains) {
		struct domain *domain = registry->domains;

		registry->domains = domain->next;
		ibv_dealloc_pd(domain->pd);
		free(domain);
	}
	pthread_cond_destroy(&registry->work);
	pthread_cond_destroy(&registry->changed);
	pthread_mutex_destroy(&registry->lock);
}
