/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slots.c - rings of page-sized slots: payload that waits for the disk, and staging. A slot is taken at the tail; each
 * of its bits is a reason to hold it, and it is free when no bit is set.
 */
#include "core.h"

/* Pages that stay held for long (a disk that refuses them) are stepped over. */
uint64_t ring_take(struct ring *r, uint32_t n, uint8_t hold)
{
	uint32_t at = r->used ? r->tail : 0; /* empty: begin at the front, which the cache still has */

	for (uint32_t passed = 0; passed <= r->pages && n <= r->pages;) {
		uint32_t free = n;

		if (at + n > r->pages) {
			passed += r->pages - at;
			at = 0;
		}
		while (free && !r->held[at + n - free])
			free--;
		if (!free) {
			r->takes++;
			for (uint32_t i = 0; i < n; i++) {
				if (r->stamp)
					r->stamp[at + i] = r->takes;
				r->held[at + i] = hold;
			}
			r->used += n;
			r->tail = (at + n) & (r->pages - 1);
			return at;
		}
		at += n - free + 1;
		passed += n - free + 1;
	}
	return UINT64_MAX;
}

void ring_hold(struct ring *r, uint64_t pos, uint8_t hold)
{
	uint8_t *held = &r->held[ring_index(r, pos)];

	r->used += !*held;
	*held |= hold;
}

void ring_drop(struct ring *r, uint64_t pos, uint32_t n, uint8_t hold)
{
	uint8_t *held = r->held + ring_index(r, pos);
	uint32_t freed = 0;

	for (uint32_t i = 0; i < n; i++) {
		freed += held[i] == hold;
		held[i] &= (uint8_t)~hold;
	}
	r->used -= freed;
}
