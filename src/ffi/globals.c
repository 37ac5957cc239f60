/* Replaces __cxa_atexit in the shared library (ld's --wrap, see build.rs), so that llama.cpp's globals are not destroyed.
 *
 * The library is never unloaded, so their memory is released with the process. Without this, a host that exits while another
 * thread loads or decodes would destroy globals that the thread uses. Some globals are created in the middle of the first load, so
 * an exit handler of ours cannot always run before their destructors. */
int __wrap___cxa_atexit(void (*destroy)(void *), void *object, void *library);

int __wrap___cxa_atexit(void (*destroy)(void *), void *object, void *library) {
    (void) destroy;
    (void) object;
    (void) library;
    return 0;
}
