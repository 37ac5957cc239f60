/* The old JSON-RPC server's header, under its old name: a host that includes it compiles unchanged.
 * The declarations are foredraft.h's, which has all of the old ones; the old server's strings were freed with free(),
 * which still works (new code uses free_string). */
#ifndef RPCSERVER_H
#define RPCSERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "foredraft.h"

#endif
