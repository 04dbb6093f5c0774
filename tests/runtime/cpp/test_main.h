// A test registry in a page: TEST(name) { EXPECT(cond); EXPECT_EQ(a, b); }.
#pragma once

#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace disc_test {

struct Registration {
  Registration(const char* name, void (*body)());
};

struct Failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  throw Failed(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

template <typename A, typename B>
void expect_equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream s;
  s << text << ": " << a << " against " << b;
  fail(file, line, s.str());
}

}  // namespace disc_test

#define TEST(name)                                                          \
  static void test_##name();                                                \
  static const disc_test::Registration registration_##name(#name, test_##name); \
  static void test_##name()
#define EXPECT(cond) \
  do {               \
    if (!(cond)) disc_test::fail(__FILE__, __LINE__, #cond); \
  } while (0)
#define EXPECT_EQ(a, b) disc_test::expect_equal((a), (b), #a " == " #b, __FILE__, __LINE__)
