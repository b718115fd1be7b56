// A region of OpenMP with a race, and one without, to see that the sanitiser finds the one and leaves the other alone.
#include <omp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { N = 4096 };

int main(int argc, char **argv) {
    int planted = argc > 1 && !strcmp(argv[1], "race");
    long sum = 0, value[N], seen[2] = {0, 0};
    volatile long shared = 0;
    for (int i = 0; i < N; i++) value[i] = i;
#pragma omp parallel num_threads(2)
    {
        long *mine = &seen[omp_get_thread_num()];
#pragma omp for schedule(dynamic)
        for (int i = 0; i < N; i++) {
            usleep(10); // so that no thread has done all before the other begins
            value[i] *= 2;
            *mine += 1;
            if (planted) shared += value[i]; // by every thread
        }
#pragma omp for schedule(static)
        for (int i = 0; i < N; i++) value[i] += 1; // behind a barrier: what other threads wrote
    }
    for (int i = 0; i < N; i++) sum += value[i];
    printf("%ld\n", sum);
    return sum != N * N || shared < 0 || seen[0] + seen[1] != N;
}
