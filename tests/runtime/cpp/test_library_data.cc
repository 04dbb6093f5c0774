// nonzero, unique, partition, search, nms, combined_nms: against plain loops, and with data that means harm. Buffers are vectors of exactly the size that
// the functions may touch, so that AddressSanitizer sees every step outside of them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "library.h"
#include "library_context.h"
#include "narrow_float.h"

namespace {

using disc_test::LibraryContext;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

struct Found {
  std::vector<int64_t> indices;
  int64_t count = -1;
};

Found nonzero(std::vector<uint8_t> mask, const std::vector<int64_t>& dims) {
  LibraryContext c;
  const auto total = static_cast<int64_t>(mask.size());
  Found f;
  f.indices.resize(mask.size() * dims.size(), -7);
  std::vector<int64_t> work(static_cast<size_t>((total + 65535) / 65536 + 1));
  std::vector<int64_t> scalars{total, static_cast<int64_t>(dims.size())};
  scalars.insert(scalars.end(), dims.begin(), dims.end());
  void* args[] = {mask.data(), f.indices.data(), &f.count, work.data()};
  EXPECT_EQ(c.run->dispatch("nonzero", args, scalars.data()), 0);
  return f;
}

void check_nonzero(const std::vector<uint8_t>& mask, const std::vector<int64_t>& dims) {
  const Found f = nonzero(mask, dims);
  size_t at = 0;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (!mask[i]) continue;
    auto rest = static_cast<int64_t>(i);
    for (size_t k = dims.size(); k-- > 0; rest /= dims[k]) EXPECT_EQ(f.indices[at * dims.size() + k], rest % dims[k]);
    ++at;
  }
  EXPECT_EQ(f.count, static_cast<int64_t>(at));
  for (size_t i = at * dims.size(); i < f.indices.size(); ++i) EXPECT_EQ(f.indices[i], -7);
}

struct Numbers {
  std::vector<int64_t> first;
  std::vector<int32_t> index, counts;
  int64_t count = -1;
};

template <typename T>
Numbers unique(std::vector<T> x, int64_t width, int32_t dtype, bool zeros = false, int64_t rows = -1) {
  LibraryContext c;
  if (rows < 0) rows = static_cast<int64_t>(x.size()) / width;
  const auto n = static_cast<size_t>(rows);
  Numbers u;
  u.first.resize(n);
  u.index.resize(n);
  u.counts.resize(n);
  std::vector<uint64_t> work(2 * n, 0xABABABABABABABAB);
  void* args[] = {x.data(), u.first.data(), u.index.data(), u.counts.data(), &u.count, work.data()};
  const int64_t scalars[] = {dtype, rows, width, 4, zeros};
  EXPECT_EQ(c.run->dispatch("unique", args, scalars), 0);
  return u;
}

using Ints = std::vector<int32_t>;

struct Kept {
  Ints indices;
  std::vector<float> scores;
  int64_t count = -1;
};

// `data`: boxes or overlaps. `room`: elements of the results.
Kept nms(std::vector<float> data, std::vector<float> scores, float threshold, float least, float sigma, int64_t limit, int64_t room,
         bool overlaps = false) {
  LibraryContext c;
  const auto n = static_cast<int64_t>(scores.size());
  Kept k;
  k.indices.resize(static_cast<size_t>(room), -7);
  k.scores.resize(static_cast<size_t>(room), -7);
  std::vector<char> heap(static_cast<size_t>(12 * n)), boxes(static_cast<size_t>(20 * std::min(n, room)));
  void* args[] = {data.data(), scores.data(), &threshold, &least, &sigma, k.indices.data(), k.scores.data(), &k.count, heap.data(), boxes.data()};
  const int64_t scalars[] = {DISC_F32, n, limit, room, overlaps};
  EXPECT_EQ(c.run->dispatch("nms", args, scalars), 0);
  EXPECT(k.count >= 0 && k.count <= std::min(room, limit));
  for (int32_t i : k.indices) EXPECT(i >= 0 && i < std::max<int64_t>(n, 1));
  return k;
}

}  // namespace

TEST(nonzero_of_any_shape) {
  std::mt19937 random(1);
  const std::vector<std::vector<int64_t>> shapes{{0}, {1}, {7}, {8}, {65536}, {65537}, {200003}, {3, 0, 2}, {257, 1021}, {5, 1, 13, 3},
                                                 {2, 1, 3, 1, 2, 1, 2, 3}};
  for (const auto& dims : shapes) {
    int64_t total = 1;
    for (int64_t d : dims) total *= d;
    for (uint32_t one_in : {1u, 2u, 1000u, 4000000000u}) {
      std::vector<uint8_t> mask(static_cast<size_t>(total));
      for (auto& m : mask) m = random() % one_in == 0;
      check_nonzero(mask, dims);
    }
  }
  check_nonzero({0, 255, 2, 0, 1}, {5});  // any byte but 0 is true
}

TEST(nonzero_refuses_other_ranks) {
  LibraryContext c;
  const int64_t none[] = {1, 0}, nine[] = {1, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  void* args[] = {nullptr, nullptr, nullptr, nullptr};
  EXPECT(c.run->dispatch("nonzero", args, none) != 0);
  EXPECT(c.run->dispatch("nonzero", args, nine) != 0);
}

TEST(unique_numbers_by_first_occurrence) {
  const Numbers u = unique<int32_t>({5, 3, 5, -1, 3, 5}, 1, DISC_I32);
  EXPECT_EQ(u.count, 3);
  EXPECT(u.index == (Ints{0, 1, 0, 2, 1, 0}));
  EXPECT(u.first[0] == 0 && u.first[1] == 1 && u.first[2] == 3);
  EXPECT(u.counts[0] == 3 && u.counts[1] == 2 && u.counts[2] == 1);
  EXPECT_EQ(unique<int8_t>({}, 1, DISC_I8).count, 0);
  EXPECT(unique<int8_t>({}, 0, DISC_I8, false, 4).index == (Ints{0, 0, 0, 0}));  // rows of nothing are equal
}

TEST(unique_of_floats) {
  EXPECT(unique<float>({kNan, 0.0f, -0.0f, 1e-40f, kNan, kInf, kInf}, 1, DISC_F32).index == (Ints{0, 1, 1, 1, 2, 3, 3}));
  EXPECT(unique<double>({0.0, -0.0, 1e-310, std::nan("")}, 1, DISC_F64).index == (Ints{0, 0, 0, 1}));
  const std::vector<uint16_t> halves{0, 0x8000, 1, 0x8001, 0x7E00, 0x7E00};
  EXPECT(unique<uint16_t>(halves, 1, DISC_F16, true).index == (Ints{0, 1, 2, 3, 4, 5}));
  EXPECT(unique<uint16_t>(halves, 1, DISC_F16, false).index == (Ints{0, 0, 1, 2, 3, 4}));
  EXPECT(unique<float>({1, kNan, 1, kNan, 2, 0.0f, 2, -0.0f}, 2, DISC_F32).index == (Ints{0, 1, 2, 2}));
}

TEST(unique_of_many) {
  std::mt19937 random(2);
  for (uint32_t distinct : {1u, 10u, 5000u, 4000000000u}) {
    std::vector<int64_t> x(20011);
    for (auto& v : x) v = random() % distinct;
    const Numbers u = unique<int64_t>(x, 1, DISC_I64);
    std::map<int64_t, int32_t> number;
    for (size_t i = 0; i < x.size(); ++i) {
      const auto fresh = number.emplace(x[i], static_cast<int32_t>(number.size()));
      EXPECT_EQ(u.index[i], fresh.first->second);
      if (fresh.second) EXPECT_EQ(u.first[static_cast<size_t>(u.index[i])], static_cast<int64_t>(i));
    }
    EXPECT_EQ(u.count, static_cast<int64_t>(number.size()));
  }
}

TEST(partition_leaves_ids_out_of_range_out) {
  LibraryContext c;
  Ints ids{2, 0, 7, 2, -1, 1, INT32_MIN, INT32_MAX, 0};
  std::vector<int64_t> order(ids.size(), -7), counts(3), work(3);
  void* args[] = {ids.data(), order.data(), counts.data(), work.data()};
  const int64_t scalars[] = {static_cast<int64_t>(ids.size()), 3};
  EXPECT_EQ(c.run->dispatch("partition", args, scalars), 0);
  EXPECT(counts == (std::vector<int64_t>{2, 1, 2}));
  EXPECT(order == (std::vector<int64_t>{1, 8, 5, 0, 3, 0, 0, 0, 0}));
}

TEST(search_as_the_standard_library) {
  std::mt19937 random(3);
  for (int64_t n : {0, 1, 2, 17}) {
    std::vector<float> lines(static_cast<size_t>(3 * n)), values(3 * 5);
    for (auto& v : lines) v = static_cast<float>(random() % 9);  // not sorted: the answer is the algorithm's
    for (auto& v : values) v = static_cast<float>(random() % 10);
    values[0] = kNan;
    for (int upper = 0; upper < 2; ++upper) {
      LibraryContext c;
      std::vector<int64_t> found(15, -7);
      void* args[] = {lines.data(), values.data(), found.data()};
      const int64_t scalars[] = {DISC_F32, 3, n, 5, upper, 8};
      EXPECT_EQ(c.run->dispatch("search", args, scalars), 0);
      for (size_t i = 0; i < 15; ++i) {
        const float *begin = lines.data() + static_cast<int64_t>(i / 5) * n, *end = begin + n;
        EXPECT_EQ(found[i], (upper ? std::upper_bound(begin, end, values[i]) : std::lower_bound(begin, end, values[i])) - begin);
      }
    }
  }
}

TEST(nms_takes_the_best_first) {
  const std::vector<float> boxes{0, 0, 1, 1, 0, 0.1f, 1, 1.1f, 0, -0.1f, 1, 0.9f, 0, 10, 1, 11, 0, 10.1f, 1, 11.1f, 0, 100, 1, 101};
  const std::vector<float> scores{0.9f, 0.75f, 0.6f, 0.95f, 0.5f, 0.3f};
  const Kept k = nms(boxes, scores, 0.5f, 0, 0, 3, 5);
  EXPECT_EQ(k.count, 3);
  EXPECT(k.indices == (Ints{3, 0, 5, 0, 0}));
  EXPECT(k.scores == (std::vector<float>{0.95f, 0.9f, 0.3f, 0, 0}));
  EXPECT_EQ(nms(boxes, scores, 0.5f, 0, 0.5f, 6, 6).count, 6);
  EXPECT_EQ(nms({}, {}, 0.5f, 0, 0, 9, 9).count, 0);
}

TEST(nms_stays_inside_whatever_the_data) {
  std::mt19937 random(4);
  const float special[] = {kNan, -kNan, kInf, -kInf, 0.0f, -0.0f, 1e-40f, 3e38f, -3e38f, 1, -1, 0.5f};
  const auto any = [&] { return special[random() % 12]; };
  for (int round = 0; round < 300; ++round) {
    const auto n = static_cast<int64_t>(random() % 12);
    const bool overlaps = random() % 2;
    std::vector<float> data(static_cast<size_t>(overlaps ? n * n : 4 * n)), scores(static_cast<size_t>(n));
    for (auto& v : data) v = any();
    for (auto& v : scores) v = any();
    const auto room = static_cast<int64_t>(random() % 14);
    const int64_t limit = random() % 3 ? room : INT32_MAX;
    const Kept k = nms(data, scores, any(), any(), std::fabs(any()), limit, room, overlaps);
    Ints taken(k.indices.begin(), k.indices.begin() + k.count);
    std::sort(taken.begin(), taken.end());
    EXPECT(std::adjacent_find(taken.begin(), taken.end()) == taken.end());  // no box twice
  }
}

TEST(combined_nms_merges_classes) {
  std::mt19937 random(5);
  const float special[] = {kNan, kInf, -kInf, 0.0f, -0.0f, 3e38f, -3e38f, 1, 2, 3, 0.5f};
  for (int round = 0; round < 200; ++round) {
    LibraryContext c;
    const int64_t batch = random() % 3, n = random() % 7, classes = random() % 4, room = random() % 9;
    const int64_t q = random() % 2 ? 1 : classes, per_class = random() % 2 ? INT32_MAX : 1 + random() % 4, per = std::min(per_class, n);
    const bool clip = random() % 2;
    const auto size = [](int64_t k) { return static_cast<size_t>(k); };
    std::vector<float> boxes(size(batch * n * q * 4)), scores(size(batch * n * classes)), out(size(batch * room * 4), -7);
    std::vector<float> out_scores(size(batch * room), -7), labels(size(batch * room), -7);
    for (auto& v : boxes) v = round % 2 ? special[random() % 11] : static_cast<float>(random() % 5);
    for (auto& v : scores) v = round % 3 ? special[random() % 11] : static_cast<float>(random() % 100) / 100;
    float threshold = 0.4f, least = round % 2 ? -kInf : 0.2f;
    Ints valid(size(batch), -7);
    std::vector<int64_t> counts(size(batch * classes));
    std::vector<char> kept(size(8 * batch * classes * per));
    void* args[] = {boxes.data(), scores.data(), &threshold, &least, out.data(), out_scores.data(), labels.data(), valid.data(),
                    counts.data(), kept.data()};
    const int64_t scalars[] = {batch, n, q, classes, per_class, room, clip};
    EXPECT_EQ(c.run->dispatch("combined_nms", args, scalars), 0);
    for (int64_t image = 0; image < batch; ++image) {
      EXPECT(valid[size(image)] >= 0 && valid[size(image)] <= std::min(room, classes * per));
      const float* s = out_scores.data() + image * room;
      for (int64_t j = 0; j < room; ++j) {
        EXPECT(j >= valid[size(image)] ? s[j] == 0 : s[j] > least && (j == 0 || s[j] <= s[j - 1]));
        EXPECT(labels[size(image * room + j)] >= 0 && labels[size(image * room + j)] < std::max<float>(1, static_cast<float>(classes)));
        for (size_t k = 0; clip && k < 4; ++k) EXPECT(!(out[size(image * room + j) * 4 + k] > 1));
      }
    }
  }
}

TEST(f16_both_ways) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto h = static_cast<uint16_t>(bits);
    const float f = disc::half_to_float(h);
    if (std::isnan(f))
      EXPECT((disc::float_to_half(f) & 0x7FFF) > 0x7C00);
    else
      EXPECT_EQ(disc::float_to_half(f), h);
  }
  EXPECT_EQ(disc::float_to_half(65519.996f), 0x7BFF);
  EXPECT_EQ(disc::float_to_half(65520.0f), 0x7C00);
  EXPECT_EQ(disc::float_to_half(1.00048828125f), 0x3C00);  // half way: to even
  EXPECT_EQ(disc::float_to_half(1.00146484375f), 0x3C02);
  EXPECT_EQ(disc::float_to_half(0x1p-25f), 0);
  EXPECT_EQ(disc::float_to_half(0x1.8p-25f), 1);
}
