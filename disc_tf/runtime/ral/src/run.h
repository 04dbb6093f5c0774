// One run of an executable: the disc_context that its code sees, and the driver that calls its segments.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "disc_ral.h"
#include "executable.h"
#include "memory.h"
#include "model_file.h"
#include "status.h"

// Also the context of a `prepare` call: then `parent` is the run that asked and `building` the entry that is made.
struct disc_context {
 public:
  // bound (may be null): inputs that are there from the start.
  disc_context(std::shared_ptr<disc::Executable> executable, const disc_run_options* options, std::shared_ptr<const disc::Bound> bound = nullptr);
  ~disc_context();
  disc_context(const disc_context&) = delete;
  disc_context& operator=(const disc_context&) = delete;

  // --- driver
  // Checks rank and known dims. With `copy_dims` the memref's dims need not outlive the call.
  int32_t set_input(int32_t index, const disc_memref& value, bool copy_dims);
  // Runs the segments that are ready, in order. *remaining (may be null): the segments that still wait.
  const disc::Status& advance(int32_t* remaining);
  // The result of the run so far.
  const disc::Status& finish();

  // --- what executables call (disc_api)
  const disc_memref* recv_input(int32_t index);
  void* alloc_output(int32_t index, int32_t rank, const int64_t* dims);
  int32_t alias_output(int32_t index, int32_t input, int32_t rank, const int64_t* dims);
  int32_t send_output(int32_t index);
  void* arena(int32_t slot, int64_t bytes);
  int32_t parallel_for(disc_kernel_fn fn, const disc_kernel_args* args, int64_t tasks, int64_t grain, int64_t scratch_bytes);
  int32_t dispatch(const char* name, void* const* args, const int64_t* scalars);
  void fail(int32_t code, int32_t check_id);
  const void* prepared(int32_t index);
  void* prepare_alloc(int32_t index, int64_t bytes);
  int64_t* error_cell() { return &error_cell_; }

  // --- for the RAL's own code
  // `parallel_for` as this run's executable sees it.
  int32_t launch(disc_kernel_fn fn, const disc_kernel_args* args, int64_t tasks, int64_t grain, int64_t scratch_bytes) {
    return api_->parallel_for(this, fn, args, tasks, grain, scratch_bytes);
  }
  const disc::Executable& executable() const { return *executable_; }
  int64_t number() const { return number_; }
  uint64_t recording() const { return recording_; }
  int max_threads() const { return options_.max_threads; }
  bool has_prepared(int32_t index) const { return index >= 0 && static_cast<size_t>(index) < prepared_.size() && prepared_[index]; }
  // Packed constants that were made or read for this run.
  int64_t builds() const { return builds_; }

  // Records a failure that is no check; gives its code.
  int32_t fail_internally(int32_t code, const std::string& message, const std::string& node = {});

 private:
  disc_context(disc_context* parent, int32_t building, disc::PreparedData* target);

  enum class Output : uint8_t { kNone, kMade, kSent };
  const disc::Artifact& artifact() const { return executable_->artifact(); }
  bool failed() const { return !status_.ok(); }
  int32_t check_error_cell();
  void record_check(int64_t check_id, int32_t code);
  int32_t check_output(int32_t index, int32_t rank, const int64_t* dims, int64_t* bytes);
  bool ready(size_t segment) const;
  void record_extents() const;
  bool is_bound(int32_t input) const { return bound_ && bound_->has[static_cast<size_t>(input)] != 0; }
  // Notes in made_of_ what an entry's inputs are in this run, as far as it may change between runs of the executable; true if one of them is
  // known by its buffer only.
  bool note_made_of(int32_t index);
  std::string prepared_key(int32_t index) const;
  disc::Status build(int32_t index, bool by_buffer, disc::PreparedData* data);
  // Takes the entry from the directory of packs, or makes it and leaves it there; all of its inputs have digests.
  disc::Status find_or_share(int32_t index, disc::PreparedData* data);
  uint64_t content(uint32_t input) const;
  uint64_t sources_hash(int32_t index) const;

  std::shared_ptr<disc::Executable> executable_;
  std::shared_ptr<const disc::Bound> bound_;
  disc_run_options options_{};
  const disc_api* api_;  // what its code calls
  int64_t number_;
  uint64_t recording_ = 0;  // that this run takes part in
  int64_t builds_ = 0;
  disc::Status status_;
  int64_t failed_check_ = DISC_NO_ERROR;  // of the check that status_ tells of
  alignas(64) int64_t error_cell_ = DISC_NO_ERROR;

  std::vector<disc_memref> own_inputs_;
  std::vector<uint8_t> own_present_;
  const std::vector<disc_memref>* inputs_ = &own_inputs_;
  const std::vector<uint8_t>* present_ = &own_present_;
  std::deque<std::vector<int64_t>> dims_;
  std::vector<Output> outputs_;
  std::vector<uint8_t> segment_done_;

  struct Slot {
    int32_t id;
    disc::MemoryPool::Block block;
  };
  std::vector<Slot> arena_;
  std::vector<disc::MemoryPool::Block> outgrown_;
  disc::MemoryPool::Block scratch_;

  std::vector<uint64_t> made_of_;  // of the entry that is looked for
  std::vector<disc::PreparedRef> prepared_;  // by index, those that this run uses
  disc_context* parent_ = nullptr;
  int32_t building_ = -1;
  disc::PreparedData* target_ = nullptr;
};

namespace disc {
const disc_api* api_table();
int64_t run_counter();
int64_t kernel_counter();
int64_t launch_counter();
}  // namespace disc
