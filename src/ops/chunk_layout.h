#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace prism {

/// Tokens of all sequences cut into chunks of C. Chunks are ordered by their position in the sequence,
/// sequences from the one with most chunks to the one with fewest: those that still run at a position lie
/// together, first. A pass over the states takes one batched product a position, whatever the mix of lengths.
///
/// States live in one buffer: entry n < sequences is the state before sequence n (in that order), entry
/// sequences + z the state after chunk z.
class ChunkLayout {
 public:
  /// `offsets`: starts of the sequences in the tokens of all rows, [sequences + 1]. `packed`: one row of
  /// them. `open` (packed only): tokens that an unfinished chunk of each sequence already holds, fewer than
  /// chunk; the sequence's first chunk here takes the rest of that one.
  ChunkLayout(const std::vector<int64_t>& offsets, bool packed, int64_t chunk, at::Device device,
              const std::vector<int64_t>& open = {});

  struct Range {
    int64_t begin, count;
  };

  bool is_packed() const { return packed_; }
  int64_t sequences() const { return sequences_; }
  int64_t chunks() const { return chunks_; }
  int64_t positions() const { return int64_t(active_.size()); }
  /// Tokens of chunk z, and how many the same chunk held before these.
  int64_t length(int64_t z) const { return lengths_[z]; }
  int64_t held_before(int64_t z) const { return held_before_[z]; }
  /// Chunks at a position.
  Range chunks_at(int64_t position) const { return {first_[position], active_[position]}; }
  /// Buffer entries before and after the chunks at a position.
  Range before(int64_t position) const;
  Range after(int64_t position) const { return {sequences_ + first_[position], active_[position]}; }

  /// x [B,T,A,H,W] -> [chunks,H,A,C,W] of `type`, contiguous, zeros beyond the end of a sequence.
  at::Tensor gather(const at::Tensor& x, at::ScalarType type) const;
  /// The reverse: y [chunks,H,A,C,W] -> [B,T,A,H,W] of `type`.
  at::Tensor scatter(const at::Tensor& y, at::ScalarType type) const;

  /// Buffer entries [sequences + chunks,...] -> the state before every chunk [count >= chunks,...]; entries
  /// beyond the chunks hold arbitrary states.
  at::Tensor chunk_starts(const at::Tensor& buffer, int64_t count) const;
  /// Buffer -> the last state of each sequence, in the caller's order.
  at::Tensor finals(const at::Tensor& buffer) const;
  /// Puts gradients or states of the callers' sequences [sequences,...] in the buffer's entries for their
  /// ends.
  void put_finals(at::Tensor& buffer, const at::Tensor& states) const;
  /// [sequences,...] between the caller's order and the layout's.
  at::Tensor sorted(const at::Tensor& states) const;
  at::Tensor unsorted(const at::Tensor& states) const;

 private:
  void plan_packed(const std::vector<int64_t>& offsets, const std::vector<int64_t>& open, at::Device device);

  bool packed_;
  int64_t batch_ = 0, tokens_ = 0, sequences_ = 0, chunk_ = 1, chunks_ = 0;
  std::vector<int64_t> active_, first_, lengths_, held_before_;
  // Packed sequences only.
  at::Tensor token_of_slot_, is_padding_;      // [chunks * C] and [chunks,1,1,C,1]
  at::Tensor chunk_of_token_, slot_of_token_;  // [tokens]: chunk, and slot in it
  at::Tensor order_, rank_;                    // [sequences]: caller's index of entry n, and back
  at::Tensor start_entry_, final_entry_;       // [chunks], [sequences in the caller's order]
};

}  // namespace prism
