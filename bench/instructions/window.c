/* Client requests of callgrind, for `bench.instructions.in_memory`. Without valgrind they do nothing. */
#include <valgrind/callgrind.h>

void start(void) { CALLGRIND_START_INSTRUMENTATION; }
void zero(void) { CALLGRIND_ZERO_STATS; }
void dump(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
