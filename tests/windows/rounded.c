/* To preload into the program for Linux: sinf and cosf that round correctly, as mingw-w64's do. glibc's round 1.3 % of a rotary embedding's
 * angles to the neighbour, which is the one difference between the completions on both systems. */
#define _GNU_SOURCE
#include <math.h>

float sinf(float x) { return (float) sin(x); }

float cosf(float x) { return (float) cos(x); }

void sincosf(float x, float * s, float * c) {
    *s = (float) sin(x);
    *c = (float) cos(x);
}
