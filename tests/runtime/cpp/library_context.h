// A context to call library functions in.
#pragma once

#include <memory>
#include <string>

#include "run.h"
#include "test_main.h"
#include "toy_artifact.h"

namespace disc_test {

struct LibraryContext {
  LibraryContext() {
    const std::string data = toy_artifact("library");
    std::shared_ptr<disc::Executable> e;
    const disc::Status s = disc::Executable::load(reinterpret_cast<const uint8_t*>(data.data()), data.size(), &e);
    if (!s.ok()) fail(__FILE__, __LINE__, s.message);
    run = std::make_unique<disc_context>(e, nullptr);
  }
  std::unique_ptr<disc_context> run;
};

}  // namespace disc_test
