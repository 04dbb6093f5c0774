#include <random>

#include "artifact.h"
#include "elf_image.h"
#include "test_main.h"
#include "toy_artifact.h"

using disc_test::Bytes;

namespace {
disc::Status parse(const Bytes& data, disc::Artifact* a) {
  // A heap block of the exact size: a read past the end is found by the sanitizer.
  const std::vector<uint8_t> exact(data.begin(), data.end());
  return disc::parse_artifact(exact.data(), exact.size(), a);
}
}  // namespace

TEST(crc32_of_the_standard_text) {
  EXPECT_EQ(disc::crc32(reinterpret_cast<const uint8_t*>("123456789"), 9), 0xCBF43926u);
  EXPECT_EQ(disc::crc32(nullptr, 0), 0u);
}

TEST(artifact_is_read_as_written) {
  disc::Artifact a;
  const Bytes data = disc_test::toy_artifact("id", Bytes(32, 'd'));
  EXPECT(parse(data, &a).ok());
  EXPECT_EQ(a.args.size(), 3u);
  EXPECT_EQ(a.args[0].name, "w");
  EXPECT_EQ(a.args[0].digest.size(), 32u);
  EXPECT_EQ(a.args[2].dims.size(), 0u);
  EXPECT_EQ(a.checks[1].node, "scale/Assert");
  EXPECT_EQ(a.segments[1].dependences.size(), 1u);
  EXPECT_EQ(a.targets[0].features[0], "sse4_2");
  EXPECT_EQ(a.targets[0].image_size, disc_test::toy_image().size());
}

TEST(every_truncation_is_refused) {
  const Bytes data = disc_test::toy_artifact("id", {}, "image");
  disc::Artifact a;
  for (size_t n = 0; n < data.size(); ++n) EXPECT(!parse(data.substr(0, n), &a).ok());
}

// Valid checksums, wild contents.
TEST(mutations_never_read_out_of_bounds) {
  std::mt19937 rng(1);
  const Bytes good = disc_test::toy_artifact("id", {}, "image");
  int parsed = 0;
  for (int i = 0; i < 20000; ++i) {
    Bytes data = good;
    for (int k = 1 + static_cast<int>(rng() % 3); k > 0; --k) {
      const size_t at = 8 + rng() % (data.size() - 12);
      if (rng() % 2) {
        data[at] = static_cast<char>(rng());
      } else {
        static constexpr uint32_t kWild[] = {0, 1, 0x7fffffff, 0x80000000u, 0xffffffffu, 300};
        std::memcpy(data.data() + at, &kWild[rng() % 6], 4);
      }
    }
    if (rng() % 4 == 0) data.resize(64 + rng() % (data.size() - 63));
    disc_test::seal(&data);
    disc::Artifact a;
    const disc::Status s = parse(data, &a);
    if (s.ok()) ++parsed;
    EXPECT(s.ok() || !s.message.empty());
  }
  EXPECT(parsed > 100);  // the mutations are not all caught at the door
}

TEST(mutated_elf_images_never_read_out_of_bounds) {
  std::mt19937 rng(2);
  const Bytes good = disc_test::toy_image();
  for (int i = 0; i < 5000; ++i) {
    std::vector<uint8_t> image(good.begin(), good.end());
    for (int k = 1 + static_cast<int>(rng() % 3); k > 0; --k) {
      const size_t at = rng() % (rng() % 2 ? 700 : image.size() - 8);
      static constexpr uint64_t kWild[] = {0, 1, 0x7fffffff, ~uint64_t{0}, uint64_t{1} << 63, 4096, 24};
      if (rng() % 2)
        image[at] = static_cast<uint8_t>(rng());
      else
        std::memcpy(image.data() + at, &kWild[rng() % 7], 8);
    }
    if (rng() % 5 == 0) image.resize(rng() % image.size());
    disc::ElfImage elf;
    if (!disc::parse_elf(image.data(), image.size(), &elf).ok()) continue;
    uint8_t* base = nullptr;
    void* query = nullptr;
    if (!disc::map_elf(elf, &base, &query).ok()) continue;
    EXPECT(static_cast<uint8_t*>(query) >= base && static_cast<uint8_t*>(query) < base + elf.span);
    disc::unmap_elf(elf, base);
  }
}
