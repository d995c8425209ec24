// SPDX-License-Identifier: Apache-2.0
/*
 * An NVML with one GPU after another, whose caps stand in the file that $NVML_CAPS names: a line of milliwatts each.
 * With $NVML_LOCKED set nobody may change them, as for users other than root.
 */
#include <stdio.h>
#include <stdlib.h>

enum { OK = 0, INVALID = 2, NO_PERMISSION = 4, MOST = 8 };
static unsigned int caps[MOST], count;

static void load(void)
{
	FILE *file = fopen(getenv("NVML_CAPS"), "r");

	for (count = 0; file && count < MOST && fscanf(file, "%u", &caps[count]) == 1; count++)
		;
	if (file)
		fclose(file);
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
	return OK;
}

const char *nvmlErrorString(int result)
{
	return result == NO_PERMISSION ? "Insufficient Permissions" : "Invalid Argument";
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

int nvmlDeviceGetPowerManagementLimit(unsigned int *gpu, unsigned int *ret)
{
	*ret = *gpu;
	return OK;
}

int nvmlDeviceGetPowerManagementLimitConstraints(unsigned int *gpu, unsigned int *lowest, unsigned int *highest)
{
	(void)gpu;
	*lowest = 200000;
	*highest = 700000;
	return OK;
}

int nvmlDeviceSetPowerManagementLimit(unsigned int *gpu, unsigned int cap)
{
	FILE *file;

	if (getenv("NVML_LOCKED"))
		return NO_PERMISSION;
	if (cap < 200000 || cap > 700000)
		return INVALID;
	*gpu = cap;
	file = fopen(getenv("NVML_CAPS"), "w");
	for (unsigned int at = 0; file && at < count; at++)
		fprintf(file, "%u\n", caps[at]);
	return file && !fclose(file) ? OK : INVALID;
}
