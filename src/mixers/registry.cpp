// Every mixer the program knows. Adding one is an include and a line.
#include <algorithm>
#include <functional>
#include <type_traits>

#include "prism/core/error.h"
#include "prism/core/text.h"
#include "prism/mixers/atlas.h"
#include "prism/mixers/comba.h"
#include "prism/mixers/delta_net.h"
#include "prism/mixers/efla.h"
#include "prism/mixers/gated_delta_net.h"
#include "prism/mixers/gla.h"
#include "prism/mixers/gsa.h"
#include "prism/mixers/hstu.h"
#include "prism/mixers/kda.h"
#include "prism/mixers/lact.h"
#include "prism/mixers/linear_attention.h"
#include "prism/mixers/mamba2.h"
#include "prism/mixers/miras.h"
#include "prism/mixers/mixer.h"
#include "prism/mixers/mom.h"
#include "prism/mixers/pkda.h"
#include "prism/mixers/preconditioned_delta_net.h"
#include "prism/mixers/prism.h"
#include "prism/mixers/rwkv7.h"
#include "prism/mixers/sasrec_block.h"
#include "prism/mixers/softmax_attention.h"
#include "prism/mixers/titans.h"
#include "prism/mixers/ttt.h"

namespace prism {
namespace {

template <class M>
class Spec final : public MixerSpec {
 public:
  void bind(Settings& settings, const std::string& section) override { settings.bind(section, config_); }
  std::shared_ptr<Mixer> build(int64_t width, int64_t max_length) const override {
    if constexpr (std::is_constructible_v<M, const typename M::Config&, int64_t, int64_t>)
      return std::make_shared<M>(config_, width, max_length);
    else
      return std::make_shared<M>(config_, width);
  }
  bool is_whole_block() const override { return M::kWholeBlock; }
  bool needs_positions() const override { return M::kNeedsPositions; }
  bool needs_times() const override {
    if constexpr (requires { M::needs_times(config_); })
      return M::needs_times(config_);
    else
      return false;
  }

 private:
  typename M::Config config_;
};

struct Entry {
  std::string name, summary;
  std::function<std::unique_ptr<MixerSpec>()> make;
};

template <class M>
Entry entry() {
  return {M::kName, M::kSummary, [] { return std::make_unique<Spec<M>>(); }};
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all{
      entry<Prism>(),
      entry<GatedDeltaNet>(),
      entry<LinearAttention>(),
      entry<Mamba2>(),
      entry<DeltaNet>(),
      entry<Efla>(),
      entry<Comba>(),
      entry<PreconditionedDeltaNet>(),
      entry<Mom>(),
      entry<TttLinear>(),
      entry<TttMlp>(),
      entry<Titans>(),
      entry<Atlas>(),
      entry<Miras>(),
      entry<Lact>(),
      entry<Gla>(),
      entry<Gsa>(),
      entry<Kda>(),
      entry<Pkda>(),
      entry<Rwkv7>(),
      entry<SoftmaxAttention>(),
      entry<SasrecBlock>(),
      entry<Hstu>(),
  };
  return all;
}

const Entry& find(const std::string& name) {
  const auto& all = entries();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Entry& e) { return e.name == name; });
  if (found == all.end())
    usage_error("no mixer is called \"{}\"{}", shortened(name), did_you_mean(name, mixer_names()));
  return *found;
}

}  // namespace

const std::vector<std::string>& mixer_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Entry& e : entries()) all.push_back(e.name);
    return all;
  }();
  return names;
}

std::string mixer_summary(const std::string& name) { return find(name).summary; }

std::unique_ptr<MixerSpec> make_mixer_spec(const std::string& name) { return find(name).make(); }

}  // namespace prism
