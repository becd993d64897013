/* A libnvidia-ml.so.1 that answers from a description of a machine.
 *
 * BUSBAR_MOCK_NVML names a file of lines "key=value" (see mock_nvml.py, which writes it from YAML).
 * A key that is absent is answered with NOT_SUPPORTED; a value "!N" with NVML's error N, so that each
 * call can be made to fail by itself. Compiled with -DOLD_DRIVER, newer calls are not even exported.
 * Only what topology/sources/nvml.py and nvml_ask.py call is here; the signatures are NVML's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9 };
enum { MAX_KEYS = 65536, MAX_GPUS = 64, MAX_MIGS = 8 };

typedef int ret_t;
typedef struct { int gpu, mig; } device_t;
typedef unsigned long long u64;

static struct { char *key, *value; } table[MAX_KEYS];
static int keys;
static device_t devices[MAX_GPUS][MAX_MIGS + 1];

static int by_key(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static ret_t load(void) {
    const char *path = getenv("BUSBAR_MOCK_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[4096];
    if (!file) return DRIVER_NOT_LOADED;
    keys = 0;
    while (keys < MAX_KEYS && fgets(line, sizeof line, file)) {
        char *equals = strchr(line, '=');
        if (!equals) continue;
        *equals = 0;
        equals[1 + strcspn(equals + 1, "\n")] = 0;
        table[keys].key = strdup(line);
        table[keys++].value = strdup(equals + 1);
    }
    fclose(file);
    qsort(table, keys, sizeof table[0], by_key);
    for (int gpu = 0; gpu < MAX_GPUS; gpu++)
        for (int mig = 0; mig <= MAX_MIGS; mig++) devices[gpu][mig] = (device_t){gpu, mig - 1};
    return SUCCESS;
}

/* The text of a key, or an error. */
static ret_t text_of(const char *key, const char **text) {
    struct { const char *key; } wanted = {key};
    char **found = bsearch(&wanted, table, keys, sizeof table[0], by_key);
    if (!found) return NOT_SUPPORTED;
    *text = found[1];
    return **text == '!' ? atoi(*text + 1) : SUCCESS;
}

static ret_t number_of(const char *key, u64 *number) {
    const char *text;
    ret_t status = text_of(key, &text);
    if (status == SUCCESS) *number = strtoull(text, NULL, 0);
    return status;
}

static const char *name_of(device_t *d, const char *what) {
    static char key[256];
    if (d->mig >= 0) snprintf(key, sizeof key, "gpu.%d.mig.%d.%s", d->gpu, d->mig, what);
    else snprintf(key, sizeof key, "gpu.%d.%s", d->gpu, what);
    return key;
}

static ret_t device_number(device_t *d, const char *what, u64 *number) { return number_of(name_of(d, what), number); }

static ret_t device_uint(device_t *d, const char *what, unsigned *out) {
    u64 number;
    ret_t status = device_number(d, what, &number);
    if (status == SUCCESS) *out = (unsigned)number;
    return status;
}

static ret_t device_text(device_t *d, const char *what, char *out, unsigned size) {
    const char *text;
    ret_t status = text_of(name_of(d, what), &text);
    if (status == SUCCESS) snprintf(out, size, "%s", text);
    return status;
}

/* -- the library */

ret_t nvmlInitWithFlags(unsigned flags) { (void)flags; return load(); }
ret_t nvmlInit_v2(void) { return load(); }
ret_t nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(ret_t status) {
    switch (status) {
    case SUCCESS: return "Success";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    default: return "Unknown Error";
    }
}

static ret_t system_text(const char *key, char *out, unsigned size) {
    const char *text;
    ret_t status = text_of(key, &text);
    if (status == SUCCESS) snprintf(out, size, "%s", text);
    return status;
}

ret_t nvmlSystemGetDriverVersion(char *out, unsigned size) { return system_text("driver_version", out, size); }

ret_t nvmlSystemGetCudaDriverVersion(int *out) {
    u64 number;
    ret_t status = number_of("cuda_driver_version", &number);
    if (status == SUCCESS) *out = (int)number;
    return status;
}

ret_t nvmlDeviceGetCount_v2(unsigned *out) {
    u64 number;
    ret_t status = number_of("gpu_count", &number);
    if (status == SUCCESS) *out = (unsigned)number;
    return status;
}

ret_t nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **out) {
    unsigned count = 0;
    nvmlDeviceGetCount_v2(&count);
    if (index >= count || index >= MAX_GPUS) return INVALID_ARGUMENT;
    *out = &devices[index][0];
    return SUCCESS;
}

/* -- a device's own facts */

ret_t nvmlDeviceGetName(device_t *d, char *out, unsigned size) { return device_text(d, "name", out, size); }
ret_t nvmlDeviceGetUUID(device_t *d, char *out, unsigned size) { return device_text(d, "uuid", out, size); }

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char busid[32];
} pci_t;

static ret_t pci_of(const char *busid, u64 id, pci_t *out) {
    unsigned domain = 0, bus = 0, device = 0;
    if (sscanf(busid, "%x:%x:%x", &domain, &bus, &device) != 3) return INVALID_ARGUMENT;
    memset(out, 0, sizeof *out);
    out->domain = domain, out->bus = bus, out->device = device, out->id = (unsigned)id;
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", domain & 0xffff, bus & 0xff, device & 0xff);
    snprintf(out->busid, sizeof out->busid, "%08X:%02X:%02X.0", domain, bus, device);
    return SUCCESS;
}

ret_t nvmlDeviceGetPciInfo_v3(device_t *d, pci_t *out) {
    u64 id = 0;
    const char *busid;
    ret_t status = text_of(name_of(d, "busid"), &busid);
    if (status != SUCCESS) return status;
    device_number(d, "pci_device_id", &id);
    return pci_of(busid, id, out);
}

#define UINT(function, what) \
    ret_t function(device_t *d, unsigned *out) { return device_uint(d, what, out); }
UINT(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
UINT(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max")
UINT(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
UINT(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
UINT(nvmlDeviceGetPerformanceState, "pstate")
UINT(nvmlDeviceGetPowerUsage, "power_mw")
UINT(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")
UINT(nvmlDeviceGetPowerManagementDefaultLimit, "power_default_mw")

#define U64(function, what) \
    ret_t function(device_t *d, u64 *out) { return device_number(d, what, out); }
U64(nvmlDeviceGetTotalEnergyConsumption, "energy_mj")
U64(nvmlDeviceGetCurrentClocksThrottleReasons, "reasons")

#define INDEXED(function, what) \
    ret_t function(device_t *d, int index, unsigned *out) { \
        char key[64]; \
        snprintf(key, sizeof key, "%s.%d", what, index); \
        return device_uint(d, key, out); \
    }
INDEXED(nvmlDeviceGetClockInfo, "clock")
INDEXED(nvmlDeviceGetMaxClockInfo, "clock_max")
INDEXED(nvmlDeviceGetApplicationsClock, "clock_app")
INDEXED(nvmlDeviceGetTemperature, "temperature")
INDEXED(nvmlDeviceGetTemperatureThreshold, "temperature_threshold")

ret_t nvmlDeviceGetCudaComputeCapability(device_t *d, int *major, int *minor) {
    unsigned sm;
    ret_t status = device_uint(d, "sm", &sm);
    if (status == SUCCESS) *major = sm / 10, *minor = sm % 10;
    return status;
}

static ret_t twice(device_t *d, const char *what, unsigned *now, unsigned *pending) {
    ret_t status = device_uint(d, what, now);
    if (status == SUCCESS) *pending = *now;
    return status;
}
ret_t nvmlDeviceGetEccMode(device_t *d, unsigned *now, unsigned *pending) { return twice(d, "ecc", now, pending); }
ret_t nvmlDeviceGetMigMode(device_t *d, unsigned *now, unsigned *pending) { return twice(d, "mig_mode", now, pending); }

ret_t nvmlDeviceGetTotalEccErrors(device_t *d, int type, int counter, u64 *out) {
    char key[64];
    snprintf(key, sizeof key, "ecc_errors.%d.%d", type, counter);
    return device_number(d, key, out);
}

ret_t nvmlDeviceGetMemoryInfo(device_t *d, u64 out[3]) {
    ret_t status = device_number(d, "memory", &out[0]);
    out[2] = 0;
    device_number(d, "memory_used", &out[2]);
    out[1] = out[0] - out[2];
    return status;
}

ret_t nvmlDeviceGetBAR1MemoryInfo(device_t *d, u64 out[3]) {
    ret_t status = device_number(d, "bar1", &out[0]);
    out[1] = out[0], out[2] = 0;
    return status;
}

ret_t nvmlDeviceGetUtilizationRates(device_t *d, unsigned out[2]) {
    out[1] = 0;
    return device_uint(d, "utilization", &out[0]);
}

typedef struct { unsigned pid; u64 memory; unsigned gi, ci; } process_t;

ret_t nvmlDeviceGetComputeRunningProcesses_v3(device_t *d, unsigned *count, process_t *out) {
    unsigned running;
    ret_t status = device_uint(d, "processes", &running);
    if (status != SUCCESS) return status;
    if (*count < running) {
        *count = running;
        return INSUFFICIENT_SIZE;
    }
    *count = running;
    for (unsigned n = 0; n < running; n++) out[n] = (process_t){1000 + n, 1 << 20, ~0u, ~0u};
    return SUCCESS;
}

static ret_t words(device_t *d, const char *what, unsigned size, unsigned long *out) {
    memset(out, 0, size * sizeof *out);
    for (unsigned n = 0; n < size; n++) {
        char key[64];
        u64 word;
        snprintf(key, sizeof key, "%s.%u", what, n);
        ret_t status = device_number(d, key, &word);
        if (status == SUCCESS) out[n] = word;
        else if (n == 0) return status;
        else break;
    }
    return SUCCESS;
}
ret_t nvmlDeviceGetCpuAffinity(device_t *d, unsigned size, unsigned long *out) { return words(d, "cpus", size, out); }

/* -- pairs */

static ret_t pair_number(device_t *a, device_t *b, const char *what, unsigned *out) {
    char key[128];
    u64 number;
    snprintf(key, sizeof key, "pair.%d.%d.%s", a->gpu, b->gpu, what);
    ret_t status = number_of(key, &number);
    if (status == SUCCESS) *out = (unsigned)number;
    return status;
}

ret_t nvmlDeviceGetTopologyCommonAncestor(device_t *a, device_t *b, unsigned *out) {
    return pair_number(a, b, "level", out);
}

ret_t nvmlDeviceGetP2PStatus(device_t *a, device_t *b, int index, unsigned *out) {
    char what[32];
    snprintf(what, sizeof what, "p2p.%d", index);
    return pair_number(a, b, what, out);
}

/* -- NVLink */

static ret_t link_number(device_t *d, unsigned link, const char *what, unsigned *out) {
    char key[64];
    snprintf(key, sizeof key, "link.%u.%s", link, what);
    return device_uint(d, key, out);
}

ret_t nvmlDeviceGetNvLinkState(device_t *d, unsigned link, unsigned *out) {
    unsigned count;
    ret_t status = device_uint(d, "links", &count);
    if (status != SUCCESS) return status;
    return link < count ? link_number(d, link, "up", out) : INVALID_ARGUMENT;
}
ret_t nvmlDeviceGetNvLinkVersion(device_t *d, unsigned link, unsigned *out) { return link_number(d, link, "version", out); }

ret_t nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t *d, unsigned link, pci_t *out) {
    char key[64];
    const char *busid;
    snprintf(key, sizeof key, "link.%u.peer", link);
    ret_t status = text_of(name_of(d, key), &busid);
    return status == SUCCESS ? pci_of(busid, 0, out) : status;
}

#ifndef OLD_DRIVER
UINT(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_gen_device_max")
UINT(nvmlDeviceGetMaxMigDeviceCount, "mig_slots")

ret_t nvmlDeviceGetNvLinkRemoteDeviceType(device_t *d, unsigned link, unsigned *out) {
    return link_number(d, link, "type", out);
}

ret_t nvmlDeviceGetMemoryAffinity(device_t *d, unsigned size, unsigned long *out, unsigned scope) {
    (void)scope;
    return words(d, "nodes", size, out);
}

ret_t nvmlDeviceGetNumaNodeId(device_t *d, int *out) { return device_uint(d, "gpu_numa_id", (unsigned *)out); }

ret_t nvmlDeviceGetRemappedRows(device_t *d, unsigned *a, unsigned *b, unsigned *pending, unsigned *failed) {
    ret_t status = device_uint(d, "rows_pending", pending);
    *a = *b = 0;
    return status == SUCCESS ? device_uint(d, "rows_failed", failed) : status;
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    int type, status;
    union { double d; unsigned ui; u64 ull; } value;
} field_t;

ret_t nvmlDeviceGetFieldValues(device_t *d, int count, field_t *fields) {
    for (int n = 0; n < count; n++) {
        char key[64];
        u64 value = 0;
        snprintf(key, sizeof key, "field.%u.%u", fields[n].field, fields[n].scope);
        fields[n].status = device_number(d, key, &value);
        fields[n].type = 3;
        fields[n].value.ull = value;
    }
    return SUCCESS;
}

typedef struct {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health;
    unsigned char summary; /* version 3 */
} fabric_t;

ret_t nvmlDeviceGetGpuFabricInfoV(device_t *d, fabric_t *out) {
    unsigned state, status = 0, health = 0, summary = 0, newest = 3;
    device_uint(d, "fabric_version", &newest);
    int third = newest >= 3 && out->version == 0x03000028;
    if (!third && out->version != 0x02000024) return 25; /* argument version mismatch */
    ret_t answer = device_uint(d, "fabric_state", &state);
    if (answer != SUCCESS) return answer;
    device_uint(d, "fabric_status", &status);
    out->state = (unsigned char)state, out->status = (int)status;
    device_uint(d, "fabric_health_mask", &health);
    device_uint(d, "fabric_health_summary", &summary);
    out->health = health;
    if (third) out->summary = (unsigned char)summary;
    return SUCCESS;
}

ret_t nvmlDeviceGetC2cModeInfoV(device_t *d, unsigned *out) { return device_uint(d, "c2c", out); }

/* -- MIG */

ret_t nvmlDeviceGetMigDeviceHandleByIndex(device_t *d, unsigned index, device_t **out) {
    const char *text;
    char key[64];
    snprintf(key, sizeof key, "mig.%u.uuid", index);
    if (index >= MAX_MIGS) return INVALID_ARGUMENT;
    if (text_of(name_of(d, key), &text) != SUCCESS) return NOT_FOUND;
    *out = &devices[d->gpu][1 + index];
    return SUCCESS;
}

typedef struct { unsigned sms, rest[7]; u64 memory_mb; } attributes_t;

ret_t nvmlDeviceGetAttributes_v2(device_t *d, attributes_t *out) {
    memset(out, 0, sizeof *out);
    return device_uint(d, "multiprocessors", &out->sms);
}
#endif
