#include "test_main.h"

#include <cstring>
#include <utility>
#include <vector>

namespace {
std::vector<std::pair<const char*, void (*)()>>& tests() {
  static std::vector<std::pair<const char*, void (*)()>> list;
  return list;
}
}  // namespace

disc_test::Registration::Registration(const char* name, void (*body)()) { tests().emplace_back(name, body); }

// Arguments: parts of test names; none: all.
int main(int argc, char** argv) {
  int failures = 0, runs = 0;
  for (const auto& [name, body] : tests()) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) wanted = wanted || std::strstr(name, argv[i]);
    if (!wanted) continue;
    ++runs;
    try {
      body();
      std::cout << "ok   " << name << std::endl;
    } catch (const std::exception& e) {
      ++failures;
      std::cout << "FAIL " << name << ": " << e.what() << std::endl;
    }
  }
  std::cout << runs - failures << " of " << runs << " passed" << std::endl;
  return failures == 0 && runs > 0 ? 0 : 1;
}
