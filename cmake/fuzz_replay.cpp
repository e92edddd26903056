// SPDX-License-Identifier: Apache-2.0
// The main of a fuzz target where there is no libFuzzer: gives each file named on the command line to the
// target once, so that what a fuzzer once found stays found under every compiler.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argument_count, char** arguments) {
  if (argument_count < 2) {
    std::fprintf(stderr, "usage: %s FILE...\n", arguments[0]);
    return 2;
  }
  for (int i = 1; i < argument_count; ++i) {
    std::ifstream file(arguments[i], std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "cannot read %s\n", arguments[i]);
      return 1;
    }
    // A vector of exactly the file's size, so that the address sanitizer sees the first byte past it.
    const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
    const std::vector<std::uint8_t> input(text.begin(), text.end());
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("replayed %d inputs\n", argument_count - 1);
  return 0;
}
