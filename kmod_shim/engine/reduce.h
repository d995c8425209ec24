/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.h - number formats by themselves, for what goes between masters and members. */
#ifndef FARSIDE_REDUCE_H
#define FARSIDE_REDUCE_H

#include <stddef.h>
#include <stdint.h>

/* dtype: NE_DTYPE_F32, F16 or BF16. The same bits as ne_reduce has. */
void reduce_widen(uint32_t dtype, float *to, const void *from, size_t count);
void reduce_narrow(uint32_t dtype, void *to, const float *from, size_t count);

#endif
