#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "chunk_layout.h"

namespace prism {

/// The tokens of sequences cut into mini-batches, C slots each, and a pass over them that autograd follows.
/// Rows of a gathered tensor are (chunk, head) pairs, Z of them; slots beyond a chunk's tokens hold zeros.
class MiniBatches {
 public:
  /// q [B,T,H,.] gives the shape. `seen`: tokens each sequence has had before (empty: none); what is left of
  /// the mini-batch it stands in is its first chunk.
  MiniBatches(const at::Tensor& q, const std::optional<at::Tensor>& cu_seqlens, int64_t size,
              const std::vector<int64_t>& seen);

  int64_t sequences() const { return layout_->sequences(); }
  int64_t heads() const { return heads_; }
  int64_t size() const { return size_; }    ///< tokens of a mini-batch
  int64_t slots() const { return slots_; }  ///< C: as many, or fewer where no sequence fills its mini-batch
  bool any_open() const { return any_open_; }

  /// x [B,T,H,W] -> [Z,C,W] in the type of states.
  at::Tensor gather(const at::Tensor& x) const;
  /// The outputs of all chunks [Z,C,W] -> [B,T,H,W] of `type`.
  at::Tensor scatter(const at::Tensor& y, at::ScalarType type) const;

  /// Each chunk's last token as a row of 0 and 1, [Z,1,C]: times a [Z,C,.] it takes that token's row.
  at::Tensor last_token() const;
  /// 1 in the slots without a token, [Z,C,1].
  at::Tensor padding() const;
  /// Place in its mini-batch of every slot, [Z,C] int64, below its size.
  at::Tensor places() const;

  /// A gathered tensor cut by position, all at once: autograd then joins the gradients of the pieces in one
  /// pass, where every narrow would fill a whole tensor for its own. Empty for an undefined one.
  using Pieces = std::vector<at::Tensor>;
  Pieces pieces(const at::Tensor& x) const;

  /// Chunks at one position of their sequences.
  struct Step {
    int64_t position;
    int64_t begin, count;       ///< rows of gathered tensors
    bool all_close, any_close;  ///< whether these chunks end their mini-batches
    at::Tensor closes;          ///< [count,1,1] bool where some do and some do not
    at::Tensor of(const Pieces& x) const {
      return x.empty() ? at::Tensor() : x[static_cast<size_t>(position)];
    }
  };
  using States = std::vector<at::Tensor>;
  /// Takes the states of all sequences [N,H,...] through their chunks in order: `body` gets those of the
  /// chunks at a position as [count,...] and returns what they become. Returns the last ones, [N,H,...].
  States run(const States& states, const std::function<States(const Step&, const States&)>& body) const;

 private:
  Step step(int64_t position) const;
  int64_t held_before(int64_t chunk) const;
  at::Tensor by_row(const std::function<int64_t(int64_t chunk)>& value) const;

  std::shared_ptr<const ChunkLayout> layout_;
  int64_t batch_, tokens_, heads_, size_, slots_;
  at::ScalarType type_;
  at::Device device_;
  bool any_open_ = false;
  std::vector<int64_t> open_;  ///< of each sequence: tokens that its mini-batch held before
  std::vector<int64_t> held_;  ///< the same of each chunk, where every sequence has at most one
};

/// Slots for the tokens of a mini-batch of `size` where no sequence has more than `tokens` of it: as many as
/// that, but small mini-batches stay whole, so that a sequence's bits do not depend on the others' lengths.
int64_t slots_for(int64_t size, int64_t tokens);

/// The most tokens of a sequence; offsets [sequences + 1].
int64_t longest_sequence(const std::vector<int64_t>& offsets);

}  // namespace prism
