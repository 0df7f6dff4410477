// next_items RUN ITEM...: what a trained run shows after these items.
#include <prism/core/error.h>
#include <prism/serve/recommender_service.h>

#include <iostream>

int main(int argc, char** argv) try {
  if (argc < 2) throw prism::Error("usage: next_items RUN ITEM...");
  prism::RecommenderService service = prism::RecommenderService::open(argv[1]);

  // A whole history at once.
  const std::vector<std::string> history(argv + 2, argv + argc);
  const prism::Recommendations list = service.recommend(history, {.top = 5});
  for (const std::string& id : list.unknown) std::cerr << "unknown item " << id << "\n";
  if (!list.note.empty()) std::cerr << list.note << "\n";
  for (const prism::RecommendedItem& item : list.items)
    std::cout << item.id << "\t" << item.score << "\t" << item.title << "\n";

  // The same, one item at a time: each append costs one step, however long the history.
  prism::UserSession session = service.start();
  for (const std::string& id : history) session.append(id);
  const prism::Recommendations again = session.recommend({.top = 1});
  if (!again.items.empty())
    std::cout << "first after " << session.length() << " steps: " << again.items[0].id << "\n";
} catch (const prism::Error& error) {
  std::cerr << "next_items: " << error.what() << "\n";
  return 1;
}
