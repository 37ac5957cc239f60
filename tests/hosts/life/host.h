/* The parts of the host in this folder: see life.c. */
#ifndef HOST_H
#define HOST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stddef.h>

#include "foredraft.h"

typedef char *(*function)(foredraft_engine *, const char *);

/* The arguments of the program, and whether `step` prints nothing. */
extern const char *folder, *target, *draft;
extern int quiet;
/* What an answer has whose call lacked memory, space or descriptors, and the number of such answers. */
#define EXHAUSTED "\"code\":\"resource_exhausted\""
extern int n_exhausted;

char *format(const char *text, ...);
int succeeded(const char *answer);
/* Calls and prints the name and whether it succeeded. Frees the request. */
int step(const char *name, foredraft_engine *engine, function call, char *request);
/* Loads target and draft, with more keys. */
int load(foredraft_engine *engine, const char *more);
/* The number after `key` in an answer. */
unsigned long long number(const char *answer, const char *key);
/* Submits, polls to the end, and writes the content to `text` as it stands in the JSON. Returns whether it ended normally. */
int streamed(foredraft_engine *engine, const char *request, char *text, size_t size, int cancels);
/* The memory of this process that is not a file's, in KiB. */
long memory(void);
/* The memory after the allocator has returned its free pages, in KiB. */
long needed(void);

/* The modes. */
int save(const char *kind);
int scarce(const char *what);
int address_space(long mb);
int soak(long n_requests, long n_loads);
int forks(long n);
int chaos(long seconds);

/* Runs a child, which its alarm ends if it waits forever. 0: it was right, 1: not, 2: it did not end by itself. */
int child_result(foredraft_engine *engine);

#endif
