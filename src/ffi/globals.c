/* In place of __cxa_atexit in the shared library (ld's --wrap, from build.rs): llama.cpp's globals are not destroyed.
 *
 * The library is never unloaded, so their memory goes with the process. A host that exits while another thread loads or
 * computes would destroy them under that thread; some are made in the middle of the first load, so that no handler of ours
 * can be sure to run before their destructors. */
int __wrap___cxa_atexit(void (*destroy)(void *), void *object, void *library);

int __wrap___cxa_atexit(void (*destroy)(void *), void *object, void *library) {
    (void) destroy;
    (void) object;
    (void) library;
    return 0;
}
