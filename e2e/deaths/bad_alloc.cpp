// Takes memory until operator new throws, which nobody catches.
#include <cstdio>
#include <vector>

int main() {
  if (FILE *f = std::fopen("starts", "a")) {
    std::fputs("started\n", f);
    std::fclose(f);
  }
  std::vector<std::vector<double>> rows;
  for (;;) {
    rows.emplace_back(1 << 20);
    if (rows.size() % 16 == 0) {
      std::printf("%zu rows\n", rows.size());
      std::fflush(stdout);
    }
  }
}
