#include "commands.h"

namespace prism::cli {

const std::vector<CommandEntry>& commands() {
  static const std::vector<CommandEntry> list = {
      // name, summary, example, factory
      {"data", "what is in an interaction log", "prism data ml-100k.inter --min-user 40 --min-item 5",
       make_data},
      {"baselines", "popularity and item-to-item transitions, fully ranked",
       "prism baselines ml-100k.inter --ks 10,20 --no-filter-seen", make_baselines},
      {"train", "train a recommender into a run folder",
       "prism train recipes/ml-100k.toml --file ml-100k.inter", make_train},
      {"info", "everything about a run folder", "prism info runs/ml-100k", make_info},
      {"report", "a page with pictures about a run folder", "prism report runs/ml-100k", make_report},
      {"evaluate", "figures of a run beside popularity and Markov", "prism evaluate runs/ml-100k",
       make_evaluate},
      {"recommend", "what a user, a history or everyone should see next",
       "prism recommend runs/ml-100k --items 50,181,172 --top 5", make_recommend},
      {"mixers", "the sequence mixers and their settings", "prism mixers prism", make_mixers},
      {"export", "item vectors and weights for other programs", "prism export runs/ml-100k --out vectors",
       make_export},
      {"probe", "what a mixer learns of nine synthetic tasks", "prism probe parity --mixer gated_delta_net",
       make_probe},
      {"compare", "mixers on one task with one budget, parameters matched",
       "prism compare recipes/compare-ml-100k.toml --file ml-100k.inter --jobs 2", make_compare},
      {"lm tokenizer", "learn a tokenizer from texts, or show one",
       "prism lm tokenizer train books.txt --vocabulary 8192 --out tokenizer.json", make_lm_tokenizer},
      {"lm prepare", "texts to a folder of tokens for a language model",
       "prism lm prepare books.jsonl.zst --tokenizer tokenizer.json --out tokens", make_lm_prepare},
      {"lm train", "train a language model into a run folder",
       "prism lm train recipes/lm-tinyshakespeare.toml --tokens tokens", make_lm_train},
      {"lm evaluate", "perplexity of texts, LAMBADA, multiple choice",
       "prism lm evaluate runs/tokens --tokens test --completions lambada_openai.jsonl", make_lm_evaluate},
      {"lm generate", "go on from a prompt", "prism lm generate runs/tokens --prompt \"ROMEO:\" --top-p 0.9",
       make_lm_generate},
  };
  return list;
}

}  // namespace prism::cli
