// SPDX-License-Identifier: Apache-2.0
/*
 * An NVML with one GPU after another, which the file that $NVML_CAPS names has, a line each: UUID, lowest cap, cap
 * (mW). With $NVML_LOCKED set nobody may change them, as for users other than root. $NVML_LOST names a GPU that answers
 * nothing but its UUID, $NVML_BUSY one that has a process. With $NVML_NO_END set NVML does not shut down.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, IS_LOST = 15, MOST = 8 };
static unsigned int caps[MOST], lowest_mw[MOST], count;
static char uuids[MOST][32];

static void load(void)
{
	FILE *file = fopen(getenv("NVML_CAPS"), "r");

	for (count = 0;
	     file && count < MOST && fscanf(file, "%31s %u %u", uuids[count], &lowest_mw[count], &caps[count]) == 3;
	     count++)
		;
	if (file)
		fclose(file);
}

static int is(const char *variable, unsigned int *gpu)
{
	const char *uuid = getenv(variable);

	return uuid && !strcmp(uuid, uuids[gpu - caps]);
}

int nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;
	load();
	return OK;
}

int nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

int nvmlShutdown(void)
{
	return getenv("NVML_NO_END") ? INVALID : OK;
}

const char *nvmlErrorString(int result)
{
	return result == NO_PERMISSION ? "Insufficient Permissions"
	       : result == IS_LOST     ? "GPU is lost"
				       : "Invalid Argument";
}

int nvmlDeviceGetCount_v2(unsigned int *ret)
{
	*ret = count;
	return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int at, void **ret)
{
	*ret = at < count ? &caps[at] : NULL;
	return at < count ? OK : INVALID;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **ret)
{
	for (unsigned int at = 0; at < count; at++) {
		if (!strcmp(uuid, uuids[at])) {
			*ret = &caps[at];
			return OK;
		}
	}
	return NOT_FOUND;
}

int nvmlDeviceGetUUID(unsigned int *gpu, char *ret, unsigned int size)
{
	return snprintf(ret, size, "%s", uuids[gpu - caps]) < (int)size ? OK : INVALID;
}

int nvmlDeviceGetComputeRunningProcesses_v3(unsigned int *gpu, unsigned int *found, void *ret)
{
	unsigned int room = *found;

	*found = is("NVML_BUSY", gpu);
	if (*found > room)
		return INSUFFICIENT_SIZE;
	if (*found)
		memset(ret, 0, 24);
	return OK;
}

int nvmlDeviceGetPowerManagementLimit(unsigned int *gpu, unsigned int *ret)
{
	*ret = *gpu;
	return is("NVML_LOST", gpu) ? IS_LOST : OK;
}

int nvmlDeviceGetPowerManagementLimitConstraints(unsigned int *gpu, unsigned int *lowest, unsigned int *highest)
{
	*lowest = lowest_mw[gpu - caps];
	*highest = 700000;
	return OK;
}

int nvmlDeviceSetPowerManagementLimit(unsigned int *gpu, unsigned int cap)
{
	FILE *file;

	if (getenv("NVML_LOCKED"))
		return NO_PERMISSION;
	if (cap < lowest_mw[gpu - caps] || cap > 700000)
		return INVALID;
	*gpu = cap;
	file = fopen(getenv("NVML_CAPS"), "w");
	for (unsigned int at = 0; file && at < count; at++)
		fprintf(file, "%s %u %u\n", uuids[at], lowest_mw[at], caps[at]);
	return file && !fclose(file) ? OK : INVALID;
}
