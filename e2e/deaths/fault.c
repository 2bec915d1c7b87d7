// Ends itself as broken programs do: fault segfault, fault abort.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
  FILE *f = fopen("starts", "a");
  if (f) {
    fputs("started\n", f);
    fclose(f);
  }
  puts("step 1/9 loss 2.10");
  puts("step 2/9 loss 2.00");
  fflush(stdout);
  if (argc > 1 && strcmp(argv[1], "abort") == 0)
    abort();
  volatile int *volatile nowhere = NULL;
  *nowhere = 1;
  return 0;
}
