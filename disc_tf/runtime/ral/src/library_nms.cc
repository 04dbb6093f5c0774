// Non-maximum suppression: TensorFlow's NonMaxSuppressionV2 to V5, NonMaxSuppressionWithOverlaps and CombinedNonMaxSuppression.
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

// ---- of many classes ------------------------------------------------------------------------------------------------

enum { kBatch, kAll, kShared, kClasses, kPerClass, kRoomAll, kClip };

struct Scored {
  int32_t box;
  float score;
};

// Whether `a` comes after `b`: of equals the lower index first.
bool scored_after(const Scored& a, const Scored& b) { return a.score < b.score || (a.score == b.score && a.box > b.box); }

// Each task is a class of an image: the boxes it keeps, the best first, and how many there are.
void suppress_classes(const disc_kernel_args* a, int64_t begin, int64_t end, void* scratch) {
  const int64_t* s = a->scalars;
  const int64_t n = s[kAll], q = s[kShared], classes = s[kClasses], room = std::min(s[kPerClass], n);
  const auto *boxes = static_cast<const float*>(a->bufs[0]), *scores = static_cast<const float*>(a->bufs[1]);
  const float threshold = *static_cast<const float*>(a->bufs[2]), least = *static_cast<const float*>(a->bufs[3]);
  auto* heap = static_cast<Scored*>(scratch);
  auto* taken = reinterpret_cast<Box*>(heap + n);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t image = task / classes, label = task % classes, shared = std::min(label, q - 1);
    auto* kept = static_cast<Scored*>(a->bufs[9]) + task * room;
    int64_t waiting = 0, count = 0;
    for (int64_t i = 0; i < n; ++i) {
      const float score = scores[(image * n + i) * classes + label];
      if (score > least) heap[waiting++] = {static_cast<int32_t>(i), score};
    }
    std::make_heap(heap, heap + waiting, scored_after);
    while (count < room && waiting > 0) {
      std::pop_heap(heap, heap + waiting, scored_after);
      const Scored c = heap[--waiting];
      const Box own = box_at<F32>(boxes, (image * n + c.box) * q + shared);
      int64_t j = count - 1;
      while (j >= 0 && !(intersection_over_union<F32>(own, taken[j]) > threshold)) --j;
      if (j >= 0) continue;
      taken[count] = own;
      kept[count++] = c;
    }
    static_cast<int64_t*>(a->bufs[8])[task] = count;
  }
}

// Each task is an image: the best of all its classes.
void merge_classes(const disc_kernel_args* a, int64_t begin, int64_t end, void* scratch) {
  struct Entry {
    Scored c;
    int32_t label;
  };
  const int64_t* s = a->scalars;
  const int64_t n = s[kAll], q = s[kShared], classes = s[kClasses], per = std::min(s[kPerClass], n), room = s[kRoomAll];
  const auto* boxes = static_cast<const float*>(a->bufs[0]);
  auto* all = static_cast<Entry*>(scratch);
  for (int64_t image = begin; image < end; ++image) {
    int64_t count = 0;
    for (int64_t label = 0; label < classes; ++label) {
      const int64_t task = image * classes + label, kept = static_cast<const int64_t*>(a->bufs[8])[task];
      const auto* from = static_cast<const Scored*>(a->bufs[9]) + task * per;
      for (int64_t j = 0; j < kept; ++j) all[count++] = {from[j], static_cast<int32_t>(label)};
    }
    const auto better = [](const Entry& x, const Entry& y) {
      if (x.c.score != y.c.score) return x.c.score > y.c.score;
      return x.label != y.label ? x.label < y.label : x.c.box < y.c.box;
    };
    const int64_t valid = std::min(count, room);
    std::partial_sort(all, all + valid, all + count, better);
    auto *out = static_cast<float*>(a->bufs[4]) + image * room * 4, *out_scores = static_cast<float*>(a->bufs[5]) + image * room;
    auto* out_labels = static_cast<float*>(a->bufs[6]) + image * room;
    for (int64_t j = 0; j < valid; ++j) {
      const float* box = boxes + ((image * n + all[j].c.box) * q + std::min<int64_t>(all[j].label, q - 1)) * 4;
      for (int64_t k = 0; k < 4; ++k) out[4 * j + k] = s[kClip] ? std::max(std::min(box[k], 1.0f), 0.0f) : box[k];
      out_scores[j] = all[j].c.score;
      out_labels[j] = static_cast<float>(all[j].label);
    }
    std::fill(out + 4 * valid, out + 4 * room, 0.0f);
    std::fill(out_scores + valid, out_scores + room, 0.0f);
    std::fill(out_labels + valid, out_labels + room, 0.0f);
    static_cast<int32_t*>(a->bufs[7])[image] = static_cast<int32_t>(valid);
  }
}

}  // namespace

// combined_nms: args boxes [batch, n, q, 4], scores [batch, n, classes], overlap threshold, score threshold (scalars), boxes [batch, room, 4],
// scores and classes [batch, room], how many are valid (i32 [batch]), work (i64 [batch, classes]), work (8 batch classes min(per_class, n)
// bytes); scalars batch, n, q (1, or classes), classes, per_class, room, whether boxes are clipped to [0, 1]. All floats are f32.
int32_t library_combined_nms(disc_context* context, void* const* args, const int64_t* s) {
  const int64_t n = s[kAll], classes = s[kClasses], per = std::min(s[kPerClass], n);
  if (n > INT32_MAX || classes > INT32_MAX || s[kRoomAll] > INT32_MAX)
    return context->fail_internally(kInvalidArgument, "combined_nms: more than 2147483647 boxes or classes");
  if (s[kBatch] <= 0) return 0;
  const disc_kernel_args a{args, s, context->error_cell()};
  if (n > 0 && classes > 0 && s[kShared] > 0) {
    const int64_t scratch = n * static_cast<int64_t>(sizeof(Scored)) + per * static_cast<int64_t>(sizeof(Box));
    if (const int32_t status = context->launch(suppress_classes, &a, s[kBatch] * classes, 1, scratch)) return status;
  } else {
    std::fill_n(static_cast<int64_t*>(args[8]), s[kBatch] * classes, int64_t{0});
  }
  return context->launch(merge_classes, &a, s[kBatch], 1, std::max<int64_t>(12, classes * per * 12));
}

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
