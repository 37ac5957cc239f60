/* Replaces the function that registers destructors of C++ globals in the shared library (ld's --wrap, see build.rs), so that llama.cpp's
 * globals are not destroyed: __cxa_atexit on Linux, atexit on Windows.
 *
 * The library is never unloaded, so their memory is released with the process. Without this, a host that exits while another
 * thread loads or decodes would destroy globals that the thread uses. Some globals are created in the middle of the first load, so
 * an exit handler of ours cannot always run before their destructors. On Windows, the threads have been ended by then, perhaps while
 * they held a lock that a destructor waits for. */
#ifdef _WIN32
int __wrap_atexit(void (*destroy)(void));

int __wrap_atexit(void (*destroy)(void)) {
    (void) destroy;
    return 0;
}
#else
int __wrap___cxa_atexit(void (*destroy)(void *), void *object, void *library);

int __wrap___cxa_atexit(void (*destroy)(void *), void *object, void *library) {
    (void) destroy;
    (void) object;
    (void) library;
    return 0;
}
#endif
