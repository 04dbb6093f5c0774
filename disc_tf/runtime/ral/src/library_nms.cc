// Non-maximum suppression: TensorFlow's NonMaxSuppressionV2 to V5 and NonMaxSuppressionWithOverlaps.
//
// As TensorFlow does it, step for step: the candidate with the highest score (of equals the one with the lowest index) is compared with the
// boxes that were taken before, the last one first. f16 is computed in f32 and rounded after every operation.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "artifact.h"
#include "disc_ral.h"
#include "library.h"
#include "narrow_float.h"
#include "run.h"

namespace disc {
namespace {

enum { kDtype, kBoxes, kLimit, kRoom, kOverlaps };

struct F32 {
  static float load(const void* p, int64_t i) { return static_cast<const float*>(p)[i]; }
  static void store(void* p, int64_t i, float x) { static_cast<float*>(p)[i] = x; }
  static float round(float x) { return x; }
};

struct F16 {
  static float load(const void* p, int64_t i) { return half_to_float(static_cast<const uint16_t*>(p)[i]); }
  static void store(void* p, int64_t i, float x) { static_cast<uint16_t*>(p)[i] = float_to_half(x); }
  static float round(float x) { return half_to_float(float_to_half(x)); }
};

struct Candidate {
  int32_t box;
  int32_t compared;  // with this many of the boxes that were taken
  float score;
};

// Whether `a` comes after `b`. Scores are never NaN.
bool after(const Candidate& a, const Candidate& b) { return a.score < b.score || (a.score == b.score && a.box > b.box); }

struct Box {
  float y0, x0, y1, x1, area;
};

template <typename T>
Box box_at(const void* boxes, int64_t i) {
  float c[4];
  for (int64_t k = 0; k < 4; ++k) c[k] = T::load(boxes, 4 * i + k);
  Box b{std::min(c[0], c[2]), std::min(c[1], c[3]), std::max(c[0], c[2]), std::max(c[1], c[3]), 0};
  b.area = T::round(T::round(b.y1 - b.y0) * T::round(b.x1 - b.x0));
  return b;
}

template <typename T>
float intersection_over_union(const Box& a, const Box& b) {
  if (a.area <= 0 || b.area <= 0) return 0;
  const float y = std::max(T::round(std::min(a.y1, b.y1) - std::max(a.y0, b.y0)), 0.0f);
  const float x = std::max(T::round(std::min(a.x1, b.x1) - std::max(a.x0, b.x0)), 0.0f);
  const float common = T::round(y * x);
  return T::round(common / T::round(T::round(a.area + b.area) - common));
}

// What a score is multiplied with because of a box that was taken.
template <typename T>
float weight(float similarity, float threshold, float scale, bool soft) {
  if (!soft) {
    if (!(similarity <= threshold)) return 0;
    return std::isinf(similarity) ? similarity - similarity : 1;
  }
  return T::round(std::exp(T::round(T::round(scale * similarity) * similarity)));
}

template <typename T>
int64_t suppress(void* const* args, const int64_t* s) {
  const void *data = args[0], *scores = args[1];
  const float threshold = T::load(args[2], 0), least = T::load(args[3], 0), sigma = T::load(args[4], 0);
  auto* taken = static_cast<int32_t*>(args[5]);
  auto* heap = static_cast<Candidate*>(args[8]);
  auto* boxes = static_cast<Box*>(args[9]);
  const int64_t n = s[kBoxes], limit = std::min(s[kLimit], s[kRoom]);
  const bool overlaps = s[kOverlaps] != 0, soft = sigma > 0;
  const float scale = soft ? T::round(-0.5f / sigma) : 0;

  int64_t waiting = 0, count = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float score = T::load(scores, i);
    if (score > least) heap[waiting++] = {static_cast<int32_t>(i), 0, score};
  }
  std::make_heap(heap, heap + waiting, after);
  while (count < limit && waiting > 0) {
    std::pop_heap(heap, heap + waiting, after);
    Candidate c = heap[--waiting];
    const float before = c.score;
    const Box own = overlaps ? Box{} : box_at<T>(data, c.box);
    bool suppressed = false;
    for (int64_t j = count - 1; j >= c.compared; --j) {
      const float similarity = overlaps ? T::load(data, c.box * n + taken[j]) : intersection_over_union<T>(own, boxes[j]);
      c.score = T::round(c.score * weight<T>(similarity, threshold, scale, soft));
      suppressed = !soft && similarity > threshold;
      if (suppressed || c.score <= least) break;
    }
    c.compared = static_cast<int32_t>(count);
    if (suppressed) continue;
    if (c.score == before) {
      taken[count] = c.box;
      T::store(args[6], count, c.score);
      if (!overlaps) boxes[count] = own;
      ++count;
    } else if (c.score > least) {
      heap[waiting++] = c;
      std::push_heap(heap, heap + waiting, after);
    }
  }
  for (int64_t j = count; j < s[kRoom]; ++j) {
    taken[j] = 0;
    T::store(args[6], j, 0);
  }
  return count;
}

}  // namespace

// nms: args boxes [n, 4] or overlaps [n, n], scores [n], overlap threshold, score threshold, sigma (scalars; 0 for hard suppression), indices
// (i32 [room]), their scores ([room]), count (i64), work (12 n bytes), work (20 room bytes); scalars dtype (f16, f32), n, limit, room, whether
// overlaps are given. At most min(limit, room) boxes are taken; what is left of the room is zeroed.
int32_t library_nms(disc_context* context, void* const* args, const int64_t* s) {
  if (s[kDtype] != DISC_F32 && s[kDtype] != DISC_F16) return context->fail_internally(kInternal, "nms: dtype must be f16 or f32");
  if (s[kBoxes] > INT32_MAX) return context->fail_internally(kInvalidArgument, "nms: more than 2147483647 boxes");
  const int64_t count = s[kDtype] == DISC_F32 ? suppress<F32>(args, s) : suppress<F16>(args, s);
  std::memcpy(args[7], &count, sizeof(count));
  return 0;
}

}  // namespace disc
