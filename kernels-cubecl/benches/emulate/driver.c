// A stand-in for the driver's library (libcuda.so.1) of an H100 with driver 580, CUDA 13.0: for machines without a GPU.
//
// What is real: modules are assembled by ptxas, launches are held against the card's limits, memory has the card's size, captured streams
// become graphs. What is not: no kernel is executed, so whatever is read from the device is zero: what was copied into memory that another
// tensor has now would be read as what a kernel has found. Only what CubeCL calls is here.
//
//   cc -O1 -shared -fPIC -o libcuda.so.1 driver.c
//
// DRIVER_PTXAS   the assembler
// DRIVER_FOLDER  keeps each module and what the assembler said of it, so that each is assembled once
// DRIVER_LOG     gets a line for each refusal and each spill, and one with the counts of each process
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
typedef int CUresult;
typedef uint64_t CUdeviceptr;
enum { OK = 0, INVALID = 1, OOM = 2, INVALID_PTX = 218, NOT_FOUND = 500, OUT_OF_RESOURCES = 701 };
#define TOTAL (85045870592ULL)       /* 81105 MiB */
#define CONTEXT (600ULL << 20)       /* of them, what the driver keeps for itself */
#define SHARED 232448                /* bytes of a block */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long launches, refused_launches, modules, refused_modules, graphs;
static uint64_t in_use, peak;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

// One line, whole: several processes write to the file.
static void say(const char *format, ...) {
  const char *path = getenv("DRIVER_LOG");
  int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;
  if (file < 0) return;
  va_list arguments;
  va_start(arguments, format);
  char line[2000];
  int length = vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  if (write(file, line, length < (int)sizeof line ? length : (int)sizeof line - 1) < 0) perror(path);
  close(file);
}

static void report(void) {
  if (launches || modules || refused_modules)
    say("counts: %ld launches, %ld refused launches, %ld modules, %ld refused modules, %ld graph launches, %.0f MiB at most\n", launches,
        refused_launches, modules, refused_modules, graphs, peak / 1048576.0);
}
// A process that is out of time is stopped so.
static void stop(int signal) {
  report();
  _exit(128 + signal);
}
__attribute__((constructor)) static void start(void) {
  atexit(report);
  signal(SIGTERM, stop);
}

// Allocations, by their address.
typedef struct Block { uint64_t p; size_t n; struct Block *next; } Block;
static Block *blocks[65536];

static CUresult take(CUdeviceptr *out, size_t n) {
  if (!n) return INVALID;
  size_t whole = (n + 4095) & ~4095UL;
  pthread_mutex_lock(&lock);
  int fits = in_use + whole <= TOTAL - CONTEXT;
  pthread_mutex_unlock(&lock);
  if (!fits) {
    say("out of memory: %zu bytes with %lu in use\n", n, in_use);
    return OOM;
  }
  void *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return OOM;
  Block *block = malloc(sizeof *block);
  *block = (Block){(uint64_t)p, whole, NULL};
  pthread_mutex_lock(&lock);
  Block **place = &blocks[(block->p >> 12) & 65535];
  block->next = *place;
  *place = block;
  in_use += whole;
  if (in_use > peak) peak = in_use;
  pthread_mutex_unlock(&lock);
  *out = (uint64_t)p;
  return OK;
}

static CUresult give(CUdeviceptr p) {
  pthread_mutex_lock(&lock);
  Block **place = &blocks[(p >> 12) & 65535];
  while (*place && (*place)->p != p) place = &(*place)->next;
  Block *block = *place;
  if (block) {
    *place = block->next;
    in_use -= block->n;
  }
  pthread_mutex_unlock(&lock);
  if (!block) {
    say("free of an unknown pointer\n");
    return INVALID;
  }
  munmap((void *)block->p, block->n);
  free(block);
  return OK;
}

// What the driver says of the card.
CUresult cuInit(unsigned f) { return OK; }
CUresult cuDriverGetVersion(int *v) { *v = 13000; return OK; }
CUresult cuDeviceGetCount(int *n) { *n = 1; return OK; }
CUresult cuDeviceGet(int *d, int i) { *d = i; return i ? 101 : OK; }
CUresult cuDeviceGetName(char *s, int n, int d) { snprintf(s, n, "NVIDIA H100 80GB HBM3"); return OK; }
CUresult cuDeviceTotalMem_v2(size_t *n, int d) { *n = TOTAL; return OK; }
CUresult cuDeviceGetPCIBusId(char *s, int n, int d) { snprintf(s, n, "0000:00:05.0"); return OK; }
CUresult cuDeviceGetUuid(char *u, int d) { memset(u, 1, 16); return OK; }
CUresult cuDeviceGetUuid_v2(char *u, int d) { memset(u, 1, 16); return OK; }
CUresult cuDeviceGetAttribute(int *v, int a, int d) {
  switch (a) {
  case 1: *v = 1024; break;            // threads of a block
  case 2: case 3: *v = 1024; break;    // block x, y
  case 4: *v = 64; break;
  case 5: *v = 2147483647; break;      // grid
  case 6: case 7: *v = 65535; break;
  case 8: *v = 49152; break;           // shared of a block
  case 9: *v = 65536; break;
  case 10: *v = 32; break;             // warp
  case 12: *v = 65536; break;          // registers of a block
  case 13: *v = 1980000; break;
  case 16: *v = 132; break;            // multiprocessors
  case 36: *v = 2619000; break;
  case 37: *v = 5120; break;
  case 38: *v = 52428800; break;       // L2
  case 39: *v = 2048; break;
  case 41: *v = 1; break;              // unified addressing
  case 75: *v = 9; break;
  case 76: *v = 0; break;
  case 81: *v = 233472; break;         // shared of a multiprocessor
  case 82: *v = 65536; break;
  case 83: *v = 1; break;              // managed
  case 97: *v = 232448; break;         // shared, opt in
  case 115: *v = 1; break;             // memory pools
  default: *v = 0;
  }
  return OK;
}
CUresult cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)0xC0; return OK; }
CUresult cuDevicePrimaryCtxRelease_v2(int d) { return OK; }
CUresult cuCtxSetCurrent(void *c) { return OK; }
CUresult cuCtxGetCurrent(void **c) { *c = (void *)0xC0; return OK; }
CUresult cuCtxGetDevice(int *d) { *d = 0; return OK; }
CUresult cuCtxSynchronize(void) { return OK; }
CUresult cuCtxGetStreamPriorityRange(int *l, int *g) { *l = 0; *g = -5; return OK; }
typedef struct { int capturing; long nodes; } Stream;
CUresult cuStreamCreate(void **s, unsigned f) { *s = calloc(1, sizeof(Stream)); return OK; }
CUresult cuStreamCreateWithPriority(void **s, unsigned f, int p) { return cuStreamCreate(s, f); }
CUresult cuStreamDestroy_v2(void *s) { return OK; }
CUresult cuStreamSynchronize(void *s) { if (s && ((Stream *)s)->capturing) { say("synchronize while capturing\n"); return 900; } return OK; }
CUresult cuStreamQuery(void *s) { return OK; }
CUresult cuStreamWaitEvent(void *s, void *e, unsigned f) { return OK; }
CUresult cuStreamIsCapturing(void *s, int *c) { *c = s ? ((Stream *)s)->capturing : 0; return OK; }
CUresult cuStreamBeginCapture_v2(void *s, int mode) { ((Stream *)s)->capturing = 1; ((Stream *)s)->nodes = 0; return OK; }
CUresult cuStreamEndCapture(void *s, void **g) { ((Stream *)s)->capturing = 0; long *n = malloc(sizeof(long)); *n = ((Stream *)s)->nodes; *g = n; return OK; }
CUresult cuGraphGetNodes(void *g, void **nodes, size_t *n) {
  if (!nodes) { *n = *(long *)g; return OK; }
  for (size_t i = 0; i < *n; i++) nodes[i] = (void *)(i + 1);
  return OK;
}
CUresult cuGraphNodeGetType(void *n, int *t) { *t = 0; return OK; }
CUresult cuGraphInstantiateWithFlags(void **e, void *g, unsigned long long f) { long *n = malloc(sizeof(long)); *n = *(long *)g; *e = n; return OK; }
CUresult cuGraphDestroy(void *g) { free(g); return OK; }
CUresult cuGraphExecDestroy(void *g) { free(g); return OK; }
CUresult cuGraphUpload(void *e, void *s) { return OK; }
CUresult cuGraphLaunch(void *e, void *s) { graphs++; return OK; }
CUresult cuEventCreate(void **e, unsigned f) { *e = calloc(1, sizeof(double)); return OK; }
CUresult cuEventDestroy_v2(void *e) { free(e); return OK; }
CUresult cuEventRecord(void *e, void *s) { *(double *)e = now(); return OK; }
CUresult cuEventQuery(void *e) { return OK; }
CUresult cuEventSynchronize(void *e) { return OK; }
/* At least what CubeCL wants of a measurement: else it repeats a kernel ever more often, which never takes longer here. */
CUresult cuEventElapsedTime(float *ms, void *a, void *b) { *ms = 25 + (float)((*(double *)b - *(double *)a) * 1e3); return OK; }
CUresult cuEventElapsedTime_v2(float *ms, void *a, void *b) { return cuEventElapsedTime(ms, a, b); }
CUresult cuMemGetInfo_v2(size_t *f, size_t *t) { *t = TOTAL; *f = TOTAL - in_use - (CONTEXT); return OK; }
CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n) { return take(p, n); }
CUresult cuMemAllocAsync(CUdeviceptr *p, size_t n, void *s) { return take(p, n); }
CUresult cuMemFree_v2(CUdeviceptr p) { return give(p); }
CUresult cuMemFreeAsync(CUdeviceptr p, void *s) { return give(p); }
CUresult cuMemAllocHost_v2(void **p, size_t n) { return posix_memalign(p, 4096, n ? n : 1) ? OOM : OK; }
CUresult cuMemHostAlloc(void **p, size_t n, unsigned f) { return cuMemAllocHost_v2(p, n); }
CUresult cuMemFreeHost(void *p) { free(p); return OK; }
CUresult cuMemcpyDtoH_v2(void *d, CUdeviceptr s, size_t n) { memset(d, 0, n); return OK; }
CUresult cuMemcpyDtoHAsync_v2(void *d, CUdeviceptr s, size_t n, void *q) { memset(d, 0, n); return OK; }
CUresult cuMemcpyHtoD_v2(CUdeviceptr d, const void *s, size_t n) { memcpy((void *)d, s, n); return OK; }
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr d, const void *s, size_t n, void *q) { memcpy((void *)d, s, n); return OK; }
CUresult cuMemcpyDtoD_v2(CUdeviceptr d, CUdeviceptr s, size_t n) { memmove((void *)d, (void *)s, n); return OK; }
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr d, CUdeviceptr s, size_t n, void *q) { memmove((void *)d, (void *)s, n); return OK; }
CUresult cuMemsetD8_v2(CUdeviceptr d, unsigned char v, size_t n) { memset((void *)d, v, n); return OK; }
CUresult cuMemsetD8Async(CUdeviceptr d, unsigned char v, size_t n, void *q) { memset((void *)d, v, n); return OK; }
typedef struct { size_t sx, sy; int st; const void *sh; CUdeviceptr sd; void *sa; size_t sp; size_t dx, dy; int dt; void *dh; CUdeviceptr dd; void *da; size_t dp; size_t w, h; } Copy2D;
CUresult cuMemcpy2DAsync_v2(const Copy2D *c, void *q) {
  const char *s = c->st == 1 ? c->sh : (const char *)c->sd;
  char *d = c->dt == 1 ? c->dh : (char *)c->dd;
  for (size_t y = 0; y < c->h; y++) {
    char *row = d + (c->dy + y) * c->dp + c->dx;
    if (c->dt == 1) memset(row, 0, c->w);
    else memcpy(row, s + (c->sy + y) * c->sp + c->sx, c->w);
  }
  return OK;
}

// A module: its entries with their registers and shared memory, as ptxas says.
typedef struct Function { char name[256]; int registers, shared; struct Function *next; } Function;
typedef struct { Function *functions; } Module;

// Where a module is kept: its name is a hash of its text.
static void module_path(char *path, size_t n, const char *text) {
  uint64_t hash = 14695981039346656037ULL;
  for (const char *p = text; *p; p++) hash = (hash ^ (unsigned char)*p) * 1099511628211ULL;
  const char *folder = getenv("DRIVER_FOLDER");
  snprintf(path, n, "%s/%016lx.ptx", folder ? folder : "/tmp", hash);
}

// Whether ptxas takes it; what it says is in `log`.
static int assemble(const char *text, const char *path, const char *log) {
  char own[600], command[4096];
  snprintf(own, sizeof own, "%s.%d", path, getpid());
  FILE *file = fopen(own, "w");
  if (!file) return 0;
  fputs(text, file);
  fclose(file);
  const char *arch = strstr(text, ".target sm_90a") ? "sm_90a" : "sm_90";
  snprintf(command, sizeof command, "'%s' -arch=%s -v '%s' -o /dev/null >'%s.log' 2>&1 && mv '%s.log' '%s'", getenv("DRIVER_PTXAS"), arch, own, own, own, log);
  int taken = system(command) == 0;
  if (taken) rename(own, path);
  else say("refused module: %s, see %s.log\n", own, own);
  return taken;
}

static void read_functions(Module *module, FILE *log) {
  char line[4096], name[256] = "";
  int spilled = 0;
  while (fgets(line, sizeof line, log)) {
    char *at;
    if ((at = strstr(line, "Function properties for "))) sscanf(at + 24, "%255s", name);
    if ((at = strstr(line, "bytes stack frame, "))) sscanf(at + 19, "%d", &spilled);
    if (!(at = strstr(line, "Used "))) continue;
    Function *function = calloc(1, sizeof *function);
    snprintf(function->name, sizeof function->name, "%s", name);
    sscanf(at, "Used %d registers", &function->registers);
    char *shared = strstr(at, " bytes smem");
    while (shared && shared > at && shared[-1] >= '0' && shared[-1] <= '9') shared--;
    function->shared = shared ? atoi(shared) : 0;
    function->next = module->functions;
    module->functions = function;
    if (spilled) say("spills: %s, %d bytes\n", name, spilled);
  }
}

static CUresult load(Module **out, const char *text) {
  char path[512], log[600];
  module_path(path, sizeof path, text);
  snprintf(log, sizeof log, "%s.log", path);
  int taken = access(log, R_OK) == 0 || assemble(text, path, log);
  pthread_mutex_lock(&lock);
  if (taken) modules++; else refused_modules++;
  pthread_mutex_unlock(&lock);
  FILE *file = taken ? fopen(log, "r") : NULL;
  if (!file) return INVALID_PTX;
  *out = calloc(1, sizeof **out);
  read_functions(*out, file);
  fclose(file);
  return OK;
}
CUresult cuModuleLoadData(Module **m, const void *image) { return load(m, image); }
CUresult cuModuleLoadDataEx(Module **m, const void *image, unsigned n, void *o, void *v) { return load(m, image); }
CUresult cuModuleUnload(void *m) { return OK; }
CUresult cuModuleGetFunction(Function **out, Module *m, const char *name) {
  for (Function *f = m->functions; f; f = f->next) if (!strcmp(f->name, name)) { *out = f; return OK; }
  say("unknown function: %s\n", name);
  return NOT_FOUND;
}
CUresult cuFuncSetAttribute(void *f, int a, int v) { if (a == 8 && v > SHARED) { say("shared memory of %d\n", v); return INVALID; } return OK; }
CUresult cuFuncGetAttribute(int *v, int a, Function *f) { *v = a == 4 ? f->registers : 0; return OK; }
CUresult cuLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, Stream *s, void **args, void **extra) {
  unsigned threads = bx * by * bz;
  CUresult r = OK;
  if (!threads || threads > 1024 || bx > 1024 || by > 1024 || bz > 64 || !gx || !gy || !gz || gx > 2147483647u || gy > 65535 || gz > 65535 || shared + f->shared > SHARED) r = INVALID;
  // Registers are given to warps in units of 256.
  unsigned warps = (threads + 31) / 32, per = (f->registers * 32 + 255) / 256 * 256;
  if (warps * per > 65536) r = OUT_OF_RESOURCES;
  pthread_mutex_lock(&lock);
  if (r) refused_launches++; else launches++;
  if (s && s->capturing) s->nodes++;
  pthread_mutex_unlock(&lock);
  // By a clock CubeCL measures what the card can do, with ever more work in one kernel until that takes 20 ms.
  if (!r && strstr(f->name, "throughput")) usleep(20000);
  if (r) say("refused launch (%d) of %s: grid %u %u %u, block %u %u %u, shared %u, %d registers\n", r, f->name, gx, gy, gz, bx, by, bz, shared, f->registers);
  return r;
}
CUresult cuLaunchKernelEx(const void *c, Function *f, void **a, void **e) { launches++; return OK; }
CUresult cuLaunchHostFunc(void *s, void (*fn)(void *), void *d) { fn(d); return OK; }
CUresult cuTensorMapEncodeTiled(void *m, int t, unsigned r, void *p, const uint64_t *d, const uint64_t *st, const unsigned *b, const unsigned *es, int i, int sw, int l2, int o) { memset(m, 0, 128); return OK; }
CUresult cuTensorMapEncodeIm2col(void *m) { return OK; }
CUresult cuTensorMapEncodeIm2colWide(void *m) { return OK; }
CUresult cuGetErrorName(int e, const char **s) { *s = e == 701 ? "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" : e == 218 ? "CUDA_ERROR_INVALID_PTX" : "CUDA_ERROR"; return OK; }
CUresult cuGetErrorString(int e, const char **s) { *s = "of the stand-in"; return OK; }
CUresult cuDeviceCanAccessPeer(int *c, int a, int b) { *c = 0; return OK; }
CUresult cuCtxEnablePeerAccess(void *c, unsigned f) { return OK; }
CUresult cuMemcpyPeerAsync(CUdeviceptr d, void *dc, CUdeviceptr s, void *sc, size_t n, void *q) { memcpy((void *)d, (void *)s, n); return OK; }
CUresult cuGetExportTable(const void **t, const void *id) { *t = NULL; return NOT_FOUND; }
CUresult cuGetProcAddress_v2(const char *s, void **f, int v, uint64_t fl, int *st) { *f = NULL; return NOT_FOUND; }
